"""Fuzzed records: refused, or the result is what it was. Records without a check must at least make sense."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heatsmooth.commands.line import run
from heatsmooth.runs import CHECK
from tests.faults.processes import SCALE

RECORDS = {"certify": 180 * SCALE, "attack": 70 * SCALE}
"""How many of each kind, damaged and again nonsense."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 10**30, -(10**30), 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "1", [], [1], [[1]], {}, {"a": 1}, [0] * 9, [0] * 11, [-1] * 10, [float("nan")] * 10, ["1"] * 10),
)
READERS = {
    "certify": ["recompute", "--alpha", "0.01", "--json", "--from"],
    "attack": ["report", "--json", "--out", "page.html"],
}
FILES = {"certify": "certificates.jsonl", "attack": "attacks.jsonl"}


def damaged(chance: random.Random, line: bytes) -> bytes:
    """A line with bytes changed, added or removed."""
    content = bytearray(line)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(content) - 1)
        kind = chance.randrange(3)
        if kind == 0:
            content[at] = chance.choice(b'0123456789.,:-"[]{}eENn \x00\xff')
        elif kind == 1:
            content.insert(at, chance.choice(b"0123456789-."))
        else:
            del content[at]
    return bytes(content)


def nonsense(chance: random.Random, line: bytes) -> bytes:
    """A line without a check, with wrong values at one or two places."""
    record = json.loads(line)
    del record[CHECK]
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice(sorted(record))
        kind = chance.randrange(4)
        if kind == 0:
            del record[name]
        elif kind == 1 and isinstance(record[name], list) and record[name]:
            record[name] = list(record[name])
            record[name][chance.randrange(len(record[name]))] = chance.choice(VALUES)
        else:
            record[name] = chance.choice(VALUES)
        if not record:
            break
    return json.dumps(record).encode() + b"\n"


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Exit code, and what the command says (without paths and clocks), or the error."""
    code = run(words)
    captured = capsys.readouterr()
    if code == 2:
        assert captured.err.startswith("heatsmooth: error: "), captured.err
        assert captured.err.count("\n") == 1
        return code, captured.err
    found = json.loads(captured.out)
    return code, {key: value for key, value in found.items() if key not in ("recomputed", "bytes")}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("how", [damaged, nonsense])
def test_fuzzed_records_are_refused_or_change_nothing(
    name: str,
    how: Callable[[random.Random, bytes], bytes],
    finished: dict[str, Path],
    in_tmp: Path,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    chance, count = random.Random(f"{name} {how.__name__} 1"), RECORDS[name]
    directory = in_tmp / "run"
    shutil.copytree(finished[name], directory)
    file = directory / FILES[name]
    lines = file.read_bytes().splitlines(keepends=True)
    expected = answer([*READERS[name], str(directory)], capsys)
    assert expected[0] == 0
    refused = 0
    for number in range(count):
        at = chance.randrange(len(lines) - 1)
        changed = how(chance, lines[at])
        file.write_bytes(b"".join([*lines[:at], changed, *lines[at + 1 :]]))
        code, said = answer([*READERS[name], str(directory)], capsys)
        if code == 2 or said.get("skipped"):
            refused += 1
            continue
        if how is damaged:
            assert said == expected[1], (number, changed)
        assert not re.search(r"NaN|Infinity", json.dumps(said)), (number, changed)
    assert refused > count // 2
    record_property("records fuzzed", count)
