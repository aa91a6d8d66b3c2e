"""Safe writing in a directory that several processes use: locks, and files that are replaced atomically."""

import fcntl
import glob
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from heatsmooth.errors import InputError

LOCK_FILE = ".lock"
ABANDONED_AFTER = 3600.0
"""Seconds after which a partly written file of another machine counts as abandoned."""


class DirectoryLock:
    """The right to work in a whole directory, or in one ``part`` of it, until it is closed or the process ends.

    A lock on the whole excludes every other process. A lock on a part excludes the whole and the same part. The
    directory must exist.
    """

    def __init__(self, directory: Path, part: str = "") -> None:
        with ExitStack() as held:
            _take(held, directory / LOCK_FILE, fcntl.LOCK_NB | (fcntl.LOCK_SH if part else fcntl.LOCK_EX))
            if part:
                _take(held, directory / f"{LOCK_FILE}{part}", fcntl.LOCK_NB | fcntl.LOCK_EX)
            self._held = held.pop_all()

    def close(self) -> None:
        """Release the lock."""
        self._held.close()


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Wait until no other process is inside this context for the same directory."""
    with ExitStack() as held:
        _take(held, directory / f"{LOCK_FILE}-moment", fcntl.LOCK_EX)
        yield


def _take(held: ExitStack, path: Path, kind: int) -> None:
    """Lock a file with these flags of ``flock``."""
    directory = path.parent
    try:
        file = held.enter_context(path.open("a"))
    except OSError as error:
        raise unwritable(directory, error) from None
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        raise InputError(
            f"{directory}: expected no other process here, got one at work; wait for it or name another `out`"
        ) from None
    except OSError as error:
        raise InputError(
            f"{directory}: expected a file system with file locks, got {error.strerror or error}; "
            "name an `out` on a local disk, or mount this file system with locks"
        ) from None


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
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
        with suppress(PermissionError):  # it belongs to another user
            os.kill(process, 0)
    except (OverflowError, ProcessLookupError):
        return False
    return True
