"""Progress is shown, and again when the same is done anew."""

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress

from heatsmooth.commands import demo
from heatsmooth.progress import Progress, bar


def test_without_a_terminal_there_is_a_line_for_each_tenth_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    with bar() as show:
        for _ in range(2):
            for done in range(101):
                show("certifying", done, 100, "well")
    lines = capsys.readouterr().err.splitlines()
    assert lines == 2 * [f"certifying: {tenth} of 100 well" for tenth in range(0, 101, 10)]


def test_without_a_terminal_lines_say_the_time_left_from_where_the_work_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0]
    monkeypatch.setattr("heatsmooth.progress.time.monotonic", lambda: clock[0])
    with bar() as show:
        for done in (40, 60, 90, 100, 0, 50):
            show("smoothing", done, 100, "well")
            clock[0] += 60
    assert capsys.readouterr().err.splitlines() == [
        "smoothing: 40 of 100 well",
        "smoothing: 60 of 100, ETA 0:02:00 well",
        "smoothing: 90 of 100, ETA 0:00:24 well",
        "smoothing: 100 of 100 well",
        "smoothing: 0 of 100 well",
        "smoothing: 50 of 100, ETA 0:01:00 well",
    ]


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


@pytest.mark.parametrize("verbose", [False, True])
def test_the_demo_says_a_line_per_stage_and_more_if_asked(
    verbose: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Step:
        def __init__(self, **_: object) -> None: ...

        def run(self, progress: Progress) -> None:
            for done in range(21):
                progress("testing", done, 20)

    for name in ("Train", "Smooth", "Certify", "Attack", "Audit", "Distill"):
        monkeypatch.setattr(demo, name, Step)
    with bar() as show:
        assert demo.Demo(verbose=verbose).run(show) is None
    lines = capsys.readouterr().err.splitlines()
    stages = [line for line in lines if line.startswith("demo: ")]
    assert [line.partition(" now ")[2] for line in stages] == list(demo.STAGES)
    assert (len(lines) > 50) if verbose else (lines == stages)
