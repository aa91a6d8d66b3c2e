"""Who else is at work in a directory: locks, and half-written files that somebody may still be writing."""

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from heatsmooth.errors import InputError

LOCK_FILE = ".lock"
OTHERS_TIME = 3600.0
"""Seconds after which a half-written file of another machine is abandoned."""


class DirectoryLock:
    """The right to work in the whole of a directory, or in one ``part`` of it, until it is closed or the process ends.

    A whole excludes every other process; a part excludes the whole and the same part. The directory must exist.
    """

    def __init__(self, directory: Path, part: str = "") -> None:
        with ExitStack() as held:
            _take(held, directory, directory / LOCK_FILE, fcntl.LOCK_SH if part else fcntl.LOCK_EX)
            if part:
                _take(held, directory, directory / f"{LOCK_FILE}{part}", fcntl.LOCK_EX)
            self._held = held.pop_all()

    def close(self) -> None:
        """Let others have it."""
        self._held.close()


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """For a moment, no other process of any part is in here: it waits."""
    with ExitStack() as held:
        _take(held, directory, directory / f"{LOCK_FILE}-moment", fcntl.LOCK_EX, wait=True)
        yield


def _take(held: ExitStack, directory: Path, path: Path, kind: int, *, wait: bool = False) -> None:
    """Lock a file; if another process has it, ``wait`` or refuse."""
    file: IO[str] = held.enter_context(_opened(directory, path))
    try:
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"{directory}: expected no other process here, got one at work; wait for it or name another --out"
        ) from None
    except OSError as error:
        raise InputError(
            f"{directory}: expected a file system with file locks, got {error.strerror or error}; "
            "name an --out on a local disk, or mount this one with locks"
        ) from None


def _opened(directory: Path, path: Path) -> IO[str]:
    try:
        return path.open("a")
    except OSError as error:
        raise InputError(
            f"--out {directory}: expected a writable directory, got {error.strerror}; name another one"
        ) from None


def is_abandoned(part: Path) -> bool:
    """Whether nobody writes this file of ``write_atomically`` any more.

    Of this machine: its process is gone. Of another one, whose processes cannot be seen: it is untouched for an hour.
    A file that is not named after a process is of an older version, and abandoned.
    """
    writer, _, process = part.name.removesuffix(".part").rpartition("-")
    if not process.isdecimal():
        return True
    if writer.endswith(f".{platform.node()}"):
        return not _is_alive(int(process))
    with suppress(FileNotFoundError):
        return time.time() - part.stat().st_mtime > OTHERS_TIME
    return False


def _is_alive(process: int) -> bool:
    """Whether there is a process of that number on this machine."""
    try:
        with suppress(PermissionError):  # of another user
            os.kill(process, 0)
    except (OverflowError, ProcessLookupError):
        return False
    return True
