"""Commands in real processes that start in milliseconds: forked from a server that has imported everything."""

import errno
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

SCALE = int(os.environ.get("HEATSMOOTH_TORTURE", "1"))
"""How many times as long as usual: ``make torture`` sets it."""

if sys.platform == "win32":
    server = multiprocessing.get_context("spawn")
else:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.faults.preloaded"])


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (minus the signal, if one ended it) and what it printed."""

    code: int
    out: str
    err: str

    def refused(self) -> bool:
        """Whether it said in one line what was wrong, and nothing else."""
        one_line = self.err.startswith("heatsmooth: error: ") and self.err.count("\n") == 1
        return self.code == 2 and one_line and self.out == ""


class Command:
    """A heatsmooth command at work in a process of its own.

    ``folder``: where it starts. ``largest_file``: files that would grow beyond so many bytes fail, as on a full disk.
    ``changes``: it counts what it changes below ``scratch`` and kills itself when it has made so many changes.
    ``environment``: variables that it has beside those of the tests.
    """

    def __init__(
        self,
        words: Iterable[object],
        scratch: Path,
        *,
        largest_file: int | None = None,
        folder: Path | None = None,
        changes: float | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._files = [scratch / f"{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        arguments = ([str(word) for word in words], *self._files, largest_file, folder, scratch, changes, environment)
        self._process: ForkServerProcess = server.Process(target=_work, args=arguments)
        self._process.start()

    def running(self) -> bool:
        """Whether it is still at work."""
        return self._process.is_alive()

    def kill_when(self, ready: Callable[..., bool], *arguments: object) -> bool:
        """SIGKILL as soon as ``ready`` of these arguments is true; whether that ended it."""
        while self.running() and not ready(*arguments):
            time.sleep(0.005)
        return self.kill()

    def kill(self) -> bool:
        """SIGKILL; whether that ended it (it may have been done)."""
        self._process.kill()
        self._process.join()
        return self._process.exitcode == -9

    def end(self, timeout: float = 120) -> Ended:
        """Wait for it."""
        self._process.join(timeout)
        if self._process.is_alive():
            self.kill()
        code = self._process.exitcode
        out, err = (file.read_text(errors="replace") if file.exists() else "" for file in self._files)
        for file in self._files:
            file.unlink(missing_ok=True)
        assert code is not None
        return Ended(code, out, err)


def has_lines(file: Path, count: int) -> bool:
    """Whether so many lines were written to a file."""
    return file.exists() and file.read_bytes().count(b"\n") >= count


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def start_two(words: Iterable[object], scratch: Path) -> list[Command]:
    """A command in two processes that share it, with the environment that ``torchrun`` gives them; the first leads."""
    words = list(words)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = ({"RANK": rank, "LOCAL_RANK": rank} for rank in "01")
    return [Command(words, scratch, environment=shared | rank) for rank in ranks]


def in_two_processes(words: Iterable[object], scratch: Path) -> str:
    """The standard output of a command that two processes share."""
    ended = [process.end(300) for process in start_two(words, scratch)]
    assert [process.code for process in ended] == [0, 0], ended
    return ended[0].out


CHANGES = "changes"
"""The file in ``scratch`` with a byte for each change."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")


def changed_paths(event: str, arguments: tuple[object, ...]) -> list[str]:
    """The real paths that an audited event is about to change."""
    if event not in CHANGING and not (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
        return []
    paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
    return [os.path.realpath(os.fsdecode(path)) for path in paths if isinstance(path, (str, bytes, os.PathLike))]


def confine_writing(root: Path) -> None:
    """From now on this process can change nothing outside ``root``: a safety net for command lines made by chance."""
    allowed = (os.path.realpath(root) + "/", "/dev/null", "/dev/shm/")

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        for real in changed_paths(event, arguments):
            if not (real + "/").startswith(allowed):
                raise PermissionError(errno.EROFS, "Read-only file system", real)

    sys.addaudithook(refuse)


def die_after_changes(number: float, root: Path, count: Path) -> None:
    """SIGKILL to this process once it has made that number of changes below ``root``; ``count`` has a byte for each.

    Changes are those of ``CHANGING``, files opened to write, and every fsync, of which none is without a write.
    """
    below, sync = os.path.realpath(root) + "/", os.fsync
    left, file = itertools.count(number, -1), os.open(count, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def change() -> None:
        if next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, b".")

    def noticed(event: str, arguments: tuple[object, ...]) -> None:
        if any(real.startswith(below) for real in changed_paths(event, arguments)):
            change()

    def synced(fd: Any) -> None:
        change()
        sync(fd)

    os.fsync = synced
    sys.addaudithook(noticed)


def _work(
    words: list[str],
    out: Path,
    err: Path,
    largest_file: int | None,
    folder: Path | None,
    scratch: Path,
    changes: float | None,
    environment: dict[str, str] | None,
) -> None:
    from heatsmooth.commands.line import run

    for stream, file in ((sys.stdout, out), (sys.stderr, err)):
        with file.open("wb") as target:
            os.dup2(target.fileno(), stream.fileno())
    os.environ.update(environment or {})
    if folder is not None:
        os.chdir(folder)
        confine_writing(scratch)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if changes is not None:
        die_after_changes(changes, scratch, scratch / CHANGES)
    sys.exit(run(words))
