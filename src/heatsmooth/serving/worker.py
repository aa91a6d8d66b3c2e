"""One thread runs the network for all visitors in turns.

The request of a visitor is a generator. It yields events to send, and ``Job``s to sample, and receives the tally of
each job. In a turn, a few visitors get one job each, in shared batches. New visitors come first.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable

from heatsmooth.certification.sampling import CHUNK, Job, Sampler, Tally
from heatsmooth.errors import InputError, first_line
from heatsmooth.serving.events import Event, Failed

Study = Generator[Event | Job[Tally], Tally | None, None]
"""The events and sampling jobs of one request about one image."""

Tell = Callable[[Event | None], None]
"""Receives each event of a study, and None at its end, in the thread of the worker."""

FAILURE = "the server failed; its console has the reason"
STOPPED = "the server was stopped"


class BusyError(Exception):
    """Too many visitors for another request."""


class Task:
    """A running study; ``number`` is the unique index of its jobs, and ``tell`` gets its events."""

    def __init__(self, number: int, study: Study, tell: Tell) -> None:
        self.number, self.study, self.tell = number, study, tell
        self.cancelled = False
        self.tally: Tally | None = None

    def advance(self) -> Job[Tally] | None:
        """Continue to the next sampling job; None if the study has ended."""
        if self.cancelled:
            self.study.close()
            return None
        try:
            wanted = self.study.send(self.tally)
            while isinstance(wanted, Event):
                self.tell(wanted)
                wanted = self.study.send(None)
        except StopIteration:
            self.tell(None)
            return None
        except Exception as error:
            self.fail(error)
            return None
        return wanted

    def fail(self, error: Exception) -> None:
        """Send the error to the visitor, in one line, and end."""
        if not isinstance(error, InputError):
            report_failure(error)
        self.tell(Failed(message=first_line(error) if isinstance(error, InputError) else FAILURE))
        self.tell(None)


class Worker:
    """The thread of the network; ``most`` is the largest number of visitors at a time.

    ``sampler``: None if nothing is sampled. Then a study is over after its first turn.
    """

    def __init__(self, sampler: Sampler | None, *, most: int) -> None:
        self._sampler, self._most = sampler, most
        self._together = 1 if sampler is None else max(1, sampler.batch_size // CHUNK)
        self._tasks: deque[Task] = deque()
        self._present, self._count, self._closed = 0, 0, False
        self.samples = 0
        """Noise samples evaluated so far."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    @property
    def present(self) -> int:
        """Current number of visitors."""
        return self._present

    @property
    def is_working(self) -> bool:
        """Whether it still takes studies."""
        return self._thread.is_alive() and not self._closed

    def check_room(self, more: int = 1) -> None:
        """Raise ``BusyError`` if so many further studies would be refused."""
        if self._closed or self._present + more > self._most:
            raise BusyError

    def submit(self, start: Callable[[int], Study], tell: Tell) -> Task:
        """Add a study before those that had a turn; ``start`` receives its number. Raises ``BusyError`` if full."""
        with self._changed:
            self.check_room()
            self._present += 1
            self._count += 1
            task = Task(self._count, start(self._count), tell)
            self._tasks.appendleft(task)
            self._changed.notify()
            return task

    def close(self) -> None:
        """Stop after the current turn and notify all visitors."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while turn := self._next_turn():
            ongoing = self._played(turn)
            with self._changed:
                self._tasks.extend(ongoing)
                self._present -= len(turn) - len(ongoing)
        for task in self._tasks:
            task.fail(InputError(STOPPED))

    def _next_turn(self) -> list[Task]:
        """The tasks of the next turn; empty when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closed)
            if self._closed:
                return []
            return [self._tasks.popleft() for _ in range(min(self._together, len(self._tasks)))]

    def _played(self, turn: list[Task]) -> list[Task]:
        """Sample for each task; returns the tasks that continue."""
        jobs = {task.number: job for task in turn if (job := task.advance()) is not None}
        ongoing = {task.number: task for task in turn if task.number in jobs}
        try:
            before = _drawn(jobs.values())
            for job, tally in self._sampler.run(jobs.values()) if self._sampler and jobs else ():
                ongoing[job.index].tally = tally
            self.samples += _drawn(jobs.values()) - before
        except Exception as error:
            for task in ongoing.values():
                task.fail(error)
            return []
        return list(ongoing.values())


def _drawn(jobs: Iterable[Job[Tally]]) -> int:
    return sum(tally.n for job in jobs for tally in job.tallies.values())


def report_failure(error: BaseException) -> None:
    """One line on the console about an error of the server."""
    sys.stderr.write(f"heatsmooth: warning: a request failed: {type(error).__name__}: {first_line(error)}\n")
