"""Help as a newcomer reads it: one screen each, an example each, nothing left unexplained."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from heatsmooth.cli import app, run
from heatsmooth.cli.help import Command

SCREEN = (80, 42)
"""Columns and lines."""

COMMANDS = {command.callback.__name__: command for command in app.registered_commands if command.callback is not None}


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
    command = COMMANDS[name]
    assert command.callback is not None
    example = " ".join((inspect.getdoc(command.callback) or "").partition("Example: ")[2].split())
    assert example.startswith(f"heatsmooth {name}")
    assert example in " ".join(text.replace("\\\n", " ").split())
    built = typer.main.get_command(app)
    parameters = built.commands[name].params  # type: ignore[attr-defined]  # a group
    assert isinstance(built.commands[name], Command)  # type: ignore[attr-defined]
    for parameter in parameters:
        assert parameter.help, f"{name}: {parameter.name} without help"
        assert parameter.help.split()[0] in text
    assert "More, explained by" not in text


def test_completion_installs_and_completes(tmp_path: Path) -> None:
    home = {
        **os.environ,
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    start = (
        f"import sys; sys.argv[0] = 'heatsmooth'; sys.path[:0] = {sys.path!r}; from heatsmooth.cli import main; main()"
    )
    words = [sys.executable, "-c", start]
    done = subprocess.run(
        [*words, "--install-completion", "bash"], env=home, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "heatsmooth" in (tmp_path / ".bash_completions" / "heatsmooth.sh").read_text()
    asked = {**home, "_HEATSMOOTH_COMPLETE": "complete_bash", "COMP_WORDS": "heatsmooth cer", "COMP_CWORD": "1"}
    found = subprocess.run(words, env=asked, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["certify"]
