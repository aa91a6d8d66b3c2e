"""Commands in real processes that start in milliseconds: forked from a server that has imported everything."""

import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

SCALE = int(os.environ.get("HEATSMOOTH_TORTURE", "1"))
"""How many times as long as usual: ``make torture`` sets it."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.faults.preloaded"])


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

    ``largest_file``: files that would grow beyond so many bytes fail, as on a full disk.
    """

    def __init__(self, words: Iterable[object], scratch: Path, *, largest_file: int | None = None) -> None:
        self._files = [scratch / f"{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        arguments = ([str(word) for word in words], *self._files, largest_file)
        self._process: ForkServerProcess = _SERVER.Process(target=_work, args=arguments)
        self._process.start()

    def running(self) -> bool:
        """Whether it is still at work."""
        return self._process.is_alive()

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


def _work(words: list[str], out: Path, err: Path, largest_file: int | None) -> None:
    from heatsmooth.cli import run

    for stream, file in ((sys.stdout, out), (sys.stderr, err)):
        with file.open("wb") as target:
            os.dup2(target.fileno(), stream.fileno())
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.exit(run(words))
