"""``heatsmooth attack`` with real processes."""

import json
from pathlib import Path

import numpy as np
import pytest

from heatsmooth.commands.attack import AttackSummary
from heatsmooth.commands.line import run
from heatsmooth.results.attacks import AttackResult, AttackResults, read_attacks
from heatsmooth.results.guarantees import Subject
from heatsmooth.results.schema import to_json
from tests.conftest import refused
from tests.faults.processes import Command, has_lines


def command(network: Path, out: Path, *more: str) -> list[str]:
    words = (
        f"attack --data fashion-mini --from {network} --stride 20 --steps 8 --batch-size 20 --device cpu --quiet --json"
    )
    return [*words.split(), "--out", str(out), *more]


@pytest.fixture(scope="module")
def undisturbed(network: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AttackResult]:
    out = tmp_path_factory.mktemp("attacked") / "run"
    assert run(command(network, out)) == 0
    with np.load(out / "gallery.npz", allow_pickle=False) as gallery:
        assert gallery["clean"].shape == gallery["adversarial"].shape == gallery["noisy"].shape
        assert gallery["clean"].dtype == np.uint8
        assert (gallery["clean_class"] == gallery["label"]).all()
        assert (gallery["adversarial_class"] != gallery["label"]).all()
        assert gallery["distance"].tolist() == sorted(gallery["distance"].tolist())
    return read_attacks(out)


def test_records_and_statistics(undisturbed: list[AttackResult]) -> None:
    assert len(undisturbed) == 100
    assert list(to_json(undisturbed[0])) == ["index", "label", "success", "distance", "norm_steps", "subject"]
    summary = AttackSummary.of(AttackResults.of(undisturbed), out="", asked=100)
    assert summary.images == 100 == summary.wrong_from_the_start + summary.attacked
    assert summary.attacked == summary.succeeded + summary.censored
    assert (summary.median_distance_of_attacked or 0.0) > 0
    results = AttackResults(np.array([np.inf, np.inf, 0.5, 0.0]), Subject.NETWORK)
    censored = AttackSummary.of(results, out="", asked=4)
    assert (censored.attacked, censored.censored, censored.median_distance_of_attacked) == (3, 2, None)
    assert censored.mean_distance_of_succeeded == 0.5


def test_shards_merge_exactly(network: Path, undisturbed: list[AttackResult], tmp_path: Path) -> None:
    for i in (3, 1, 4, 2):
        assert run(command(network, tmp_path, "--shard", f"{i}/4")) == 0
    assert read_attacks(tmp_path) == undisturbed


def test_killed_and_repeated_the_records_are_the_same(
    network: Path, undisturbed: list[AttackResult], tmp_path: Path
) -> None:
    file = tmp_path / "attacks.jsonl"
    for wanted in (1, 45):
        Command(command(network, tmp_path), tmp_path).kill_when(has_lines, file, wanted)
    assert run(command(network, tmp_path)) == 0
    assert read_attacks(tmp_path) == undisturbed


def test_the_average_is_attacked_too(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--noise-samples", "8", "--sigma", "0.25", "--images", "10", "--loss", "per-sample"]
    assert run(command(network, tmp_path, *more)) == 0
    assert json.loads(capsys.readouterr().out)["subject"] == "average"
    assert {record.subject for record in read_attacks(tmp_path)} == {"average"}


def test_bad_use_is_one_line(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, message in (
        (["--attack", "fgsm"], "--attack: expected pgd or ddn"),
        (["--eps", "0"], "--eps"),
        (["--steps", "0"], "--steps"),
        (["--noise-samples", "5"], "--sigma: expected a positive number beside --noise-samples"),
        (["--loss", "per-sample"], "--noise-samples beside it"),
        (["--top-k", "10"], "--top-k"),
    ):
        assert message in refused(capsys, *command(network, tmp_path / "out", *change))
