"""Several pieces of work at the same time, each in a process with its part of the processor's cores."""

import multiprocessing
import os
import queue
from collections.abc import Callable, Mapping
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

    If one fails, the others are asked to stop, and its error is raised. If this process ends, the others end too.

    ``works``: by the name under which their progress is shown.
    """
    import torch

    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    threads = max(1, torch.get_num_threads() // jobs)
    waiting, running = list(works.items()), dict[str, BaseProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, work = waiting.pop(0)
                running[name] = context.Process(target=_begin, args=(name, work, threads, os.getpid(), told))
                running[name].start()
            _show_next(told, progress)
            for name in [name for name, process in running.items() if not process.is_alive()]:
                if code := running.pop(name).exitcode:
                    while _show_next(told, progress):
                        pass  # what went wrong is the last that was told
                    raise InputError(f"{name}: expected its process to finish, got {_ending(code)}")
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _ending(code: int) -> str:
    """How a process ended, and the remedy."""
    if code > 0:
        return f"exit code {code}; repeat the command to continue"
    return f"signal {-code}; if memory has run out, use fewer `jobs`; repeat the command to continue"


def _show_next(told: Any, progress: Progress) -> bool:
    """Show the next thing that a process told, or raise its error; False if none comes within a moment."""
    try:
        message = told.get(timeout=LOOKING)
    except queue.Empty:
        return False
    if isinstance(message, str):
        raise InputError(message)
    progress(*message)
    return True


def _begin(name: str, work: Work, threads: int, parent: int, told: Any) -> None:
    """What a process does. It tells its progress, or one line about what went wrong."""
    import torch

    torch.set_num_threads(threads)

    def tell(what: str, done: int, total: int, note: str = "") -> None:
        if os.getppid() != parent:
            raise KeyboardInterrupt  # nobody waits for the result
        told.put((f"{name}, {what}", done, total, note))

    try:
        work(tell)
    except InputError as error:
        told.put(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
