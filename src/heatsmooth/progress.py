"""Progress on standard error, with an estimate of the time left."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """A function that shows progress.

    ``what``: the task.
    ``done``, ``total``: how much of it is done, and how much there is.
    ``note``: a short remark on the state.
    """

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None: ...


def silent(what: str, done: int, total: int, note: str = "") -> None:
    """Show nothing."""


@contextmanager
def bar(*, shown: bool = True) -> Iterator[Progress]:
    """A progress bar per task, with the time left; plain lines, one per tenth, if there is no terminal."""
    console = Console(file=sys.stderr)
    if not shown:
        yield silent
    elif console.is_terminal:
        with RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        ) as display:
            tasks, last = dict[str, TaskID](), dict[str, int]()

            def show(what: str, done: int, total: int, note: str = "") -> None:
                if what not in tasks:
                    tasks[what] = display.add_task(what, total=total, completed=done, note=note)
                elif done < last[what]:  # the task started again, and so does its time
                    display.reset(tasks[what])
                last[what] = done
                display.update(tasks[what], completed=done, total=total, note=note)

            yield show
    else:
        yield _Lines()


def brief(progress: Progress) -> Progress:
    """The same display in a terminal; nothing where it would be lines."""
    return silent if isinstance(progress, _Lines) else progress


class Stages:
    """Says which stage of a longer task begins, one line each.

    ``progress``: where it is said.
    ``what``: the task.
    ``names``: of all stages, in order.
    """

    def __init__(self, progress: Progress, what: str, names: Sequence[str]) -> None:
        self._progress, self._what, self._names = progress, what, tuple(names)

    def begin(self, name: str) -> None:
        """The stage of this name begins; those before it are done."""
        self._progress(self._what, self._names.index(name), len(self._names), f"now {name}")

    def end(self) -> None:
        """All stages are done."""
        self._progress(self._what, len(self._names), len(self._names), "done")


class _Lines:
    """One line per tenth of the work, with the time left; starts again if the task does."""

    def __init__(self) -> None:
        self._shown: dict[str, int] = {}
        self._started: dict[str, tuple[float, int]] = {}

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        tenth, before, now = 10 * done // max(total, 1), self._shown.get(what), time.monotonic()
        if tenth == before:
            return
        if before is None or tenth < before:
            self._started[what] = now, done
        self._shown[what] = tenth
        start, first = self._started[what]
        left = int((now - start) * (total - done) / max(done - first, 1))
        eta = f", ETA {timedelta(seconds=left)}" if left > 0 else ""
        print(f"{what}: {done} of {total}{eta} {note}".rstrip(), file=sys.stderr, flush=True)
