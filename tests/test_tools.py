"""The programs of ``tools``, run as a developer runs them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGE = {
    "training.py": """
        from typing import Any

        class Loop:
            def step(self, a, /, b, c, *rest, d, e=1, f=2, **settings: dict[str, Any]):
                def inner(x): return x
                return inner

        async def wait(
            a, b, c, d, e
        ):
            return 1
    """,
    "commands/smooth.py": "def run() -> None:\n    pass\n",
    "compare/stages.py": "A: dict[str, Any] = {}\nB: dict[str, Any] = {}\n",
    "report/page.py": "\n" * 10,
}


def printed(program: str, *words: str | Path, **environment: str) -> str:
    command = [sys.executable, ROOT / "tools" / program, *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metrics_count_what_they_say(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        file = tmp_path / "src/heatsmooth" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("\n        ", "\n"))
    finder = tmp_path / "finder"
    finder.write_text('#!/bin/sh\ncase "$2" in */src) echo no duplicates;; *) echo 3 pairs of places;; esac\n')
    finder.chmod(0o755)
    rows = [line.strip("| ").split(" | ") for line in printed("metrics.py", tmp_path).splitlines()]
    assert rows[0] == ["measure", "value", "wanted"]
    values = {measure: value for measure, value, _ in rows[2:]}
    complexity = values.pop("radon complexity above 10")
    assert complexity == ("not measured" if importlib.util.find_spec("radon") is None else "0")
    assert values == {
        "`dict[str, Any]` in `src`": "3",
        "most parameters of a function": "6",
        "lines of the longest function": "4",
        "functions with more than 5 parameters": "1",
        "lines of `commands` + `compare`": "4",
        "lines of the package": "26",
        "pairs of duplicates in the tree / in `src`": "not measured",
    }
    assert "| 3 / 0 |" in printed("metrics.py", tmp_path, "--duplicates", finder)


def test_metrics_measure_this_package() -> None:
    assert "lines of the package" in printed("metrics.py")


def test_the_pictures_of_the_readme_are_drawn_from_the_published_records(tmp_path: Path) -> None:
    printed("draw_benefit.py", "--out", tmp_path)
    for theme in ("light", "dark"):
        name = f"benefit-{theme}.svg"
        assert (ROOT / "docs/figures" / name).read_text() == (tmp_path / name).read_text()
        assert f"docs/figures/{name}" in (ROOT / "README.md").read_text()
