"""Commands of many stages, and stages that are not shared, in two processes on a CPU."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from heatsmooth.commands import sharing
from heatsmooth.commands.line import run
from heatsmooth.models import save
from heatsmooth.results.attacks import read_attacks
from heatsmooth.results.certificates import read_certificates
from tests.conftest import colour_folders, tiny_classifier
from tests.faults.processes import in_two_processes


def test_compare_is_shared_by_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_classifier(channels=3), tmp_path / "mine.safetensors")
    words = f"compare imagenet-sample --rehearse --quiet --json --from {tmp_path}/mine.safetensors"
    words += f" {colour_folders(tmp_path)} --out {tmp_path}"
    found = json.loads(in_two_processes(f"{words}/two".split(), tmp_path))
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
    printed = in_two_processes(f"{words} --quiet --json --out {tmp_path}/audited".split(), tmp_path)
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
