"""One thread runs the network for all visitors in turns.

The request of a visitor is a generator. It yields events to send, and ``Job``s to sample, and receives the tally of
each job. In a turn, a few visitors get one job each, in shared batches. New visitors come first.
"""

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from heatsmooth.certification.sampling import CHUNK, Job, Sampler, Tally
from heatsmooth.errors import InputError, first_line

Event = dict[str, Any]
"""A message to a visitor, as JSON."""

Study = Generator[Event | Job[Tally], Tally | None, None]
"""The events and sampling jobs of one request about one image."""


class BusyError(Exception):
    """Too many visitors for another request."""


class Task:
    """A running study and the events it has yielded; ``number`` is the unique index of its jobs."""

    def __init__(self, number: int, study: Study) -> None:
        self.number, self.study = number, study
        self.cancelled = False
        self.tally: Tally | None = None
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def advance(self) -> Job[Tally] | None:
        """Continue to the next sampling job; None if the study has ended."""
        if self.cancelled:
            self.study.close()
            return None
        try:
            wanted = self.study.send(self.tally)
            while isinstance(wanted, dict):
                self._events.put(wanted)
                wanted = self.study.send(None)
        except StopIteration:
            self._events.put(None)
            return None
        except Exception as error:
            self.fail(error)
            return None
        return wanted

    def fail(self, error: Exception) -> None:
        """Send the error to the visitor, in one line, and end."""
        if not isinstance(error, InputError):
            report_failure(error)
        message = (
            first_line(error) if isinstance(error, InputError) else "the server failed; its console has the reason"
        )
        self._events.put({"kind": "error", "message": message})
        self._events.put(None)

    def event(self, patience: float) -> Event | None:
        """The next event; None at the end. Raises ``queue.Empty`` after ``patience`` seconds without one."""
        return self._events.get(timeout=patience)


class Worker:
    """The thread of the network; ``most`` is the largest number of visitors at a time."""

    def __init__(self, sampler: Sampler, *, most: int) -> None:
        self._sampler, self._most, self._together = sampler, most, max(1, sampler.batch_size // CHUNK)
        self._tasks: deque[Task] = deque()
        self._present, self._count, self._closed = 0, 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    @property
    def present(self) -> int:
        """Current number of visitors."""
        return self._present

    def check_room(self) -> None:
        """Raise ``BusyError`` if another study would be refused."""
        if self._closed or self._present >= self._most:
            raise BusyError

    def submit(self, start: Callable[[int], Study]) -> Task:
        """Add a study before those that had a turn; ``start`` receives its number. Raises ``BusyError`` if full."""
        with self._changed:
            self.check_room()
            self._present += 1
            self._count += 1
            task = Task(self._count, start(self._count))
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
            task.fail(InputError("the server was stopped"))

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
            for job, tally in self._sampler.run(jobs.values()):
                ongoing[job.index].tally = tally
        except Exception as error:
            for task in ongoing.values():
                task.fail(error)
            return []
        return list(ongoing.values())


def report_failure(error: BaseException) -> None:
    """One line on the console about an error of the server."""
    sys.stderr.write(f"heatsmooth: warning: a request failed: {type(error).__name__}: {first_line(error)}\n")
