"""Full disks and unwritable targets: one line, exit code 2, earlier files intact; given space, it goes on."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.faults.processes import Command
from tests.faults.test_kill import results

SPACE = {"train": (400, 60_000), "smooth": (400, 60_000), "certify": (400, 5_000), "attack": (400, 2_500)}
"""Bytes a file may have: too few for run.json, and enough for that but not for what follows."""


@pytest.mark.parametrize(("name", "space"), [(name, space) for name in SPACE for space in SPACE[name]])
def test_a_full_disk_is_one_line_and_later_the_command_goes_on(
    name: str, space: int, commands: dict[str, list[str]], finished: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "precious").write_text("old")
    words = [*commands[name], "--out", out]
    failed = Command(words, tmp_path, largest_file=space).end()
    assert failed.refused(), failed
    assert "File too large" in failed.err
    assert (out / "run.json").exists() == (space > 400)
    assert not list(out.glob(".*.part"))
    assert Command(words, tmp_path).end().code == 0
    assert (out / "precious").read_text() == "old"
    (out / "precious").unlink()
    assert results(out) == results(finished[name])


def writing(commands: dict[str, list[str]], finished: dict[str, Path], out: Path) -> list[list[object]]:
    """Every command that writes, with its target."""
    again = ["recompute", "--from", finished["certify"]]
    lines: list[list[object]] = [[*words, "--out", out] for words in commands.values()]
    lines += [[*again, "--out", out], [*again, "--tsv", out], ["report", finished["certify"], "--out", out]]
    calibrated: list[object] = ["calibrate", "--from", finished["smooth"], "--certificates", finished["certify"]]
    return [*lines, [*calibrated, "--out", out], ["demo", "--quiet", "--out", out]]


@pytest.mark.parametrize("target", ["pipe", "/proc/nothing/run", "precious", "precious/run"])
def test_a_target_that_cannot_be_written_is_one_line(
    target: str, commands: dict[str, list[str]], finished: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    overwritten = ("report", "--tsv")
    for words in writing(commands, finished, tmp_path / target):
        if target == "precious" and any(word in overwritten for word in words):
            continue
        ended = Command(words, tmp_path).end()
        assert ended.refused(), (words, ended)
    assert (tmp_path / "precious").read_text() == "old"
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_system_mounted_read_only(
    commands: dict[str, list[str]], finished: dict[str, Path], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        for words in writing(commands, finished, disk / "run"):
            ended = Command(words, tmp_path).end()
            assert ended.refused(), (words, ended)
    finally:
        subprocess.run(["umount", disk], check=True)
