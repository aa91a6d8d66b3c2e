"""Commands of many stages, and stages that are not shared, in two processes on a CPU."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from heatsmooth.commands import sharing
from heatsmooth.commands.line import run
from heatsmooth.models import save
from heatsmooth.results.attacks import read_attacks
from heatsmooth.results.certificates import read_certificates
from tests.conftest import tiny_classifier


def in_two_processes(words: str) -> str:
    """The standard output of a command under ``torchrun``, as documented."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = f"-m torch.distributed.run --nproc-per-node 2 --master-port {port} -m -- heatsmooth"
    done = subprocess.run(
        [sys.executable, *launch.split(), *words.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


def test_compare_is_shared_by_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_classifier(channels=3), tmp_path / "mine.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        folder = tmp_path / ("smoothing" if number % 2 else "held-out") / f"n{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    (tmp_path / "classes.json").write_text(json.dumps({f"n{number}": number for number in range(10)}))
    words = f"compare imagenet-sample --rehearse --quiet --json --from {tmp_path}/mine.safetensors"
    words += f" --data imagefolder:{tmp_path}/held-out --smooth-on imagefolder:{tmp_path}/smoothing --image-size 16"
    words += f" --class-index {tmp_path}/classes.json --out {tmp_path}"
    found = json.loads(in_two_processes(f"{words}/two"))
    assert run(f"{words}/one --device cpu".split()) == 0
    alone = json.loads(capsys.readouterr().out)
    assert found["methods"].keys() == alone["methods"].keys() == {"undefended", "bootcamp"}
    assert found["seconds"] > 0
    two, one = tmp_path / "two/seed-0", tmp_path / "one/seed-0"
    for kind in ("certified", "top-5"):
        counts = [{r.index: r.counts for r in read_certificates(p / f"undefended-{kind}")} for p in (two, one)]
        assert counts[0] == counts[1]
        assert len(counts[0]) == 4
    assert len(list((two / "bootcamp-certified").glob("run-*-of-2.json"))) == 2
    assert json.loads((two / "bootcamp/run.json").read_text())["processes"] == 2
    distances = [{r.index: r.distance for r in read_attacks(place / "undefended-ddn")} for place in (two, one)]
    assert distances[0] == distances[1]
    for name, value in alone["methods"]["undefended"].items():
        if not name.endswith("_seconds"):
            assert found["methods"]["undefended"][name] == value


def test_what_is_not_shared_is_done_once(tmp_path: Path) -> None:
    save(tiny_classifier(), tmp_path / "mine.safetensors")
    words = f"audit --data fashion-mini --from {tmp_path}/mine.safetensors --sigma 0.25 --images 2 --n 100 --steps 2"
    printed = in_two_processes(f"{words} --quiet --json --out {tmp_path}/audited")
    assert json.loads(printed)["images"] == 2
    assert json.loads((tmp_path / "audited/run.json").read_text())["status"] == "done"


@pytest.mark.parametrize("leads", [True, False])
def test_the_others_wait_for_the_leader(leads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    processes = SimpleNamespace(is_main_process=leads, wait_for_everyone=lambda: happened.append("waited"))

    def accelerator(device: str | None) -> SimpleNamespace:
        happened.append(f"on {device}")
        return processes

    monkeypatch.setattr(sharing, "accelerator", accelerator)

    def work() -> int:
        happened.append("worked")
        return 7

    assert sharing.by_the_leader("cpu", work) == (7 if leads else None)
    assert happened == (["on cpu", "worked", "waited"] if leads else ["on cpu", "waited"])
