"""A budget for many images: never exceeded, spent by counts alone, and the same after any interruption."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heatsmooth as hs
from heatsmooth.certification.certificates import certificate, uniform_number
from heatsmooth.certification.settings import Budget, Sampling, Settings
from heatsmooth.certification.spending import Task, certify_within, positions_of
from heatsmooth.commands.certified import CertifiedRun
from heatsmooth.commands.line import run
from heatsmooth.data import ImageSet
from heatsmooth.results.certificates import Certificate, Certificates, read_certificates
from heatsmooth.results.guarantees import Basis
from heatsmooth.results.rounds import Round, read_rounds
from tests.conftest import refused
from tests.test_certificates import SIGMA, linear_problem, without_times

RADII = (0.1, 0.25, 0.5)


def spent(budget: Budget, labels: torch.Tensor | None = None, **more: Any) -> tuple[list[Certificate], list[Round]]:
    """The certificates of 40 images of a linear classifier within a budget, and the rounds."""
    model, images, _ = linear_problem(40)
    data = ImageSet.of("images", images, labels)
    settings = Settings(SIGMA, n=5000, adaptive=True, radii=RADII, class_from="clean")
    sampling = Sampling(batch_size=more.pop("batch_size", None))
    task = Task(data, positions_of(data, range(40)), settings, sampling, budget)
    rounds: list[Round] = []
    certificates = list(certify_within(model, task, record=rounds.append, **more))
    return [replace(item, seconds=0.0, label=None) for item in certificates], rounds


def test_a_budget_is_spent_where_it_certifies_most_whatever_the_labels() -> None:
    first, rounds = spent(Budget(40_000))
    assert sum(item.samples for item in first) <= 40_000
    again, _ = spent(Budget(40_000), torch.zeros(40, dtype=torch.int64), rounds=rounds[:3], batch_size=77)
    assert again == first
    assert {str(item.basis) for item in first} == {"statistical, alpha=0.001, one-sided, any stopping"}
    model, images, true = linear_problem(40)
    radii = np.array([item.radius for item in first])
    assert (radii <= true + 1e-7).all()
    fixed = hs.certify(model, images, sigma=SIGMA, n=999, class_from="clean").radii
    more = [int((radii >= r).sum() - (fixed >= r).sum()) for r in RADII]
    assert min(more) >= 0
    assert sum(more) > 0
    last, few = spent(Budget(seconds=1e-9))
    assert len(few) == 1
    assert {item.n for item in last} == {50}


@pytest.mark.parametrize(("text", "share"), [("100", "34"), ("90s", "90s"), ("1.5m", "90s"), ("2h", "7200s")])
def test_budgets_are_read_and_shared(text: str, share: str) -> None:
    budget = Budget.parse(text)
    assert str(budget.share(3, 3)) == share
    assert budget.samples is None or sum(budget.share(i, 3).samples or 0 for i in (1, 2, 3)) == budget.samples


def words(network: Path, out: Path, *more: str) -> list[str]:
    text = f"certify --data fashion-mini --from {network} --sigma 0.25 --stride 200 --images 10 --n 600 --n0 20"
    return [*text.split(), "--device", "cpu", "--out", str(out), "--quiet", "--json", *more]


def test_killed_and_repeated_a_budget_is_spent_once(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    asked = ("--budget", "2500", "--radii", "0.1,0.25")
    assert run(words(network, whole, *asked)) == 0
    assert set(json.loads(capsys.readouterr().out)["certified_accuracy"]) == {"0.1", "0.25"}
    certificates, rounds = without_times(whole), read_rounds(whole / "rounds.jsonl")
    assert 10 * 71 < sum(item.samples for item in certificates) <= 2500
    lines = (whole / "rounds.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == len(rounds) > 2
    again.mkdir()
    (again / "run.json").write_text((whole / "run.json").read_text())
    (again / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:20])
    (again / "certificates.jsonl").write_text((whole / "certificates.jsonl").read_text().splitlines()[0] + "\n")
    assert run(words(network, again, *asked)) == 0
    assert without_times(again) == certificates
    assert (again / "rounds.jsonl").read_text().count("\n") == len(lines)
    assert run(words(network, again, *asked)) == 0, "a finished run spends nothing"
    assert (again / "rounds.jsonl").read_text().count("\n") == len(lines)
    assert CertifiedRun.read(again, "from").settings == Settings(0.25, n=600, n0=20, adaptive=True, radii=(0.1, 0.25))
    assert run(["recompute", "--from", str(again), "--norm", "linf"]) == 0, "the asked L2 radii are out of reach in L∞"
    for copied in (0, 1, 2):
        (again / "certificates.jsonl").unlink()
        (again / "rounds.jsonl").write_text("".join(lines[: copied + 1]) + lines[copied])
        capsys.readouterr()
        assert "lines were repeated or lost" in refused(capsys, *words(network, again, *asked))
    for part in ("1/2", "2/2"):
        assert run(words(network, tmp_path / "shards", *asked, "--shard", part)) == 0
    shards = read_certificates(tmp_path / "shards")
    assert len(shards) == 10
    assert sum(item.samples for item in shards) <= 2500
    capsys.readouterr()
    for message, change in {
        "--budget: expected samples as 1000000": ("--budget", "lots"),
        "--budget: expected at least 710 samples": ("--budget", "709", "--radii", "0.1"),
        "--budget: expected --radii": ("--budget", "9999"),
        "--budget: expected no --means": ("--budget", "9999", "--radii", "0.1", "--means"),
        "--prior: expected --adaptive and --radii": ("--prior", str(whole), "--radii", "0.1"),
        "--radii: expected --adaptive or --budget": ("--radii", "0.1"),
    }.items():
        assert message in refused(capsys, *words(network, tmp_path / "wrong", *change))
        assert not (tmp_path / "wrong").exists()


def test_randomised_bounds_record_their_number_and_counts_give_a_prior(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "randomised"
    assert run(words(network, out, "--bound", "randomised")) == 0
    randomised = read_certificates(out)
    assert [item.uniform for item in randomised] == [uniform_number(0, item.index) for item in randomised]
    assert randomised[0].basis == Basis.read("statistical, alpha=0.001, randomised")
    assert run(["recompute", "--from", str(out), "--bound", "one-sided", "--out", str(tmp_path / "plain")]) == 0
    plain, tighter = Certificates.read(tmp_path / "plain"), Certificates.read(out)
    assert (plain.counts == tighter.counts).all()
    assert (plain.radii <= tighter.radii).all()
    assert plain.radii.sum() < tighter.radii.sum()
    with pytest.raises(hs.InputError, match="`bound` randomised: expected counts with the random number"):
        certificate(replace(randomised[0], uniform=None), Settings(0.25, n=600, bound="randomised"))
    capsys.readouterr()
    assert run(["radii", "--from", str(out), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    cohen = [kind["name"] for kind in compared["kinds"]].index("Cohen")
    assert [row["radii"][cohen] for row in compared["images"]] == [
        None if x == 0 else x for x in tighter.radii.tolist()
    ]
    asked = ("--prior", str(out), "--adaptive", "--radii", "0.1,0.25")
    assert "expected counts of another seed" in refused(capsys, *words(network, tmp_path / "same", *asked))
    assert run(words(network, tmp_path / "prior", *asked, "--seed", "1")) == 0
    assert CertifiedRun.read(tmp_path / "prior", "from").settings.prior is not None
    assert len(read_certificates(tmp_path / "prior")) == 10


def test_settings_from_before_mixtures_are_read_as_they_were() -> None:
    old = {"sigma": 0.25, "n": 10_000, "adaptive": True, "radii": [0.1, 0.25]}
    assert Settings.from_json(old, "run") == Settings(0.25, adaptive=True, radii=(0.1, 0.25), sequence="beta")
    fixed = {"sigma": 0.25, "n": 10_000}
    assert Settings.from_json(fixed, "run") == Settings(0.25)
    assert "sequence" not in Settings(0.25).describe()
    recorded = Certificates.read(Path(__file__).parents[1] / "results/cifar10-adaptive/adaptive")
    assert len(recorded) == 200
