"""Several pieces of work at the same time, each in a process with its part of the processor's cores."""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Self

from heatsmooth.errors import InputError
from heatsmooth.progress import Progress

Work = Callable[[Progress], object]
"""Work that tells its progress. It goes to another process, so it must be picklable."""

LOOKING = 0.5
"""Longest time between two looks at the processes, in seconds."""


def work_together(works: Mapping[str, Work], jobs: int, progress: Progress) -> None:
    """Do all works in their order, at most ``jobs`` at a time. Each has a process with an equal part of the cores.

    If one fails, its error is raised. If one fails, or this process is asked to stop (Ctrl-C, SIGTERM), the others are
    asked to stop too, so that they save what they have done. They also stop if this process is gone.

    ``works``: by the name under which their progress is shown.
    """
    import torch

    threads = max(1, torch.get_num_threads() // max(1, min(jobs, len(works))))
    waiting, running = list(works.items()), list[_Running]()
    with _asked_to_stop():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Running.begun(*waiting.pop(0), threads))
                wait([end for one in running for end in (one.told, one.process.sentinel)], LOOKING)
                for one in running.copy():
                    if one.has_ended(progress):
                        running.remove(one)
        finally:
            for one in running:
                one.process.terminate()
                one.told.close()  # nobody reads any more, so that nobody waits to be read
            for one in running:
                one.process.join()


@dataclass(frozen=True)
class _Running:
    """A process at work. What it tells comes through a pipe of its own: if it is killed, no other process waits."""

    name: str
    process: BaseProcess
    told: Connection

    @classmethod
    def begun(cls, name: str, work: Work, threads: int) -> Self:
        """A process that has begun this work."""
        context = multiprocessing.get_context("spawn")
        told, telling = context.Pipe(duplex=False)
        process = context.Process(target=_begin, args=(name, work, threads, telling))
        process.start()
        telling.close()
        return cls(name, process, told)

    def has_ended(self, progress: Progress) -> bool:
        """Show what the process has told since the last look. If it told an error or failed otherwise, raise that."""
        ended = not self.process.is_alive()  # before the look, so that nothing is told after it
        while (message := self._next()) is not None:
            if isinstance(message, BaseException):
                raise message
            progress(*message)
        if not ended:
            return False
        self.told.close()
        if code := self.process.exitcode:
            raise InputError(f"{self.name}: expected its process to finish, got {_ending(code)}")
        return True

    def _next(self) -> Any:
        """What it told next; None if there is nothing more for now."""
        try:
            return self.told.recv() if self.told.poll() else None
        except (EOFError, OSError):  # it is gone, perhaps in the middle of a message
            return None


@contextmanager
def _asked_to_stop() -> Iterator[None]:
    """SIGTERM is as Ctrl-C in this context."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:  # noqa: ARG001  # a handler
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ending(code: int) -> str:
    """How a process ended, and the remedy."""
    if code > 0:
        return f"exit code {code}; repeat the command to continue"
    return f"signal {-code}; if memory has run out, use fewer `jobs`; repeat the command to continue"


def _begin(name: str, work: Work, threads: int, telling: Connection) -> None:
    """What a process does. It tells its progress, or what went wrong."""
    import torch

    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the parent alone, which asks this process to stop, once
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    parent = multiprocessing.parent_process()

    def tell(what: str, done: int, total: int, note: str = "") -> None:
        if parent is not None and not parent.is_alive():
            signal.raise_signal(signal.SIGTERM)  # nobody waits for the result
        with suppress(ConnectionError):  # nobody reads it: this process is asked to stop
            telling.send((f"{name}, {what}", done, total, note))

    try:
        work(tell)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        with suppress(ConnectionError):
            telling.send(_portable(error))
        raise SystemExit(1) from None


def _portable(error: Exception) -> Exception:
    """The error, or one like it, that can go to another process. What is not expected takes its traceback along."""
    if not isinstance(error, InputError | OSError | MemoryError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # what is read back is what was just written
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
