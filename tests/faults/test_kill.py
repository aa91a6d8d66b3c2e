"""SIGKILL at random moments: the repeated command ends with the results of an undisturbed one, and loses nothing."""

import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatsmooth.models import load_state
from heatsmooth.runs import read_records
from heatsmooth.training.loop import STATE_FILE
from tests.faults.processes import CHANGES, SCALE, Command

KILLS = {"train": 10, "smooth": 12, "certify": 10, "attack": 13, "audit": 5, "compare": 5}
"""Commands to kill, and how often; any command of ``commands`` can be added."""
EXACTLY = 4
"""How often every command is killed at a change it makes on the disk."""
BEYOND = 99
"""The stage of a training that is done."""
MEASURED, PAGES = ("timing.json",), (".html", ".tex", ".md")
"""Files of measured times, and pages that show them: they must be there."""
CLOCKS = ("seconds", "images_per_second", "started", "arguments", "out")
"""What may differ between two runs that do the same."""


def results(out: Path) -> dict[str, Any]:
    """All files below ``out``, by name, without clocks, locks, their place and the order of the records."""
    return {str(file.relative_to(out)): _result(file, out) for file in sorted(out.rglob("*")) if _is_result(file)}


def _is_result(file: Path) -> bool:
    return file.is_file() and not file.name.startswith(".lock")


def _result(file: Path, out: Path) -> Any:
    if file.suffix == ".jsonl":
        return sorted(json.dumps(_timeless(record)) for record in read_records(file))
    if file.suffix == ".json":
        return None if file.name in MEASURED else _timeless(json.loads(file.read_text().replace(str(out), "")))
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name].tolist() for name in arrays}
    return None if file.suffix in PAGES else file.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if not key.endswith(CLOCKS)}
    return value


def kept(out: Path) -> tuple[set[bytes], tuple[int, int]]:
    """What a kill must not take away: whole lines of records, and how far a training has come."""
    lines = {line for file in out.rglob("*s*.jsonl") if file.name != "metrics.jsonl" for line in _whole_lines(file)}
    state = out / STATE_FILE
    if state.exists():
        at = load_state(state)[1]
        return lines, (at["stage"], at["step"])
    return lines, (BEYOND if (out / "model.safetensors").exists() else 0, 0)


def _whole_lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)[: file.read_bytes().count(b"\n")]


def run_and_time(words: list[object], scratch: Path) -> float:
    begin = time.monotonic()
    ended = Command(words, scratch).end()
    assert ended.code == 0, ended
    return time.monotonic() - begin


@pytest.mark.parametrize("name", KILLS)
def test_killed_at_random_moments_nothing_is_lost(
    name: str, commands: dict[str, list[str]], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(f"{name} 1")
    usual = run_and_time([*commands[name], "--out", tmp_path / "undisturbed"], tmp_path)
    expected = results(tmp_path / "undisturbed")
    kills = runs = 0
    while kills < KILLS[name] * SCALE:
        out, runs = tmp_path / f"killed-{runs}", runs + 1
        words = [*commands[name], "--out", out]
        moments: list[float] = []
        killed = True
        while killed and len(moments) < 5:
            lines, at = kept(out)
            command = Command(words, tmp_path)
            moments.append(chance.uniform(0, usual))
            time.sleep(moments[-1])
            killed = command.kill()
            kills += killed
            assert lines <= kept(out)[0], moments
            assert at <= kept(out)[1], moments
        lines, _ = kept(out)
        run_and_time(words, tmp_path)
        assert lines <= kept(out)[0], moments
        assert results(out) == expected, moments
    record_property("kills survived", kills)


@pytest.mark.parametrize("name", KILLS)
def test_killed_between_two_changes_on_the_disk_nothing_is_left_behind(
    name: str, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    """The changes to be killed at are drawn by chance, all of them with ``make torture`` where there are so few."""
    undisturbed = Command([*commands[name], "--out", tmp_path / "undisturbed"], tmp_path, changes=math.inf).end()
    assert undisturbed.code == 0, undisturbed
    expected, total = results(tmp_path / "undisturbed"), (tmp_path / CHANGES).stat().st_size
    for number in random.Random(f"{name} 2").sample(range(total), min(EXACTLY * SCALE, total)):
        out = tmp_path / f"killed-{number}"
        words = [*commands[name], "--out", out]
        assert Command(words, tmp_path, changes=number).end().code == -9, number
        lines, at = kept(out)
        run_and_time(words, tmp_path)
        assert lines <= kept(out)[0], number
        assert at <= kept(out)[1], number
        assert results(out) == expected, number
