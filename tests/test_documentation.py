"""Every command and snippet of the README and of docs/ is run, page by page, as a newcomer would."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from heatsmooth.models import load_state, save
from heatsmooth.results.certificates import Certificates, read_certificates
from tests.conftest import tiny_classifier
from tests.faults.processes import free_port
from tests.shell import SMALL, commands, quick_start

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = {"sh", "python"}
SHOWN = {"text"}
"""Fences that hold what a program prints, not what a reader types."""

PREPARED = {"deploy", "peers", "publish", "serve", "your-loop"}
"""Pages that need a network or files of yours: tests of their own make these, and run every command and snippet."""

SLOW = {"README"}
"""Pages whose commands start as a reader starts them; those of the others fork from a process with all imports."""

LAUNCHERS = ("torchrun ", "accelerate launch ")
"""Lines that start several processes: a test of their own runs them, and compares the result with one process's."""

SMALLER = {
    "--data cifar10 ": "--data fashion-mini ",
    "--data fashion-mnist ": "--data fashion-mini ",
    "--epochs 20 ": "--epochs 1 --limit-train 256 ",
    "--epochs 4 ": "--epochs 1 --limit-train 512 ",
    "--sigma 0.25 --out runs/smoothed": "--sigma 0.25 --limit-train 512 --out runs/smoothed",
    "--images 100 --out runs/certified": "--images 60 --n 200 --out runs/certified",
    "--n 10000 ": "--n 200 ",
    "--n 1000 --images 100 ": "--n 200 --images 60 ",
    "--images 1000 ": "--images 60 ",
    "--images 100 ": "--images 60 ",
    "--images 20 ": "--images 4 ",
}
"""Sizes that a test can afford; nothing else of a command is changed."""

STUBS = {
    "make": f'exec {shutil.which("make")} --dry-run --directory "{ROOT}" "$@" >/dev/null',
    "pip": "exit 0",
    "git": "exit 0",
    "heatsmooth": f'exec "{sys.executable}" -m heatsmooth "$@"',
    "python": f'exec "{sys.executable}" "$@"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run --master-port "$PORT" "$@"',
    "accelerate": f'shift; exec "{sys.executable}" -m accelerate.commands.launch --main_process_port "$PORT" "$@"',
}
"""``make`` checks that its targets exist (the tests run inside one of them); installing is what set this up."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in FENCE.finditer(page.read_text())]


def smaller(command: str) -> str:
    for words, fewer in SMALLER.items():
        command = command.replace(words, fewer)
    return command


def launched(text: str) -> list[str]:
    """The lines that start several processes."""
    return [line for line in text.splitlines() if line.startswith(LAUNCHERS)]


def prepared_environment(tmp_path: Path, **quick: str) -> dict[str, str]:
    """Where commands find what ``STUBS`` and ``quick`` replace, and launchers a port that is free."""
    environment = commands(tmp_path / "bin", STUBS | quick)
    return environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}:{tmp_path}", "PORT": str(free_port())}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in PREPARED], ids=lambda page: page.stem)
def test_every_command_and_snippet_runs(page: Path, fashion: str, tmp_path: Path) -> None:
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "snippet.py").write_text((ROOT / "examples/yours.py").read_text())
    script = []
    for number, (language, text) in enumerate(blocks(page)):
        if language == "sh":
            alone = [line for line in text.splitlines() if line not in launched(text)]
            script.append(smaller(" \n".join([*alone, ""])).replace("\nEND \n", "\nEND\n"))
        elif language == "python":
            file = tmp_path / f"block{number}.py"
            file.write_text(f"from snippet import *\n{text}")
            script.append(f"python {file.name}\n")
    (tmp_path / "page.sh").write_text("set -euo pipefail\n" + "\n".join(script))
    with quick_start() as quick:
        environment = prepared_environment(tmp_path, **({} if page.stem in SLOW else quick))
        environment[SMALL] = fashion.removeprefix("npz:")
        done = subprocess.run(
            ["bash", "page.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    assert "here-document" not in done.stderr, "a here-document must end with a line END, or swallows what follows"
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


LAUNCHED = [line for page in PAGES for _, text in blocks(page) for line in launched(text)]


def test_launchers_are_documented_for_smooth_and_certify() -> None:
    for command in ("smooth", "certify"):
        assert any(f"heatsmooth {command} " in line for line in LAUNCHED)
    assert all(any(line.startswith(launcher) for line in LAUNCHED) for launcher in LAUNCHERS)


@pytest.mark.parametrize(
    "line", LAUNCHED, ids=lambda line: f"{line.split()[0]} {line.split('heatsmooth ')[1].split()[0]}"
)
def test_several_processes_give_what_one_gives(line: str, tmp_path: Path) -> None:
    """As documented, word for word, without ``--device``: on a machine without a GPU the processes find each other."""
    for name in ("baseline", "smoothed"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        save(tiny_classifier(), tmp_path / "runs" / name / "model.safetensors")
    several = tmp_path / line.split("--out ")[1]
    alone = several.with_name("alone")
    single = line[line.index("heatsmooth ") :].replace(several.name, alone.name)
    environment = prepared_environment(tmp_path)
    for command in (line, single):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stderr[-4000:]}"
    runs = [json.loads(path.read_text()) for path in several.glob("run*.json")]
    assert {run["processes"] for run in runs} == {2}
    if " certify " in line:
        assert len(runs) == 2
        counts = [{r.index: r.counts for r in read_certificates(run)} for run in (several, alone)]
        assert counts[0] == counts[1]
        assert len(counts[0]) == 8
    else:
        found, expected = (load_state(run / "model.safetensors")[0] for run in (several, alone))
        before = load_state(tmp_path / "runs/baseline/model.safetensors")[0]
        for name, weights in expected.items():
            torch.testing.assert_close(found[name], weights, rtol=1e-4, atol=1e-5)
        assert any(not torch.allclose(expected[name], before[name], rtol=1e-3, atol=1e-4) for name in expected)


@pytest.mark.parametrize("name", sorted(PREPARED))
def test_the_other_pages_have_tests_of_their_own(name: str) -> None:
    assert any(f"{name}.md" in path.read_text() for path in Path(__file__).parent.glob("test_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_fence_says_whether_it_is_run(page: Path) -> None:
    assert {language for language, _ in blocks(page)} <= RUN | SHOWN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_files_to_open_exist() -> None:
    table = (ROOT / "docs/architecture.md").read_text().split("## To change something")[1].split("\n## ")[0]
    files = set(re.findall(r"`([a-z_/0-9]+(?:\.py|/))`", table))
    assert len(files) > 20
    assert not [file for file in sorted(files) if not (ROOT / "src/heatsmooth" / file).exists()]


PUBLIC = {20: ("bootcamp", "bootcamp-10-epochs", "keep-0.95"), 32: ("bootcamp", "bootcamp-10-epochs", "keep-0.95")}
"""By depth, the methods of the README's table of public ResNets, after the network as published."""


def percent(*shares: float) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) + " %"


def public_rows() -> list[list[str]]:
    """What was recorded of them: means over the seeds that there are."""
    rows = []
    for depth, methods in PUBLIC.items():
        folder = ROOT / f"results/public-resnet{depth}"
        first = json.loads((folder / "seed-0/bootcamp/run.json").read_text())["summary"]
        summaries = [[{key.removeprefix("teacher_"): value for key, value in first.items() if "teacher_" in key}]]
        runs = [[folder / "seed-0/undefended-certified"]]
        for method in methods:
            made = sorted(folder.glob(f"seed-*/{method}"))
            summaries.append([json.loads((run / "run.json").read_text())["summary"] for run in made])
            runs.append([run.with_name(f"{method}-certified") for run in made])
        for measured, certified in zip(summaries, runs, strict=True):
            found = [Certificates.read(run) for run in certified]
            average = np.mean([(item.average_classes == item.known_labels).mean() for item in found])
            accuracy, noisy = (np.mean([one[key] for one in measured]) for key in ("accuracy", "accuracy_under_noise"))
            radii = np.mean([item.certified_accuracy([0.0, 0.25, 0.5]) for item in found], 0)
            rows.append([percent(accuracy), percent(average), percent(noisy), percent(*radii)])
    return rows


def test_the_public_networks_of_the_readme_are_what_was_recorded() -> None:
    text = (ROOT / "README.md").read_text().split("## Results")[1].split("The next table")[0]
    rows = [line.strip("| ").split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == public_rows()


BESIDE = {
    True: ("bootcamp", "bootcamp-robust"),
    False: ("paper-imagenet-best", "consistency", "smoothmix", "macer", "denoised"),
}
"""Rows of the README's second table: those that answer by one pass as HeatSmoothing does, and the methods of others."""


def beside_rows() -> list[list[str]]:
    """What was recorded of them with the first seed."""
    rows = []
    for own, names in BESIDE.items():
        for name in names:
            found = Certificates.read(ROOT / f"results/public-resnet20/seed-0/{name}-certified")
            one_pass = own or name == "paper-imagenet-best"
            answers = found.one_pass_correct if one_pass else found.average_classes == found.known_labels
            rows.append([percent(answers.mean()), percent(*found.certified_accuracy([0.0, 0.25, 0.5]))])
    return rows


def test_the_methods_beside_it_in_the_readme_are_what_was_recorded() -> None:
    text = (ROOT / "README.md").read_text().split("The next table")[1].split("All rows")[0]
    rows = [line.strip("| ").split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == beside_rows()
