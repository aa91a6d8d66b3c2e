"""Certificates against closed forms, simulated coverage, and the command line."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

import heatsmooth as hs
from heatsmooth.certification.certificates import certificate, certify_each, certify_image
from heatsmooth.certification.radii import largest_radius, radii_of
from heatsmooth.certification.sampling import Ask, Tally
from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.line import run
from heatsmooth.data import ImageSet
from heatsmooth.results.certificates import Certificate, Certificates, read_certificates
from heatsmooth.results.guarantees import Basis, BasisKind, ClassFrom, Subject
from heatsmooth.results.logs import read_log
from heatsmooth.statistics.bounds import clopper_pearson_lower
from heatsmooth.statistics.sequences import anytime_lower
from tests.conftest import Linear, certificate_of, refused
from tests.faults.processes import Command, has_lines, in_two_processes

SIGMA = 0.25


def linear_problem(count: int) -> tuple[Linear, torch.Tensor, np.ndarray]:
    """Two classes, images 0.1σ to 3.3σ from the boundary: these distances are the true radii of the average."""
    direction = torch.zeros(16)
    direction[:2] = torch.tensor([0.6, 0.8])
    model = Linear(torch.stack([torch.zeros(16), 10 * direction]), torch.tensor([7.0, 0.0]))
    distances = torch.linspace(0.1, 3.3, count) * SIGMA * torch.tensor([1.0, -1.0]).repeat(count)[:count]
    images = 0.5 + distances[:, None] * direction
    return model.eval(), images.view(-1, 1, 4, 4).clamp(0, 1), distances.abs().numpy()


@pytest.mark.parametrize("class_from", ["noise", "clean"])
def test_radii_of_a_linear_classifier_are_true_and_close(class_from: ClassFrom) -> None:
    model, images, _ = linear_problem(14)
    true = ((images.flatten(1) @ torch.tensor([0.6, 0.8] + 14 * [0.0])) - 0.7).abs().numpy()
    found = hs.certify(model, images, sigma=SIGMA, n=100_000, class_from=class_from, batch_size=1000)
    assert (found.radii <= true + 1e-7).all()
    judged = (true >= 0.5 * SIGMA) & (true <= 3 * SIGMA)
    ratio = found.radii[judged] / true[judged]
    print(f"{class_from}: {judged.sum()} images, radius / true from {ratio.min():.3f} to {ratio.max():.3f}")
    assert judged.sum() >= 10
    assert ratio.min() >= 0.95
    assert found.subject == "average"
    assert (found.basis.alpha, found.basis.k) == (0.001, 1)


def simulated(
    settings: Settings, probabilities: np.ndarray, rng: np.random.Generator, asks: list[tuple[str, int]] | None = None
) -> tuple[int, np.ndarray]:
    """The chosen class and the estimation counts of a classifier whose class probabilities are these."""
    procedure = certify_image(settings)
    tallies: dict[str, Tally] = {}

    def answer(ask: Ask) -> Tally:
        if asks is not None:
            asks.append((ask.stream, ask.count))
        zeros = np.zeros(len(probabilities))
        tally = tallies.setdefault(ask.stream, Tally(zeros.astype(np.int64), zeros, zeros))
        tally.counts += rng.multinomial(ask.count, probabilities)
        return tally

    ask = next(procedure)
    while True:
        try:
            ask = procedure.send(answer(ask))
        except StopIteration as end:
            chosen = end.value.get("selection", end.value["clean"]).counts.argmax()
            return int(chosen), end.value["estimation"].counts


@pytest.mark.parametrize(
    "choices",
    [
        {"n": 500},
        {"n": 500, "bound": "two-sided"},
        {"n": 2000, "adaptive": True, "radii": (0.1, 0.25)},
        {"n": 1000, "adaptive": True, "tolerance": 0.05},
    ],
    ids=["fixed", "two-sided", "adaptive-radii", "adaptive-tolerance"],
)
@pytest.mark.parametrize("p", [0.45, 0.52, 0.66, 0.85, 0.99])
def test_certificates_are_false_with_probability_at_most_alpha(choices: dict[str, Any], p: float) -> None:
    """Against the true radius of the average, by the Neyman–Pearson lemma σ/2·(Φ⁻¹(p_A) − Φ⁻¹(p_B)), p_A + p_B = 1."""
    alpha, runs, rng = 0.05, 400, np.random.default_rng(0)
    settings = Settings(SIGMA, alpha=alpha, n0=20, **choices)
    truth = {0: SIGMA * special.ndtri(p), 1: SIGMA * special.ndtri(1 - p)}
    false = 0
    for _ in range(runs):
        chosen, counts = simulated(settings, np.array([p, 1 - p]), rng)
        radius, abstain = radii_of(counts[None], np.array([chosen]), settings)
        false += bool(not abstain[0] and radius[0] > truth[chosen])
    assert false <= alpha * runs + 4 * np.sqrt(alpha * (1 - alpha) * runs)


def test_adaptive_sampling_needs_far_fewer_draws() -> None:
    settings = Settings(SIGMA, n=10_000, adaptive=True, radii=(0.1, 0.25, 0.5))
    rng = np.random.default_rng(0)
    used = [simulated(settings, np.array([p, 1 - p]), rng)[1].sum() for p in (0.5, 0.75, 0.92, 0.999)]
    assert all(50 <= draws <= 2500 for draws in used)
    assert np.mean(used) < 1000


def test_counts_allow_every_other_certificate() -> None:
    record = certificate_of(
        counts=(900, 80, 20), selection=(90, 8, 2), clean_class=1, clean_probabilities=(0.2, 0.7, 0.1), sigma=SIGMA
    )
    adaptive = replace(record, adaptive=True)
    one = certificate(record, Settings(SIGMA, n=1000))
    assert (one.predicted, one.abstain) == (0, False)
    looser = certificate(record, Settings(SIGMA, n=1000, alpha=0.1))
    assert looser.radius > one.radius
    clean = certificate(record, Settings(SIGMA, n=1000, class_from="clean"))
    assert (clean.predicted, clean.abstain, clean.radius) == (1, True, 0.0)
    second = certificate(record, Settings(SIGMA, n=1000, top_k=2))
    assert (second.predicted, second.target) == (0, 1)
    assert second.radius > 0
    assert "top-2" in str(second.basis)
    misled = certificate(replace(record, selection=(8, 90, 2)), Settings(SIGMA, n=1000))
    assert (misled.predicted, misled.abstain) == (1, True)
    stopped = certificate(adaptive, Settings(SIGMA, n=1000, adaptive=True))
    assert stopped.radius < one.radius
    last, early = (certificate(adaptive, Settings(SIGMA, n=n, adaptive=True)).radius for n in (1000, 2000))
    for found, bound in ((last, clopper_pearson_lower), (early, anytime_lower)):
        expected = SIGMA * special.ndtri(float(bound(900, 1000, 0.0005)))
        assert 0 <= expected - found < 1e-9
    assert early < last == stopped.radius
    for bad, settings in (
        (adaptive, Settings(SIGMA, n=1000)),
        (record, Settings(0.5, n=1000)),
        (replace(record, selection=None, n0=0), Settings(SIGMA, n=1000)),
    ):
        with pytest.raises(hs.InputError, match="expected"):
            certificate(bad, settings)


def test_what_is_asked_for_is_what_cohen_asks_for() -> None:
    """Selection and estimation are separate streams, and the class is chosen before the estimation."""
    rng = np.random.default_rng(0)
    for class_from, expected in (
        ("noise", [("clean", 1), ("selection", 30), ("estimation", 137)]),
        ("clean", [("clean", 1), ("estimation", 137)]),
    ):
        asks: list[tuple[str, int]] = []
        simulated(Settings(SIGMA, n=137, n0=30, class_from=class_from), np.array([0.6, 0.4]), rng, asks)  # type: ignore[arg-type]
        assert asks == expected


def test_a_radius_is_rounded_down() -> None:
    counts = np.array([[k, 1000 - k] for k in range(560, 1000)])
    radius, _ = radii_of(counts, np.zeros(len(counts), dtype=np.int64), Settings(SIGMA, n=1000))
    exact = SIGMA * special.ndtri(clopper_pearson_lower(counts[:, 0], 1000, 0.001))
    assert (radius <= exact).all()
    assert (np.abs(radius - exact) < 1e-9).all()


def test_the_class_must_not_come_from_the_estimation_draws() -> None:
    """Two equal classes: any radius beyond 0 is false. Reusing the draws would certify the lucky class."""
    alpha, runs, rng = 0.05, 1500, np.random.default_rng(1)
    settings = Settings(SIGMA, n=15, n0=15, alpha=alpha)
    probabilities = np.array([0.5, 0.5])
    false = reused = 0
    for _ in range(runs):
        chosen, counts = simulated(settings, probabilities, rng)
        radius, abstain = radii_of(np.array([counts, counts]), np.array([chosen, int(counts.argmax())]), settings)
        false += bool(not abstain[0] and radius[0] > 0)
        reused += bool(not abstain[1] and radius[1] > 0)
    assert false <= alpha * runs + 4 * np.sqrt(alpha * (1 - alpha) * runs)
    assert reused > 1.5 * false


def test_bad_settings_are_refused() -> None:
    model, images = Linear(torch.eye(3, 16)).eval(), torch.zeros(1, 1, 4, 4)
    for bad, message in (
        ({"n": 9}, "`n`: expected enough samples to certify anything"),
        ({"n": 0}, "`n`: expected enough"),
        ({"n": 10, "adaptive": True}, "`n`"),
        ({"n": 10, "bound": "two-sided"}, "`n`"),
        ({"alpha": 0.0}, "`alpha`"),
        ({"n0": 0}, "`n0`"),
        ({"class_from": "x"}, "`class_from`"),
        ({"top_k": 0}, "`top_k`"),
        ({"top_k": 3}, "`top_k`: expected less than the 3 classes"),
        ({"top_k": 2, "adaptive": True}, "`adaptive`"),
        ({"radii": (-1.0,)}, "`radii`"),
        ({"n_wrong": 0}, "`n_wrong`: expected from 1 to `n` 10000"),
        ({"n_wrong": 50, "adaptive": True}, "`n_wrong`: expected top-1 certificates of a fixed n"),
    ):
        with pytest.raises(hs.InputError, match=message):
            hs.certify(model, images, sigma=SIGMA, **bad)
    for odd in (torch.zeros(1, 4, 4), np.zeros((1, 1, 4, 4)), [torch.zeros(1, 1, 4, 4)]):
        with pytest.raises(hs.InputError, match="expected images as a tensor"):
            hs.certify(model, odd, sigma=SIGMA)  # type: ignore[arg-type]
    with pytest.raises(hs.InputError, match="expected labels as a tensor"):
        hs.certify(model, images, labels=[0], sigma=SIGMA)  # type: ignore[call-overload]
    with pytest.raises(hs.InputError, match="`sigma"):
        Settings(0.0)
    with pytest.raises(hs.InputError, match=r"images in \[0, 1\]"):
        hs.certify(Linear(torch.eye(2, 16)).eval(), torch.full((1, 1, 4, 4), 2.0), sigma=SIGMA, n=100)
    with pytest.raises(hs.InputError, match="evaluation mode"):
        hs.certify(Linear(torch.eye(2, 16)).train(), torch.zeros(1, 1, 4, 4), sigma=SIGMA, n=100)


@pytest.mark.parametrize("class_from", ["noise", "clean"])
def test_fewer_draws_of_wrong_images_change_no_accuracy(class_from: str) -> None:
    model, images, _ = linear_problem(8)
    labels = torch.tensor([1, 0, 1, 0, 0, 1, 0, 1])
    known = {"labels": labels, "sigma": SIGMA, "n": 1000, "class_from": class_from}
    whole, short = (hs.certify(model, images, **known, n_wrong=few) for few in (None, 50))  # type: ignore[call-overload]
    wrong = whole.classes != labels.numpy()
    assert 0 < wrong.sum() < 8
    assert (short.counts.sum(1) == np.where(wrong, 50, 1000)).all()
    assert (short.counts[~wrong] == whole.counts[~wrong]).all()
    assert short.average_certified_radius == whole.average_certified_radius
    assert (short.certified_accuracy([0, 0.25, 0.5]) == whole.certified_accuracy([0, 0.25, 0.5])).all()
    assert (short.radii[wrong] <= whole.radii[wrong]).all()


def test_a_network_that_mixes_its_batch_is_refused() -> None:
    mixing = torch.nn.Sequential(
        torch.nn.BatchNorm2d(1, track_running_stats=False), torch.nn.Flatten(), torch.nn.Linear(16, 3)
    )
    with pytest.raises(hs.InputError, match="do not depend on its batch"):
        hs.certify(mixing.eval(), torch.rand(4, 1, 4, 4), sigma=SIGMA, n=100)


def test_certificates_of_different_kinds_do_not_mix() -> None:
    model, images, _ = linear_problem(3)
    a, b = (
        list(certify_each(model, ImageSet.of("i", images, None), Settings(SIGMA, n=n), Sampling())) for n in (100, 200)
    )
    with pytest.raises(hs.InputError, match="two different ones"):
        Certificates.of(a + b)
    with pytest.raises(hs.InputError, match="one kind"):
        Certificates.of([a[0], replace(b[1], basis=Basis(BasisKind.STATISTICAL, alpha=0.05))])
    for change in ({"sigma": 0.5}, {"class_from": "clean"}, {"subject": Subject.NETWORK}):
        with pytest.raises(hs.InputError, match=r"expected .* of one"):
            Certificates.of([a[0], replace(a[1], **change)])
    assert len(Certificates.of(a + a).radii) == 3


@pytest.mark.parametrize(
    ("choices", "classes"), [({}, 2), ({"top_k": 2}, 10), ({"bound": "two-sided"}, 10), ({"top_k": 5}, 1000)]
)
def test_the_cap_is_reached_when_all_draws_agree(choices: dict[str, Any], classes: int) -> None:
    settings = Settings(1.0, n=1000, **choices)
    counts = np.zeros((1, classes), dtype=np.int64)
    counts[0, 3 % classes] = 1000
    assert radii_of(counts, np.array([3 % classes]), settings)[0][0] == largest_radius(settings, classes)


@pytest.mark.parametrize(
    ("n", "most"), [(5, None), (9, None), (100, 1.5), (1000, 2.46), (10_000, 3.2), (100_000, 3.81)]
)
def test_the_largest_radius(n: int, most: float | None) -> None:
    found = largest_radius(Settings(1.0, n=n), classes=10)
    assert (None if found is None else round(found, 2)) == most


def test_settings_are_read_as_they_were_described() -> None:
    for settings in (
        Settings(SIGMA),
        Settings(1.0, n=1000, adaptive=True, radii=(0.25, 0.5)),
        Settings(SIGMA, n=1000, n_wrong=50, class_from="clean", bound="two-sided"),
    ):
        assert Settings.from_json(json.loads(json.dumps(settings.describe())), "run") == settings
    described: dict[str, Any] = Settings(SIGMA).describe()
    changes: tuple[dict[str, Any], ...] = ({"n": "many"}, {"sigma": -1}, {"later": 1})
    nothing: tuple[Any, ...] = (None, [], {})
    for wrong in (*nothing, *(described | change for change in changes)):
        with pytest.raises(
            hs.InputError, match=r"run: expected the settings of certificates in run\.json, got .*; cert"
        ):
            Settings.from_json(wrong, "run")


def test_accuracy_counts_abstentions_as_errors() -> None:
    model, images, _ = linear_problem(10)
    labels = model(images).argmax(1)
    found = hs.certify(model, images, sigma=SIGMA, n=1000, labels=labels)
    assert found.abstained.any()
    assert found.certified_accuracy([0.0])[0] == 1 - found.abstained.mean()
    assert found.average_certified_radius == pytest.approx(found.radii.mean())


def command(network: Path, out: Path, *more: str) -> list[str]:
    words = (
        f"certify --data fashion-mini --from {network} --sigma 0.25 --stride 150 --n 700 --n0 60 --seed 5 --device cpu"
    )
    return [*words.split(), "--out", str(out), "--quiet", "--json", *more]


def without_times(directory: Path) -> list[Certificate]:
    return [replace(record, seconds=0.0) for record in read_certificates(directory)]


@pytest.fixture(scope="module")
def undisturbed(network: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Certificate]:
    out = tmp_path_factory.mktemp("certified") / "run"
    assert run(command(network, out)) == 0
    return without_times(out)


@pytest.mark.parametrize("batch_size", ["7", "256", "1000"])
def test_any_batch_size_gives_the_same_records(
    network: Path, undisturbed: list[Certificate], tmp_path: Path, batch_size: str
) -> None:
    assert len(undisturbed) == 14
    assert any(record.abstain for record in undisturbed) or any(max(r.counts) < 700 for r in undisturbed)
    assert run(command(network, tmp_path, "--batch-size", batch_size)) == 0
    assert without_times(tmp_path) == undisturbed


def test_shards_merge_into_the_single_result(network: Path, undisturbed: list[Certificate], tmp_path: Path) -> None:
    for i in range(1, 5):
        assert run(command(network, tmp_path, "--shard", f"{i}/4")) == 0
    assert len(list(tmp_path.glob("certificates-*-of-4.jsonl"))) == 4
    assert without_times(tmp_path) == undisturbed


def test_two_processes_give_the_single_result(network: Path, undisturbed: list[Certificate], tmp_path: Path) -> None:
    assert json.loads(in_two_processes(command(network, tmp_path), tmp_path))["images"] == 14
    assert without_times(tmp_path) == undisturbed


def test_killed_and_repeated_the_records_are_the_same(
    network: Path, undisturbed: list[Certificate], tmp_path: Path
) -> None:
    out, file = tmp_path / "run", tmp_path / "run/certificates.jsonl"
    for wanted in (1, 5, 10):
        Command(command(network, out), tmp_path).kill_when(has_lines, file, wanted)
        with file.open("ab") as torn:
            torn.write(b'{"index": 77, "lab')
    assert run(command(network, out)) == 0
    assert without_times(out) == undisturbed


def test_another_model_noise_data_or_seed_is_refused(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(network, tmp_path, "--images", "1")) == 0
    capsys.readouterr()
    for change, named in (
        (["--sigma", "0.5"], "certificate"),
        (["--seed", "6"], "seed"),
        (["--stride", "200"], "data"),
        (["--mean", "0.3", "--std", "0.2"], "model"),
    ):
        assert run(command(network, tmp_path, "--images", "1", *change)) == 2
        assert re.search(rf"expected the {named}( \w+)? it was started with", capsys.readouterr().err)


def test_recomputed_and_exported(
    network: Path, undisturbed: list[Certificate], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(command(network, out, "--tsv", str(tmp_path / "log.tsv"))) == 0
    capsys.readouterr()
    words = ["recompute", "--from", str(out), "--alpha", "0.05", "--out", str(tmp_path / "other"), "--json"]
    assert run(words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert "alpha=0.05" in summary["basis"]
    before, after = Certificates.read(out), Certificates.read(tmp_path / "other")
    assert (after.radii >= before.radii).all()
    assert after.radii.sum() > before.radii.sum()
    rows = read_log(tmp_path / "log.tsv")
    assert [row.index for row in rows] == [record.index for record in undisturbed]
    for row, record in zip(rows, undisturbed, strict=True):
        assert row.abstain == record.abstain
        assert row.radius is not None
        assert 0 <= record.radius * (not record.abstain) - row.radius <= 1e-6
    assert run(["recompute", "--from", str(tmp_path), "--alpha", "0.1"]) == 2


def test_bad_use_is_one_line(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    for change, message in (
        (["--n", "9"], "--n: expected enough samples"),
        (["--sigma", "0"], "--sigma: expected a positive number"),
        (["--shard", "5/4"], "--shard: expected I/N"),
        (["--images", "0"], "--images"),
        (["--top-k", "10"], "--top-k: expected less than the 10 classes"),
        (["--radii", "a"], "--radii: expected numbers"),
    ):
        assert message in refused(capsys, *command(network, tmp_path / "run", *change))
        for file in (tmp_path / "run").iterdir():
            file.unlink()
    assert "--from: expected a value, got none" in refused(capsys, "certify", "--data", "fashion-mini")
    assert run(command(network, tmp_path / "broken", "--images", "2")) == 0
    capsys.readouterr()
    (tmp_path / "broken/certificates.jsonl").write_text('{"index": 1}\n{"index": 2}\n')
    assert "expected a certificate" in refused(capsys, *command(network, tmp_path / "broken", "--images", "2"))


def test_predict(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    from heatsmooth.data import load_images

    pictures = load_images("fashion-mini", "test").raw(torch.arange(3))
    for i, picture in enumerate(pictures):
        Image.fromarray(picture[0].numpy()).save(tmp_path / f"{i}.png")
    files = [str(tmp_path / f"{i}.png") for i in range(3)]
    words = ["predict", "--from", str(network), "--sigma", "0.25", "--noise-samples", "300", "--device", "cpu", *files]
    assert run([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert len(rows) == 3
    for row in rows:
        assert row["subject"] == "network"
        assert row["basis"] == "assumes an exact average"
        assert 0 <= row["l_bound"] <= SIGMA * np.sqrt(np.pi / 2) * row["probability"]
        assert row["average_class"] is None or 0 <= row["average_class"] < 10
    assert run(words) == 0
    assert "Assumes an exact average" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "bad.png").write_text("no image")
    assert run(["predict", "--from", str(network), str(tmp_path / "bad.png")]) == 2
    assert "expected a readable image" in capsys.readouterr().err
