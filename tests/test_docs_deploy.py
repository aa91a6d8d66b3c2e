"""What docs/deploy.md and docs/peers.md show is run as it stands there."""

import json
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heatsmooth.calibration import Calibration
from heatsmooth.commands.line import run
from heatsmooth.models import ARCHITECTURES, model_hash, save
from tests.conftest import tiny_classifier

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The words of each heatsmooth command of a page."""
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("heatsmooth ")]


def run_python(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page one after another; what they leave behind."""
    names: dict[str, Any] = {}
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of foolbox's imports
        for block in blocks(page, "python"):
            exec(block, names)
    return names


def test_deploy(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_classifier()
    Path("runs/calibrated").mkdir(parents=True)
    save(model, Path("runs/calibrated/model.safetensors"))
    made = Calibration(((0.9, 0.1),), 10, 0.05, 0.001, 0.25, 100, 200, model_hash=model_hash(model))
    Path("runs/calibrated/calibration.json").write_text(json.dumps(made.to_json()))
    for words in commands("deploy.md"):
        assert run([*words, "--quiet", "--image-size", "28"]) == 0
    outputs = run_python("deploy.md")["outputs"]
    assert set(outputs) == {"probabilities", "class", "l_bound", "calibrated_radius"}
    assert "calibrated_radius (3,) of the average · conformal" in capsys.readouterr().out


def test_peers(in_tmp: Path) -> None:
    Path("runs/smoothed").mkdir(parents=True)
    save(tiny_classifier(), Path("runs/smoothed/model.safetensors"))
    left = run_python("peers.md")
    assert left["classes"].shape == left["radii"].shape == (len(left["images"]),)


@pytest.mark.parametrize("words", commands("peers.md"), ids=lambda words: words[-1])
def test_published_checkpoints(words: list[str], in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With look-alike weights and one image."""
    option = dict(zip(words[1::2], words[2::2], strict=True))
    imagenet = option["--model"] == "resnet50"
    state = ARCHITECTURES[option["--model"]]().state_dict()
    prefix = "1.module." if imagenet else "1."
    Path(option["--from"]).parent.mkdir()
    torch.save({"epoch": 90, "state_dict": {prefix + name: state[name] for name in state}}, option["--from"])
    images = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    np.savez("images.npz", images=images, labels=np.array([999 if imagenet else 9]))
    fast = "--data npz:images.npz --stride 1 --n 50 --n0 50 --batch-size 50 --device cpu --quiet --json"
    assert run([*words, *fast.split()]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1
    info = json.loads(Path(option["--out"], "run.json").read_text())
    assert info["settings"]["certificate"]["sigma"] == float(option["--sigma"])
