"""Shell scripts whose commands start in milliseconds: ``heatsmooth`` and ``python`` fork from the preloaded server."""

import json
import os
import runpy
import socket
import socketserver
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from heatsmooth.data.arrays import load_npz
from heatsmooth.data.sources import FASHION_CLASSES, NAMED
from tests.faults.processes import server

ROOT = Path(__file__).parents[1]
SMALL = "SMALL_FASHION"
"""The variable that names a file with fewer images, which commands then take for ``fashion-mini``."""


def commands(folder: Path, bodies: dict[str, str]) -> dict[str, str]:
    """The environment, with commands of these names in ``folder`` that are shell scripts of these bodies."""
    folder.mkdir()
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


@contextmanager
def quick_start() -> Iterator[dict[str, str]]:
    """What ``heatsmooth`` and ``python`` are in a script, for ``commands``: each a process of its own, forked."""
    with tempfile.TemporaryDirectory() as folder, _Server(f"{folder}/socket", _Start) as starting:
        threading.Thread(target=starting.serve_forever, args=(0.05,), daemon=True).start()
        ask = f'exec "{sys.executable}" -S -E "{Path(__file__).with_name("started.py")}" "{folder}/socket"'
        yield {name: f'{ask} {name} "$@"' for name in ("heatsmooth", "python")}
        starting.shutdown()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _Start(socketserver.BaseRequestHandler):
    """Run what ``started.py`` asks for; answer with the exit code."""

    def handle(self) -> None:
        text, streams, *_ = socket.recv_fds(self.request, 1 << 20, 3)
        while part := self.request.recv(1 << 20):
            text += part
        connections = [Connection(stream) for stream in streams]
        process = server.Process(target=_work, args=(*json.loads(text), connections))
        process.start()
        for connection in connections:
            connection.close()
        process.join()
        self.request.sendall(str(process.exitcode).encode())


def _work(words: list[str], folder: str, environment: dict[str, str], streams: list[Connection]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if SMALL in environment:
        small = Path(environment[SMALL])
        NAMED["fashion-mini"] = lambda split, *_: load_npz("fashion-mini", small, split, FASHION_CLASSES)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = words
    if words[0] == "python":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path(words[1]).resolve().parent))
        runpy.run_path(words[1], run_name="__main__")
    else:
        from heatsmooth.commands.line import main

        main()
