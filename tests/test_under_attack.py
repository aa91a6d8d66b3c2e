"""The radius that holds under attack: in a half-space model, where everything is known, and through the commands."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import special, stats

import heatsmooth as hs
from heatsmooth import InputError
from heatsmooth.certification.noisy_passes import keyed_passes
from heatsmooth.commands.line import run
from heatsmooth.data import load_images
from heatsmooth.models import load as load_model
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.noisy_passes import NoisyPasses
from heatsmooth.results.one_pass import read_one_pass
from heatsmooth.results.radii import radii_of
from heatsmooth.statistics.attacked import SLACK, attacked, attacked_votes, risks_by_count
from heatsmooth.statistics.bounds import Floats
from heatsmooth.under_attack import AttackCalibration, calibrate_under_attack, check_images
from tests.conftest import certificate_of

SIGMA, EPSILON, CAP = 0.25, 0.1, 2.3 * 0.25
"""The half-space model: class 1 where the coordinate t is positive. Its average has the radius |t| there."""


def certified(t: Floats) -> Certificates:
    rows = [
        certificate_of(
            index=i,
            sigma=SIGMA,
            predicted=int(value > 0),
            target=int(value > 0),
            radius=min(abs(value), CAP),
            abstain=False,
            clean_probabilities=(0.5, 0.5),
            counts=(50, 50),
        )
        for i, value in enumerate(t.tolist())
    ]
    return Certificates.of(rows)


def passes_of(t: Floats, noise: float, count: int, random: np.random.Generator) -> NoisyPasses:
    """Noisy passes of a network whose log odds grow with the coordinate."""
    z = t[:, None] + noise * random.normal(size=(len(t), count))
    doubts = special.ndtr(-np.abs(z) / SIGMA)
    return NoisyPasses(classes=(z > 0).astype(np.int64), doubts=doubts, number_of_classes=2, noise=noise)


def false_under(calibration: AttackCalibration, t: Floats, shift: float) -> Floats:
    """The exact probability of a false claim about each image, if the attacker moves it by ``shift`` in the worse way.

    A pass at z claims the certified class too far if |z| is at least ``far``, and the other class if it is past 0 by
    ``wrong``.
    """
    doubts, radii = np.array(calibration.steps).T
    starts = np.append(-special.ndtri(doubts) * SIGMA, np.inf)
    margin = np.abs(t)
    far = starts[np.searchsorted(radii, np.minimum(margin, CAP), side="right")]
    wrong = np.maximum(starts[0], 0)

    def chance(q: Floats) -> Floats:
        return np.asarray(stats.binom.sf(calibration.needed - 1, calibration.passes, q))

    def false(centre: Floats) -> Floats:
        own, other = (
            special.ndtr((centre - far) / calibration.noise),
            special.ndtr((-centre - wrong) / calibration.noise),
        )
        return chance(own) + chance(other)

    return np.maximum(false(margin + shift), false(margin - shift))


@pytest.mark.parametrize(("passes", "noise"), [(1, 1.0), (5, 0.5)])
@pytest.mark.parametrize("rho", [0, 0.25, 0.5, 1])
def test_it_covers_under_the_worst_attack_and_not_under_a_longer_one(rho: float, passes: int, noise: float) -> None:
    """ρ and the noise are in units of σ."""
    risks, broken = [], []
    for seed in range(3):
        random = np.random.default_rng(seed)
        t, new = SIGMA * random.normal(0.9, 1, 300), SIGMA * random.normal(0.9, 1, 4000)
        samples = passes_of(t, noise * SIGMA, 500, random)
        calibration = calibrate_under_attack(
            certified(t), samples, rho=rho * SIGMA, epsilon=EPSILON, votes=passes, seed=seed
        )
        assert calibration.steps
        risks.append(false_under(calibration, new, rho * SIGMA).mean())
        broken.append(false_under(calibration, new, 3 * max(rho, 0.25) * SIGMA).mean())
    error = np.sqrt(EPSILON * (1 - EPSILON) / 200 / len(risks))
    assert np.mean(risks) <= EPSILON + 3 * error
    assert np.mean(broken) > EPSILON + 3 * error


def test_an_attack_raises_a_probability_as_neyman_and_pearson_say() -> None:
    p = np.linspace(0, 1, 201)
    np.testing.assert_allclose(attacked(p, 0), p, atol=1e-12)
    np.testing.assert_allclose(attacked(special.ndtr(-1.0), 1), 0.5)
    assert attacked([0, 1], 2).tolist() == [0, 1]
    assert (np.diff(attacked(p, 0.7), 2) <= 1e-12).all()  # concave
    for passes, needed in ((1, 1), (2, 2), (5, 3), (10, 6)):
        votes = attacked_votes(p, 0.5, passes=passes, needed=needed)
        np.testing.assert_allclose(votes, stats.binom.sf(needed - 1, passes, attacked(p, 0.5)), atol=1e-12)
        unshifted = stats.binom.sf(needed - 1, passes, p)
        assert (votes <= attacked(unshifted, 0.5 * np.sqrt(passes)) + 1e-9).all()  # the bound in all k·d dimensions


@pytest.mark.parametrize(("samples", "shift", "passes"), [(20, 1.0, 1), (300, 0.5, 1), (300, 2.0, 2), (200, 1.0, 10)])
def test_risks_are_not_too_small_on_average(samples: int, shift: float, passes: int) -> None:
    """At probabilities between those at which they are made."""
    risks = risks_by_count(samples, shift, passes=passes, needed=passes // 2 + 1)
    p = special.ndtr(np.linspace(-6, 6, 4801) + 0.003)
    expected = stats.binom.pmf(np.arange(samples + 1), samples, p[:, None]) @ risks
    shortfall = attacked_votes(p, shift, passes=passes, needed=passes // 2 + 1) - expected
    assert shortfall.max() <= SLACK
    assert (np.diff(risks) >= 0).all()
    assert risks[-1] == 1
    np.testing.assert_allclose(risks_by_count(100, 0, passes=1, needed=1), np.arange(101) / 100)


def attack_calibration(**changes: Any) -> AttackCalibration:
    facts = {"steps": ((0.3, 0.1), (0.1, 0.4)), "classes": 3, "rho": 0.15, "noise": 0.25, "passes": 3, "needed": 2}
    facts |= {"epsilon": 0.05, "alpha": 0.001, "sigma": 0.25, "samples": 100, "fitted": 50, "corrected": 100}
    return AttackCalibration(**{**facts, **changes})


def test_most_passes_must_claim_the_class_and_the_radius() -> None:
    sure, fair, other = [0.95, 0.03, 0.02], [0.75, 0.15, 0.1], [0.02, 0.96, 0.02]
    unsure, broken = [0.6, 0.3, 0.1], [np.nan] * 3
    rows = [[sure, sure, other], [sure, fair, other], [sure, other, unsure], [broken, sure, sure], [broken] * 3]
    claims = attack_calibration().claims(torch.tensor(rows))
    assert claims.classes.tolist() == [0, 0, 0, 0, -1]
    assert claims.radii.tolist() == [0.4, 0.1, 0, 0.4, 0]
    np.testing.assert_allclose(claims.received_radii, [0.25, 0, 0, 0.25, 0])
    with pytest.raises(InputError, match=r"expected \(images, 3 passes, classes\), got \(1, 2, 3\)"):
        attack_calibration().claims([[sure, sure]])


def test_it_is_stored_exactly_and_says_what_it_rests_on() -> None:
    calibration = attack_calibration()
    stored = json.loads(json.dumps(calibration.to_json()))
    assert AttackCalibration.from_json(stored) == calibration
    assert calibration.basis == Basis.read(stored["basis"])
    assert calibration.basis == Basis(BasisKind.UNDER_ATTACK, confidence=1 - 0.05 - 0.001, rho=0.15, passes=3)
    assert "rho=0.15, passes=3" in stored["basis"]
    for change in ({"format": 9}, {"needed": 1}, {"rho": -1}, {"passes": "3"}, {"steps": [[0.1, 0.2], [0.2, 0.3]]}):
        with pytest.raises(InputError, match=r"calibrate again|under_attack"):
            AttackCalibration.from_json(stored | change)
    with pytest.raises(InputError, match="expected all fields"):
        AttackCalibration.from_json({key: value for key, value in stored.items() if key != "noise"})


def test_what_cannot_be_calibrated_is_refused() -> None:
    random = np.random.default_rng(0)
    t = SIGMA * random.normal(0.9, 1, 60)
    few, certificates = passes_of(t, SIGMA, 20, random), certified(t)
    change: dict[str, Any]
    for change, message in (
        ({"rho": -0.1}, "`under_attack`: expected a distance"),
        ({"votes": 0}, "`passes`: expected 1 to 100, got 0"),
        ({"rho": SIGMA}, "`noise_samples`: expected enough to see a risk below epsilon 0.1 under attack, got 20"),
        ({"epsilon": 0.01}, "expected at least 148 certified images"),
    ):
        settings: dict[str, Any] = {"rho": 0.1, "epsilon": EPSILON, **change}
        with pytest.raises(InputError, match=message):
            calibrate_under_attack(certificates, few, **settings)
    with pytest.raises(InputError, match=r"expected at least 686 certified images for epsilon 0\.01 under attack"):
        check_images(685, 1000, 1.0, 1, epsilon=0.01, rho=0.1)
    check_images(686, 1000, 1.0, 1, epsilon=0.01, rho=0.1)
    with pytest.raises(InputError, match="expected noisy passes of 60 images"):
        calibrate_under_attack(certificates, passes_of(t[1:], SIGMA, 20, random), rho=0.1, epsilon=EPSILON)


def test_the_commands_use_secret_noise_and_state_the_guarantee(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(network, tmp_path / "n")
    common = "--quiet --device cpu"
    certify = f"certify --data fashion-mini --from {tmp_path}/n --sigma 0.25 --n 60 --n0 10 --stride 20 --images 90"
    assert run(f"{certify} --out {tmp_path}/c {common}".split()) == 0
    capsys.readouterr()
    calibrate = f"calibrate --from {tmp_path}/n --certificates {tmp_path}/c --epsilon 0.3 --passes 3 --device cpu"
    calibrate += " --quiet --noise 0.25 --under-attack 0.05 --out"
    assert run([*calibrate.split(), str(tmp_path / "k"), "--noise-samples", "40", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rho"], said["passes"], said["subject"]) == (0.05, 3, "average")
    assert said["basis"].startswith("conformal under attack, 1-epsilon-alpha=0.699, rho=0.05, passes=3")
    one_pass = f"one-pass --data fashion-mini --from {tmp_path}/k --images 20 {common} --under-attack"
    for out in ("p", "q"):
        assert run([*one_pass.split(), "--out", str(tmp_path / out)]) == 0
    rows, others = read_one_pass(tmp_path / "p"), read_one_pass(tmp_path / "q")
    assert str(radii_of(rows).basis) == said["basis"]
    assert not {row.noise_key for row in rows} & {row.noise_key for row in others}
    calibration = AttackCalibration.from_json(json.loads((tmp_path / "k/calibration_under_attack.json").read_text()))
    images = load_images("fashion-mini", "test").images(torch.arange(20))
    keys = [row.noise_key or "" for row in rows]
    again = keyed_passes(load_model(tmp_path / "k"), images, keys, noise=0.25, count=3)
    claims = calibration.claims(again)
    assert [row.predicted for row in rows] == claims.classes.tolist()
    np.testing.assert_allclose([row.radius for row in rows], claims.radii, atol=1e-8)
    assert all((row.received_radius or 0) <= max(0, row.radius - 0.05) + 1e-8 for row in rows)
    np.savez(tmp_path / "i.npz", images=np.zeros((90, 28, 28), np.uint8))
    Image.fromarray((255 * images[0, 0]).byte().numpy()).save(tmp_path / "a.png")
    predict = ["predict", "--from", str(tmp_path / "k"), "--under-attack", str(tmp_path / "a.png")]
    capsys.readouterr()
    assert run([*predict, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert row["under_attack"]["basis"] == said["basis"]
    assert row["under_attack"]["rho"] == 0.05
    assert run(predict) == 0
    assert "about the image before an attack within 0.05" in capsys.readouterr().out
    assert run(f"report {tmp_path}/p --out {tmp_path}/r.html --quiet".split()) == 0
    assert "Calibrated radii that hold under attack" in (tmp_path / "r.html").read_text()
    capsys.readouterr()
    for words, message in (
        (f"export --from {tmp_path}/k --sigma 0.25 --out {tmp_path}/m.onnx", "secret noise that an ONNX file cannot"),
        (f"one-pass --data fashion-mini --from {tmp_path}/k --out {tmp_path}/z", "expected a calibrated model"),
        (f"predict --from {tmp_path}/n --under-attack {tmp_path}/a.png", "run heatsmooth calibrate --under-attack RHO"),
        (f"{calibrate} {tmp_path}/z --held-out {tmp_path}/c", "expected none beside --under-attack"),
        (
            f"calibrate --from {tmp_path}/n --certificates {tmp_path}/c --passes 5 --out {tmp_path}/z",
            "name the distance",
        ),
        (f"{calibrate} {tmp_path}/z --noise-samples 5", "expected 10 to 5000, got 5"),
        (f"{calibrate} {tmp_path}/z --data npz:{tmp_path}/i.npz", "expected the images of the certificates"),
    ):
        assert run(words.split()) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1


def test_the_library_claims_what_the_passes_say() -> None:
    """A network with two classes that depend on the mean pixel alone."""

    class Mean(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            level = 40 * (images.mean((1, 2, 3)) - 0.5)
            return torch.stack([-level, level], 1)

    model, images = Mean().eval(), torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    passes = hs.noisy_passes(model, images, noise=0.25, count=60)
    assert passes.classes.shape == passes.doubts.shape == (6, 60)
    again = hs.noisy_passes(model, images, noise=0.25, count=60)
    np.testing.assert_array_equal(passes.doubts, again.doubts)
    calibration = attack_calibration(classes=2, passes=5, needed=3)
    claims, keys = hs.claims_under_attack(model, images, calibration)
    expected = calibration.claims(keyed_passes(model, images, keys, noise=0.25, count=5))
    np.testing.assert_array_equal(claims.radii, expected.radii)
    assert len(set(keys)) == 6
