"""Memory that image files of at most 10 MB take in ``predict``, ``imagefolder:`` and ``serve``, however they are made.

    python -m benchmarks.image_memory [--ways predict imagefolder serve] [--only WORD]

Each way runs in a process of its own, with a small network. Printed are MB above what the same process needed for an
ordinary image, as the peak of the resident memory that Linux reports. An image folder holds four copies of the file,
which are read at once; the server gets four copies at once.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

WAYS = ("predict", "imagefolder", "serve")
COPIES = 4
ALLOWED = 400
"""MB."""


def peak() -> float:
    """The most resident memory so far, MB. Not ``ru_maxrss``, which a process inherits from the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def forget_peak() -> None:
    """Count from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def predicting(network: Path) -> Callable[[Path], str]:
    """``heatsmooth predict``."""
    from heatsmooth.commands.line import run

    def use(file: Path) -> str:
        said = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = run(["predict", "--from", str(network), "--image-size", "224", str(file)])
        return said.getvalue().strip() if code else "read"

    return use


def reading(_: Path) -> Callable[[Path], str]:
    """``imagefolder:``."""
    import torch

    from heatsmooth import InputError
    from heatsmooth.data.folder import load_folder

    def use(file: Path) -> str:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(COPIES):
                Path(folder, f"{number}{file.suffix}").symlink_to(file)
            try:
                load_folder(Path(folder), 224).raw(torch.arange(COPIES))
            except InputError as error:
                return str(error)
        return "read"

    return use


def serving(_: Path) -> Callable[[Path], str]:
    """``heatsmooth serve``, with a network that takes no time."""
    import http.client

    from torch import nn

    from heatsmooth.certification.settings import Settings
    from heatsmooth.serving import ServedNetwork, Server
    from heatsmooth.serving.limits import Rate

    model = nn.Sequential(nn.AvgPool2d(112), nn.Flatten()).eval()
    server = Server(
        ServedNetwork(model, Settings(0.25, n=50, n0=50, alpha=0.1), seed=0, shape=(3, 224, 224)), port=0, examples=None
    )
    server.site.rate = Rate(10**9, 1)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def send(content: bytes) -> str:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=100)
        connection.request("POST", "/certify", content)
        answer = connection.getresponse()
        first = answer.readline().decode().strip()
        while answer.readline():
            pass
        return "read" if answer.status == 200 else first

    def use(file: Path) -> str:
        with ThreadPoolExecutor(COPIES) as visitors:
            return next(iter(set(visitors.map(send, [file.read_bytes()] * COPIES))))

    return use


def measure(way: str, folder: Path) -> None:
    """Print a line of JSON for each file."""
    use = {"predict": predicting, "imagefolder": reading, "serve": serving}[way](folder / "network.safetensors")
    for _ in range(2):
        use(folder / "ordinary.png")
    usual = peak()
    for file in sorted((folder / "bombs").iterdir()):
        forget_peak()
        said = use(file)
        print(json.dumps([file.name, file.stat().st_size, round(peak() - usual), said]), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--only", default="", help="Only files whose name holds this.")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure[0], Path(asked.measure[1]))
        return
    from heatsmooth.models import NetworkSpec, build, save
    from tests.faults.bombs import all_bombs, png

    worst: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(build(NetworkSpec("tiny", 10, 3)), folder / "network.safetensors")
        (folder / "ordinary.png").write_bytes(png(300, 300))
        (folder / "bombs").mkdir()
        for name, content in all_bombs():
            if asked.only in name:
                (folder / "bombs" / name).write_bytes(content)
        for way in asked.ways:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.image_memory", "--measure", way, str(folder)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            for line in done.stdout.splitlines():
                file, size, more, said = json.loads(line)
                worst[way] = max(worst.get(way, 0), more)
                print(f"{way:12} {file:44} {size / 1e6:6.2f} MB on disk {more:6} MB more  {said[-100:]}", flush=True)
    print(f"largest: {', '.join(f'{way} {more} MB' for way, more in worst.items())} (allowed: {ALLOWED})")


if __name__ == "__main__":
    main()
