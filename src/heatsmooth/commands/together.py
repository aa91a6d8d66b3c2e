"""Several pieces of work at the same time, each in a process with its part of the processor's cores."""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

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

    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    threads = max(1, torch.get_num_threads() // max(1, min(jobs, len(works))))
    waiting, running = list(works.items()), dict[str, BaseProcess]()
    with _asked_to_stop():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    name, work = waiting.pop(0)
                    running[name] = context.Process(target=_begin, args=(name, work, threads, told))
                    running[name].start()
                _show_next(told, progress)
                for name in [name for name, process in running.items() if not process.is_alive()]:
                    if code := running.pop(name).exitcode:
                        _show_last(told, progress)
                        raise InputError(f"{name}: expected its process to finish, got {_ending(code)}")
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.join()


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


def _show_next(told: Any, progress: Progress) -> None:
    """Show the next thing that a process tells within a moment, or raise its error."""
    try:
        message = told.get(timeout=LOOKING)
    except queue.Empty:
        return
    if isinstance(message, BaseException):
        raise message
    progress(*message)


def _show_last(told: Any, progress: Progress) -> None:
    """Show what a process told before it ended, or raise its error: it is there already, perhaps after other things."""
    end = time.monotonic() + 4 * LOOKING
    while time.monotonic() < end:
        _show_next(told, progress)


def _begin(name: str, work: Work, threads: int, told: Any) -> None:
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
        told.put((f"{name}, {what}", done, total, note))

    try:
        work(tell)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        told.put(_portable(error))
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
