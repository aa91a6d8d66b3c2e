"""Progress is shown, and again when the same is done anew."""

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress

from heatsmooth.progress import bar


def test_without_a_terminal_there_is_a_line_for_each_tenth_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    with bar() as show:
        for _ in range(2):
            for done in range(101):
                show("certifying", done, 100, "well")
    lines = capsys.readouterr().err.splitlines()
    assert lines == 2 * [f"certifying: {tenth} of 100 well" for tenth in range(0, 101, 10)]


def test_in_a_terminal_the_clock_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(RichProgress, "reset", lambda self, task, **_: again.append(task))
    with bar() as show:
        for done in (0, 5, 10, 10, 0, 5):
            show("certifying", done, 10)
        show("attacking", 0, 10)
    assert again == [0]


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bar(shown=False) as show:
        show("certifying", 1, 1)
    assert capsys.readouterr() == ("", "")
