"""Two processes in one run directory: the second is refused; shards of a run and later processes are not."""

import json
import time
from pathlib import Path

import pytest

from tests.faults.processes import Command, start_two

WRITING = ("train", "smooth", "certify", "attack", "audit")
LONG = {
    "train": ["--epochs", "2000"],
    "smooth": ["--epochs", "2000"],
    "certify": ["--n", "1000000"],
    "attack": ["--steps", "100000"],
    "audit": ["--steps", "100000"],
}
"""What keeps each command busy until it is killed."""


def started(words: list[str], out: Path) -> Command:
    """The command, once it holds the directory."""
    command = Command([*words, "--out", out], out.parent)
    while command.running() and not (out / "run.json").exists():
        time.sleep(0.005)
    return command


@pytest.mark.parametrize("name", WRITING)
def test_the_second_process_is_refused_until_the_first_is_gone(
    name: str, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    words, out = [*commands[name], *LONG[name]], tmp_path / "run"
    first = started(words, out)
    second = Command([*words, "--out", out], tmp_path).end()
    assert second.refused(), second
    assert "expected no other process here, got one at work" in second.err
    assert first.kill()
    third = started(words, out)
    time.sleep(0.2)
    assert third.running(), third.end()
    assert third.kill()


def test_shards_share_a_directory_but_each_has_one_process(
    commands: dict[str, list[str]], finished: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = commands["certify"]
    shards = [Command([*words, "--shard", f"{i}/3", "--out", out], tmp_path) for i in (1, 2, 3)]
    assert [shard.end().code for shard in shards] == [0, 0, 0]
    busy = Command([*words, *LONG["certify"], "--shard", "2/3", "--out", tmp_path / "b"], tmp_path)
    while busy.running() and not (tmp_path / "b/run-2-of-3.json").exists():
        time.sleep(0.005)
    again = Command([*words, *LONG["certify"], "--shard", "2/3", "--out", tmp_path / "b"], tmp_path).end()
    assert again.refused(), again
    assert busy.kill()
    records = {
        record["index"]: record["counts"]
        for file in out.glob("certificates*.jsonl")
        for record in map(json.loads, file.read_text().splitlines())
    }
    lines = (finished["certify"] / "certificates.jsonl").read_text().splitlines()
    assert records == {record["index"]: record["counts"] for record in map(json.loads, lines)}


def test_processes_of_one_launch_share_the_run_and_another_launch_is_refused(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = [*commands["smooth"], "--batch-norm", "frozen", "--out", str(out)]
    first = start_two([*words, *LONG["smooth"]], tmp_path)
    try:
        while all(process.running() for process in first) and not (out / "metrics.jsonl").exists():
            time.sleep(0.05)
        assert all(process.running() for process in first)
        second = Command([*words, *LONG["smooth"]], tmp_path).end()
        assert second.refused(), second
        assert "got one at work" in second.err
    finally:
        for process in first:
            process.kill()
