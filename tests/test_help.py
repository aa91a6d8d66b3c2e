"""Help as a newcomer reads it: one screen each, an example each, nothing left unexplained."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heatsmooth.commands.line import COMMANDS, MOVED, command_named, run
from heatsmooth.commands.options import options_of

SCREEN = (80, 42)
"""Columns and lines."""


def shown(*words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(SCREEN[0]))
    assert run(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_one_screen(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(*name.split(), "--help", capsys=capsys, monkeypatch=monkeypatch)
    lines = text.splitlines()
    assert len(lines) <= SCREEN[1]
    assert max(map(len, lines)) <= SCREEN[0]
    assert f"heatsmooth {name or 'demo'} " in text.replace("`", " ")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_can_be_copied_and_the_whole_help_explains_every_option(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(name, "--help-all", capsys=capsys, monkeypatch=monkeypatch)
    example = " ".join((inspect.getdoc(command_named(name)) or "").partition("Example: ")[2].split())
    assert example.startswith(f"heatsmooth {name}")
    assert example in " ".join(text.replace("\\\n", " ").split())
    for option in options_of(command_named(name)):
        assert len(option.help) > 1, f"{name}: {option.flag} without help"
        assert f"  {option.flag}" in text
        assert option.help.split()[0].strip("`") in text
    assert "More, explained by" not in text


def test_every_flag_of_a_command_is_one_option() -> None:
    for name in COMMANDS:
        flags = [option.flag for option in options_of(command_named(name))]
        assert len(flags) == len(set(flags)), name


@pytest.mark.parametrize(("name", "option"), MOVED)
def test_an_old_option_names_the_new_command(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, option, "x"]) == 2
    remedy = capsys.readouterr().err.rpartition("; use heatsmooth ")[2].split()
    assert remedy[0] in COMMANDS
    known = {known.flag for known in options_of(command_named(remedy[0]))}
    assert {word for word in remedy if word.startswith("--")} <= known


def test_completion_installs_and_completes(tmp_path: Path) -> None:
    home = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    start = f"import sys; sys.path[:0] = {sys.path!r}; from heatsmooth.commands.line import main; main()"
    words = [sys.executable, "-c", start, "--install-completion", "bash"]
    done = subprocess.run(words, env=home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    script = Path(done.stdout.partition(":")[0])
    assert script.is_relative_to(tmp_path)
    ask = (
        f"source {script}; complete -p heatsmooth | sed 's/.*-F \\([^ ]*\\).*/\\1/' > name; "
        "COMP_WORDS=(heatsmooth cer); COMP_CWORD=1; $(cat name); echo ${COMPREPLY[@]}"
    )
    answer = subprocess.run(["bash", "-c", ask], cwd=tmp_path, env=home, capture_output=True, text=True, timeout=60)
    assert answer.stdout.split() == ["certify"], answer
