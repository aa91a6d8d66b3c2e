"""The cost of a certification, beforehand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heatsmooth.commands import estimate
from heatsmooth.commands.line import run
from heatsmooth.models import save
from heatsmooth.results.certificates import read_certificates
from tests.conftest import tiny_classifier


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(estimate, "MEASURED_SECONDS", 0.3)
    monkeypatch.setattr(estimate, "WARM_UP_SECONDS", 0.0)
    save(tiny_classifier(), tmp_path / "model.safetensors")
    return tmp_path


def estimated(network: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, float]:
    words = f"estimate --data fashion-mini --from {network} --sigma 0.25 --quiet --json --device cpu"
    assert run([*words.split(), *more]) == 0
    found: dict[str, float] = json.loads(capsys.readouterr().out)
    return found


def test_samples_and_hours(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(network.iterdir())
    found = estimated(network, capsys, "--images", "10", "--n", "1000", "--shard", "1/4", "--throughput", "100")
    assert found["samples"] == 10 * (1 + 100 + 1000)
    assert found["hours"] == pytest.approx(found["samples"] / found["samples_per_second"] / 3600, rel=0.01)
    assert found["hours_per_shard"] == pytest.approx(found["hours"] * 3 / 10)
    assert found["device_hours_at_throughput"] == pytest.approx(11010 / 100 / 3600)
    assert "least_samples" not in found
    assert sorted(network.iterdir()) == before
    adaptive = estimated(network, capsys, "--images", "10", "--adaptive", "--class-from", "clean")
    assert (adaptive["samples"], adaptive["least_samples"]) == (10 * 10_001, 10 * 51)


def test_a_run_draws_as_many_samples_and_four_shards_merge_into_it(
    network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ["--images", "6", "--n", "100"]
    expected = estimated(network, capsys, *some)["samples"]
    words = f"certify --data fashion-mini --from {network} --sigma 0.25 --quiet --json --device cpu".split()
    assert run([*words, *some, "--out", str(network / "whole")]) == 0
    for part in (2, 4, 1, 3):
        assert run([*words, *some, "--shard", f"{part}/4", "--out", str(network / "shards")]) == 0
    whole, shards = (
        [replace(certificate, seconds=0.0) for certificate in read_certificates(network / name)]
        for name in ("whole", "shards")
    )
    assert whole == shards
    assert sum(certificate.samples for certificate in whole) == expected


def test_what_cannot_be_is_refused(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"estimate --data fashion-mini --from {network} --sigma 0.25 --quiet".split()
    for more, message in ((["--throughput", "0"], "--throughput"), (["--n", "5"], "--n: expected enough")):
        assert run([*words, *more]) == 2
        assert message in capsys.readouterr().err
