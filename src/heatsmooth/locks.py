"""Safe writing in a directory that several processes use: locks, and files that are replaced atomically."""

import glob
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from filelock import lock_descriptor

from heatsmooth.errors import BusyError, InputError

WINDOWS = os.name == "nt"
LOCK_FILE = ".lock"
MOMENT_FILE = f"{LOCK_FILE}-moment"
REPLACE_WITHIN = 5.0
"""Seconds. On Windows, a file that another program has open, such as a virus scanner, cannot be replaced meanwhile."""
ABANDONED_AFTER = 3600.0
"""Seconds after which a partly written file of another machine counts as abandoned."""


class DirectoryLock:
    """The right to work in a whole directory, or in one ``part`` of it, until it is closed or the process ends.

    A lock on the whole excludes every other process. A lock on a part excludes the whole and the same part. The
    directory must exist. The operating system releases the lock of a process that is killed.

    Only exclusive locks are used, because filelock has no shared ones for open files. The whole holds one file, a part
    its own. Both look at the files of the others when they start, one process at a time.
    """

    def __init__(self, directory: Path, part: str = "") -> None:
        with ExitStack() as held, one_at_a_time(directory):
            parts = [file for file in directory.glob(f"{LOCK_FILE}-*") if file.name != MOMENT_FILE]
            for excluded in [directory / LOCK_FILE] if part else parts:
                with ExitStack() as for_a_moment:
                    _take(for_a_moment, excluded)
            _take(held, directory / f"{LOCK_FILE}{part}")
            self._held = held.pop_all()

    def close(self) -> None:
        """Release the lock."""
        self._held.close()


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Wait until no other process is inside this context for the same directory."""
    with ExitStack() as held:
        _take(held, directory / MOMENT_FILE, wait=True)
        yield


def _take(held: ExitStack, path: Path, *, wait: bool = False) -> None:
    """Lock a file, which is created if it does not exist, until ``held`` is closed."""
    directory = path.parent
    try:
        file = held.enter_context(path.open("ab"))
    except OSError as error:
        raise unwritable(directory, error) from None
    try:
        taken = lock_descriptor(file.fileno(), blocking=wait)
    except OSError as error:
        raise InputError(
            f"{directory}: expected a file system with file locks, got {error.strerror or error}; "
            "name an `out` on a local disk, or mount this file system with locks"
        ) from None
    if not taken:
        raise BusyError(
            f"{directory}: expected no other process here, got one at work; wait for it or name another `out`"
        )


def unwritable(directory: Path, error: OSError) -> InputError:
    """The error for a directory in which nothing can be written."""
    return InputError(f"`out` {directory}: expected a writable directory, got {error.strerror}; name another directory")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: after a kill at any moment, it holds the whole old or the whole new content.

    Only a regular file is replaced, never a device, a pipe or a directory. Temporary files that killed processes of
    this machine left behind are removed.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a file to write, got a directory or device; name another path")
    prefix = f".{path.name}.{platform.node()}-"
    remove_abandoned(path.parent, f"{glob.escape(prefix)}*.part")
    part = path.with_name(f"{prefix}{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if not WINDOWS:  # which has no way to sync a directory
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _replace(part: Path, path: Path) -> None:
    """Rename ``part`` to ``path``; on Windows, try again while another program has ``path`` open."""
    deadline = time.monotonic() + (REPLACE_WITHIN if WINDOWS else 0.0)
    while True:
        try:
            part.replace(path)
        except PermissionError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
        else:
            return


def remove_abandoned(directory: Path, pattern: str) -> None:
    """Remove the temporary files of ``write_atomically`` that no process writes any more."""
    for file in directory.glob(pattern):
        if is_abandoned(file):
            with suppress(OSError):
                file.unlink()


def is_abandoned(part: Path) -> bool:
    """Whether no process writes this temporary file of ``write_atomically`` any more.

    On this machine: the process has ended. On another machine, whose processes are not visible: the file has not
    changed for ``ABANDONED_AFTER``. A file that is not named after a process is abandoned.
    """
    writer, _, process = part.name.removesuffix(".part").rpartition("-")
    if not process.isdecimal():
        return True
    if writer.endswith(f".{platform.node()}"):
        return not _is_alive(int(process))
    with suppress(FileNotFoundError):
        return time.time() - part.stat().st_mtime > ABANDONED_AFTER
    return False


def _is_alive(process: int) -> bool:
    """Whether a process with this number runs on this machine."""
    try:
        return bool(psutil.pid_exists(process))
    except OverflowError:  # larger than any number of a process
        return False
