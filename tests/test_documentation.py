"""Every command and snippet of the README and of docs/ is run, page by page, as a newcomer would."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = {"sh", "python"}
SHOWN = {"text"}
"""Fences that hold what a program prints, not what a reader types."""

PREPARED = {"deploy", "peers", "serve"}
"""Pages that need a network or files of yours: tests of their own make these, and run every command and snippet."""

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
}
"""``make`` checks that its targets exist (the tests run inside one of them); installing is what set this up."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in FENCE.finditer(page.read_text())]


def smaller(command: str) -> str:
    for words, fewer in SMALLER.items():
        command = command.replace(words, fewer)
    return command


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in PREPARED], ids=lambda page: page.stem)
def test_every_command_and_snippet_runs(page: Path, tmp_path: Path) -> None:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, body in STUBS.items():
        (binaries / name).write_text(f"#!/bin/sh\n{body}\n")
        (binaries / name).chmod(0o755 | stat.S_IEXEC)
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "snippet.py").write_text((ROOT / "examples/yours.py").read_text())
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }
    script = []
    for number, (language, text) in enumerate(blocks(page)):
        if language == "sh":
            script.append(smaller(text.replace("\n", " \n")).replace("\nEND \n", "\nEND\n"))
        elif language == "python":
            file = tmp_path / f"block{number}.py"
            file.write_text(f"from snippet import *\n{text}")
            script.append(f"python {file.name}\n")
    (tmp_path / "page.sh").write_text("set -euo pipefail\n" + "\n".join(script))
    done = subprocess.run(
        ["bash", "page.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert "here-document" not in done.stderr, "a here-document must end with a line END, or swallows what follows"
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


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
