"""Many clients of ``heatsmooth serve`` at once: what is lost, and how its memory grows.

    python -m benchmarks.serve_load [--clients 200] [--seconds 60]

The server is a process of its own, as people start it. Each client has its own loopback address (Linux), so each has
its own rate limit. It asks in turn for certificates as events and as JSON, predictions of a batch, the page and the
health, and sends at most one request with images per second. A request is lost if its connection fails, its answer is
cut, or its status is not 200.
"""

import argparse
import asyncio
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from heatsmooth.runs import provenance

MOST_CLIENTS, MOST_SECONDS = 500, 300
PATIENCE = 300.0
"""Seconds after which an answer counts as lost; long, because other programs may use the processor."""
ENDS = 10
"""Seconds at the start and at the end whose memory is compared."""
BETWEEN = 1.0
"""Seconds from one image request of a client to its next, so that it stays within the rate limit."""


@dataclass(frozen=True)
class Kind:
    """A kind of request: its head without the host, and its body."""

    name: str
    start: str
    headers: str = ""
    body: bytes = b""
    last: bytes = b""
    """What the last piece of a whole answer holds."""

    def content(self, host: str) -> bytes:
        """The request as it is sent."""
        lines = f"{self.start} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{self.headers}"
        length = f"Content-Length: {len(self.body)}\r\n" if self.body else ""
        return f"{lines}{length}\r\n".encode() + self.body


@dataclass
class Tally:
    """What happened."""

    answers: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start, and resident memory of the server in MB."""


def kinds() -> list[Kind]:
    """The requests, in the order in which a client sends them."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)).save(file, "PNG")
    image = file.getvalue()
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n' + image + b"\r\n"
    form, typed = 2 * part + b"--x--\r\n", "Content-Type: multipart/form-data; boundary=x\r\n"
    events = "Accept: text/event-stream\r\n"
    return [
        Kind("certify, events", "POST /api/certify", events, image, b'"kind":"done"'),
        Kind("page", "GET /", last=b"</html>"),
        Kind("predict, 2 images", "POST /api/predict", typed, form, b'"predictions"'),
        Kind("health", "GET /healthz", last=b'"ok"'),
        Kind("certify, JSON", "POST /api/certify", "", image, b'"certificates"'),
    ]


async def answer(kind: Kind, host: str, port: int, client: str) -> str:
    """Send a request; "" if the answer is whole, else what is wrong with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(client, 0), limit=1 << 20)
    try:
        writer.write(kind.content(host))
        await writer.drain()
        content = await reader.read(-1)
    finally:
        writer.close()
    head, _, body = content.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        return f"status {status[0].decode() if status else 'none'}"
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    whole = (
        body.endswith(b"0\r\n\r\n") if b"content-length" not in fields else len(body) == int(fields[b"content-length"])
    )
    return "" if whole and kind.last in body else "cut"


async def visit(number: int, url: str, until: float, tally: Tally) -> None:
    """One client."""
    host, port, order = urlsplit(url).netloc, urlsplit(url).port or 0, kinds()
    client = f"127.1.{number // 250}.{number % 250 + 1}"
    turn = number
    while time.monotonic() < until:
        kind, begin = order[turn % len(order)], time.monotonic()
        turn += 1
        try:
            async with asyncio.timeout(PATIENCE):
                wrong = await answer(kind, host, port, client)
        except (OSError, TimeoutError) as error:
            wrong = type(error).__name__
        taken = time.monotonic() - begin
        if wrong:
            tally.lost[f"{kind.name}: {wrong}"] += 1
        else:
            tally.answers[kind.name] += 1
            tally.seconds.setdefault(kind.name, []).append(taken)
        if kind.body:
            await asyncio.sleep(max(0.0, BETWEEN - taken))


async def watch(process: int, begin: float, tally: Tally) -> None:
    """Note the memory of the server, twice a second."""
    while True:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        tally.memory.append((time.monotonic() - begin, pages * os.sysconf("SC_PAGE_SIZE") / 1e6))
        await asyncio.sleep(0.5)


async def load(url: str, process: int, clients: int, seconds: float) -> Tally:
    """All clients at once; those before the clock starts make the server import and cache what it needs."""
    await asyncio.gather(*(visit(number, url, time.monotonic() + 3, Tally()) for number in range(clients)))
    tally, begin = Tally(), time.monotonic()
    watching = asyncio.create_task(watch(process, begin, tally))
    await asyncio.gather(*(visit(number, url, begin + seconds, tally) for number in range(clients)))
    watching.cancel()
    return tally


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """``heatsmooth serve`` with a small network."""
    from heatsmooth.models import NetworkSpec, build, save

    save(build(NetworkSpec("tiny", 10, 1)), folder / "tiny.safetensors")
    words = ["serve", "--from", str(folder / "tiny.safetensors"), "--sigma", "0.25", "--n", "100", "--image-size", "12"]
    command = [sys.executable, "-m", "heatsmooth", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[0], process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def mean(memory: list[tuple[float, float]], first: float, last: float) -> float:
    """The mean memory between two times."""
    return statistics.mean(amount for when, amount in memory if first <= when <= last)


def main() -> None:
    """Run the clients and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()
    if not (1 <= asked.clients <= MOST_CLIENTS and 1 <= asked.seconds <= MOST_SECONDS):
        parser.error(f"expected at most {MOST_CLIENTS} clients and {MOST_SECONDS} seconds")
    facts = provenance()
    print(json.dumps({name: facts[name] for name in ("commit", "hardware", "versions")}))
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (url, process):
        tally = asyncio.run(load(url, process.pid, asked.clients, asked.seconds))
    print(f"processes that wanted to run on the machine, mean of the last minute: {os.getloadavg()[0]:.1f}")
    end = max(when for when, _ in tally.memory)
    first, last = mean(tally.memory, 0, ENDS), mean(tally.memory, asked.seconds - ENDS, asked.seconds)
    print(f"{asked.clients} clients for {asked.seconds} s; the last answer came after {end:.0f} s")
    for name, count in tally.answers.items():
        taken = sorted(tally.seconds[name])
        print(
            f"  {name:18} {count:6} answers, seconds: median {statistics.median(taken):.2f}, "
            f"95% {taken[int(0.95 * len(taken))]:.2f}, largest {taken[-1]:.2f}"
        )
    print(f"lost: {sum(tally.lost.values())} of {sum(tally.answers.values())} {dict(tally.lost) or ''}  (none)")
    print(
        f"memory of the server: first {ENDS} s {first:.1f} MB, last {ENDS} s {last:.1f} MB: {last / first:.3f}  "
        "(0.9 to 1.1)"
    )
    print(f"the server ended with exit code {process.returncode}  (0)")


if __name__ == "__main__":
    main()
