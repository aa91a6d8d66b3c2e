"""The one-pass radius: its coverage on exchangeable images, how much it keeps, what it refuses."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from heatsmooth import InputError
from heatsmooth.calibration import Calibration, calibrate, coverage
from heatsmooth.learnt_radius import doubt_of
from heatsmooth.results.certificates import Certificate, Certificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.statistics.bounds import Floats
from tests.conftest import certificate_of

SIGMA, ALPHA, CAP = 0.25, 0.001, 0.616
KINDS = ("alike", "tied", "unrelated", "inverted")


def records(doubts: Any, radii: Any, *, classes: int = 4, agree: Any = True) -> list[Certificate]:
    """Certified images of class 1 with these doubts and radii; abstained where the radius is not positive."""
    doubt, radius, same = np.broadcast_arrays(np.asarray(doubts, float), np.asarray(radii, float), agree)
    rows = []
    for index, (d, r, s) in enumerate(zip(doubt.tolist(), radius.tolist(), same.tolist(), strict=True)):
        probabilities = [d / (classes - 1)] * classes
        probabilities[1] = 1 - d
        claim = {"predicted": 1 if s else 2, "radius": max(r, 0.0), "abstain": r <= 0}
        rows.append(certificate_of(index=index, sigma=SIGMA, clean_probabilities=tuple(probabilities), **claim))
    return rows


def certified(*how: Any, **more: Any) -> Certificates:
    return Certificates.of(records(*how, **more))


def world(images: int, seed: int, kind: str = "alike", *, drop: float = 0.0) -> list[Certificate]:
    """Exchangeable images whose radius goes with their confidence as on CIFAR-10: a fifth are 0, a tenth at the cap."""
    random = np.random.default_rng(seed)
    confidence = random.normal(0.9, 1.0, images)
    latent = confidence + random.normal(0.1 - drop, 0.6, images)
    if kind == "unrelated":
        latent = random.permutation(latent)
    if kind == "inverted":
        latent = 1.8 - latent
    radius = np.clip(SIGMA * latent, 0, CAP)
    if kind == "tied":
        confidence, radius = confidence.round(), np.floor(5 * radius) / 5
    return records(special.ndtr(-np.maximum(confidence, -0.5)), radius)


def calibrated(rows: Iterable[Certificate], epsilon: float = 0.1, **options: Any) -> Calibration:
    return calibrate(Certificates.of(rows), epsilon=epsilon, **options)


def over_claims(images: int, epsilon: float, splits: int, kind: str, held_out: int = 100) -> tuple[float, float]:
    """The mean share of held-out images with R̂ > R, and its standard error if exactly ε of them are expected."""
    shares = []
    for split in range(splits):
        rows = world(images + held_out, split, kind)
        calibration = calibrated(rows[:images], epsilon, seed=splits + split)
        shares.append(1 - coverage(calibration, Certificates.of(rows[images:])).coverage)
    corrected = images - images // 3
    return float(np.mean(shares)), float(np.sqrt(epsilon * (1 - epsilon) * (1 / corrected + 1 / held_out) / splits))


@pytest.mark.parametrize("kind", KINDS)
def test_it_covers_new_images_of_the_same_kind(kind: str) -> None:
    share, error = over_claims(150, 0.1, 100, kind)
    assert share <= 0.1 + 5 * error


def test_it_covers_with_the_fewest_images() -> None:
    """20 correct: of 21 exchangeable images ε = 0.05 allows one, and one rank too low is seen."""
    share, error = over_claims(30, 0.05, 400, "alike")
    assert 0.02 <= share <= 0.05 + 5 * error


def test_a_radius_that_can_be_foretold_is_kept() -> None:
    confidence = np.random.default_rng(0).uniform(-0.5, 3, 1500)
    rows = records(special.ndtr(-confidence), np.clip(0.2 * confidence, 0, CAP))
    found = coverage(calibrated(rows[:900], 0.05), Certificates.of(rows[900:]))
    assert found.kept is not None
    assert found.kept > 0.9
    assert found.coverage > 0.92


def test_the_doubt_weighs_the_runner_up() -> None:
    """The odds of the doubt are those of all other classes, times a power of the share that the second one has."""
    shares = [0.6, 0.3, 0.1]
    assert doubt_of(shares, 3) == pytest.approx(0.4)
    odds = 0.4 / 0.6 * 0.75**2
    assert doubt_of(shares, 3, 2.0) == pytest.approx(odds / (1 + odds))
    assert doubt_of([1.0, 0.0, 0.0], 3, 2.0) < 1e-11
    assert doubt_of([0.7, 0.3], 2, -3.0) == pytest.approx(0.3), "with two classes it has all of it"


def runner_ups(images: int, seed: int) -> Certificates:
    """Flat probabilities: the radius goes with the lead over the second class, whatever the others have."""
    random = np.random.default_rng(seed)
    lead, others = random.uniform(0, 2, images), random.uniform(0, 1, images)
    rows = []
    for index, (first, other) in enumerate(zip(lead, others, strict=True)):
        shares = special.softmax([first, 0.0, *np.log([other + 1e-3] * 6)])
        claim = {"predicted": 0, "clean_class": 0, "radius": 0.3 * float(first), "abstain": first == 0, "label": 0}
        rows.append(certificate_of(index=index, sigma=SIGMA, clean_probabilities=tuple(shares.tolist()), **claim))
    return Certificates.of(rows)


def test_the_lead_over_the_runner_up_is_used_where_it_tells_the_radius() -> None:
    calibration, held_out = calibrate(runner_ups(900, 0), epsilon=0.05), runner_ups(900, 1)
    found = coverage(calibration, held_out)
    assert calibration.runner_up > 0.5
    assert found.kept is not None
    assert found.kept > 0.85
    assert found.coverage > 0.92
    again = Calibration.from_json(json.loads(json.dumps(calibration.to_json())))
    assert again == calibration
    assert calibration.to_json()["format"] == 3
    for wrong in (1e300, 10**400, "much"):
        with pytest.raises(InputError, match="calibration: expected"):
            Calibration.from_json(calibration.to_json() | {"runner_up": wrong})
    alone = calibrate(runner_ups(900, 0), epsilon=0.05, runner_up=0.0)
    assert alone.to_json()["format"] == 1
    without = {name: value for name, value in calibration.to_json().items() if name != "runner_up"}
    with pytest.raises(InputError, match="expected format 1, got 3"):
        Calibration.from_json(without)


def test_the_budget_is_spent_where_it_buys_most() -> None:
    """Some 7 % of the sure images have no radius: too many if each kind had its own ε, not for all together."""
    random = np.random.default_rng(0)
    sure = np.arange(1200) % 2 == 0
    radii = np.where(sure, 0.6 * (random.random(1200) > 0.075), random.uniform(0, 0.1, 1200))
    assert np.quantile(radii[sure], 0.05) == 0
    large, small = radii_at(calibrated(records(np.where(sure, 0.1, 0.6), radii), 0.05), [0.1, 0.6])
    assert large == 0.6
    assert small < 0.02


def test_coverage_says_what_it_counts() -> None:
    found = coverage(calibrated(world(1000, 0), 0.05), Certificates.of(world(4000, 1)))
    assert found.kept is not None
    assert found.claimed is not None
    assert 0 < found.kept < found.claimed < 1
    assert 0 < found.positive < found.images == 4000
    low, high = found.interval
    assert low < found.coverage == found.covered / found.images < high


def test_a_smaller_epsilon_gives_smaller_radii_everywhere() -> None:
    rows = world(600, 3)
    probabilities = [row.clean_probabilities for row in world(500, 4)]
    radii = np.stack([calibrated(rows, e).radius(probabilities) for e in (0.01, 0.02, 0.05, 0.1, 0.3, 0.9)])
    assert (np.diff(radii, axis=0) >= 0).all()
    assert (radii[1] < radii[3]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_radius_falls_with_the_doubt(kind: str) -> None:
    calibration = calibrated(world(600, 5, kind), 0.2)
    doubts = np.linspace(0, 0.75, 400)
    radii = radii_at(calibration, doubts)
    assert (np.diff(radii) <= 0).all()
    assert set(radii) <= {0.0, *(radius for _, radius in calibration.steps)}


def radii_at(calibration: Calibration, doubts: Any) -> Floats:
    return calibration.radius([row.clean_probabilities for row in records(doubts, 0)])


def test_the_steps_say_what_the_radius_is() -> None:
    steps = ((0.3, 0.1), (0.1, 0.4))
    calibration = Calibration(steps, 4, 0.05, ALPHA, SIGMA, 10, 20)
    assert radii_at(calibration, [0.6, 0.3001, 0.2999, 0.1001, 0.0999, 0]).tolist() == [0, 0, 0.1, 0.1, 0.4, 0.4]


def test_the_order_of_the_records_does_not_matter_and_the_seed_does() -> None:
    rows = world(300, 6)
    assert calibrated(rows) == calibrated(rows[::-1]) == calibrated(iter(rows))
    assert calibrated(rows).steps != calibrated(rows, seed=1).steps


def test_shapes_and_tensors() -> None:
    rows = world(300, 7)
    calibration = calibrated(rows)
    probabilities = np.array([row.clean_probabilities for row in rows]).reshape(3, 100, 4)
    radii = calibration.radius(probabilities)
    assert radii.shape == (3, 100)
    assert calibration.radius(probabilities[0, 0]).shape == ()
    np.testing.assert_array_equal(calibration.radius(torch.tensor(probabilities, requires_grad=True)), radii)
    np.testing.assert_array_equal(calibration.radius(probabilities[..., ::-1]), radii)


def test_a_shift_is_reported_as_lost_coverage() -> None:
    """The guarantee is about images like those of the calibration set: where confidence misleads, coverage tells."""
    calibration = calibrated(world(1000, 8), 0.05)
    others = world(2000, 9), world(2000, 9, drop=0.6)
    alike, shifted = (coverage(calibration, Certificates.of(rows)) for rows in others)
    assert alike.coverage > 0.93
    assert shifted.interval[1] < 0.95
    assert shifted.coverage < alike.coverage - 0.05


@pytest.mark.parametrize(("radius", "agree"), [(0, True), (0.3, False)])
def test_where_nothing_is_certified_nothing_is_claimed(radius: float, agree: bool) -> None:
    doubts = np.linspace(0, 0.7, 200)
    calibration = calibrated(records(doubts, radius, agree=agree))
    assert calibration.steps == ()
    assert not radii_at(calibration, doubts).any()
    found = coverage(calibration, certified(doubts, 0))
    assert found.coverage == 1
    assert found.positive == 0
    assert found.kept is None


def test_another_class_backs_no_radius() -> None:
    calibration = Calibration(((0.5, 0.2),), 4, 0.05, ALPHA, SIGMA, 10, 20)
    found = coverage(calibration, certified([0.1] * 4, [0.3, 0.3, 0.1, 0], agree=[True, False, True, True]))
    assert found.covered == 1
    assert found.acr == pytest.approx(0.4 / 4)
    assert found.claimed == pytest.approx(0.8 / 0.4)
    assert found.kept == pytest.approx(0.2 / 0.4)


def test_without_labels_every_class_counts() -> None:
    rows = [replace(row, label=None) for row in records([0.1] * 2, [0.3, 0.3], agree=[True, False])]
    found = coverage(Calibration(((0.5, 0.2),), 4, 0.05, ALPHA, SIGMA, 10, 20), Certificates.of(rows))
    assert found.labelled is False
    assert found.acr == pytest.approx(0.3)


@pytest.mark.parametrize("doubt", [0.0, 1e-9, 0.3, 0.75])
def test_constant_probabilities_give_one_radius_from_the_conformal_quantile(doubt: float) -> None:
    radii = np.random.default_rng(0).uniform(0, CAP, 600)
    calibration = calibrated(records(doubt, radii), 0.2)
    (radius,) = set(radii_at(calibration, [doubt] * 3))
    assert 0.05 < radius < 0.2 * CAP + 0.05


def test_a_confident_network_is_told_apart_by_its_smallest_doubts() -> None:
    """1 − 1e-9 and 1 − 1e-11 are both 1 in float32; what is left to the other classes is not."""
    doubts = np.repeat([1e-11, 1e-5], 300)
    rows = records(doubts, np.where(doubts < 1e-8, 0.6, 0.1))
    assert radii_at(calibrated(rows, 0.05), [1e-11, 1e-5]).tolist() == [0.6, 0.1]


def test_json_is_exact() -> None:
    calibration = calibrated(
        world(400, 10), model_hash="abc", data={"name": "cifar10/test", "fingerprint": "f"}, seed=3
    )
    value = json.loads(json.dumps(calibration.to_json()))
    assert Calibration.from_json(value) == calibration
    assert calibration.steps
    assert value["subject"] == "average"
    assert value["basis"] == "conformal, 1-epsilon-alpha=0.899, marginal over images like the calibration set"
    assert (value["fitted"], value["corrected"], value["seed"]) == (133, 267, 3)


def test_a_broken_calibration_is_refused() -> None:
    value = calibrated(world(400, 10)).to_json()
    with pytest.raises(InputError, match="calibration: expected format 1, got 2; calibrate again"):
        Calibration.from_json(value | {"format": 2})
    with pytest.raises(InputError, match="expected all fields, got a wrong one"):
        Calibration.from_json({key: value[key] for key in value if key != "sigma"})
    for steps in ([[0.1]], [[0.1, "wide"]], 3):
        with pytest.raises(InputError, match="expected all fields, got a wrong one"):
            Calibration.from_json(value | {"steps": steps})
    for steps in ([[0.1, 0.2], [0.2, 0.3]], [[0.2, 0.3], [0.1, 0.2]], [[0.1, float("nan")]], [[0.1, -1.0]]):
        with pytest.raises(InputError, match="expected falling doubts and growing radii"):
            Calibration.from_json(value | {"steps": steps})


@pytest.mark.parametrize(("epsilon", "needed"), [(0.5, 30), (0.05, 30), (0.01, 148), (0.001, 1498)])
def test_too_few_images_are_refused(epsilon: float, needed: int) -> None:
    rows = world(needed, 11)
    message = f"expected at least {needed} certified images for epsilon {epsilon:g}, got {needed - 1}; certify more"
    with pytest.raises(InputError, match=message):
        calibrated(rows[:-1], epsilon)
    assert (calibrated(rows, epsilon).corrected + 1) * epsilon >= 1


@pytest.mark.parametrize("epsilon", [0, 1, -0.1, float("nan")])
def test_epsilon_is_a_probability(epsilon: float) -> None:
    with pytest.raises(InputError, match="`epsilon`: expected a number above 0 and below 1"):
        calibrated(world(60, 12), epsilon)


def test_what_are_no_probabilities_is_refused() -> None:
    calibration = calibrated(world(60, 12))
    for wrong in ([0.5, 0.2, 0.1, 0.1], [0.9, 0.9, 0.1, 0.1], [1.5, -0.5, 0, 0], [-np.inf, 1, 0, 0], [np.inf, 0, 0, 0]):
        with pytest.raises(InputError, match=r"`probabilities`: expected .* take the softmax of logits first"):
            calibration.radius([wrong])
    with pytest.raises(InputError, match="`probabilities`: expected 4 classes, at least 2, got 3"):
        calibration.radius([[0.5, 0.3, 0.2]])
    with pytest.raises(InputError, match="`probabilities`: expected 4 classes, at least 2, got 1"):
        calibration.radius(1.0)
    certificates = Certificates.of(world(60, 12))
    certificates.clean_probabilities[5] = [0.5, 0.6, 0.1, 0.1]
    with pytest.raises(InputError, match=r"`probabilities`: expected a sum of 1 per image, got 1\.3"):
        calibrate(certificates, epsilon=0.1)


def test_logits_that_are_not_finite_have_no_radius() -> None:
    """Their softmax is NaN; the other images of the batch keep their radius."""
    calibration = Calibration(((0.6, 0.1), (0.1, 0.3)), 4, 0.05, ALPHA, SIGMA, 10, 20)
    sure = [0.97, 0.01, 0.01, 0.01]
    logits = torch.tensor([[5.0, torch.nan, 0, 0], [torch.inf, 0, 0, 0], [1e38 * 10, 0, 0, 0]])
    batch = torch.cat([torch.tensor([sure]), logits.softmax(1)])
    assert calibration.radius(batch).tolist() == [0.3, 0.0, 0.0, 0.0]
    assert calibration.radius([[sure, [np.nan] * 4], [[np.nan, 0.5, 0.5, 0], sure]]).tolist() == [[0.3, 0], [0, 0.3]]
    certificates = certified([0.1] * 60, 0.2)
    certificates.clean_probabilities[7] = np.nan
    with pytest.raises(InputError, match="`probabilities`: expected numbers from 0 to 1, got nan"):
        calibrate(certificates, epsilon=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.5}, r"expected certificates of one σ, got \[0\.25, 0\.5\]"),
        (
            {"basis": Basis(BasisKind.STATISTICAL, alpha=0.01)},
            "expected radii of one kind, got .*alpha=0.001.*alpha=0.01",
        ),
        ({"basis": Basis(BasisKind.STATISTICAL, alpha=ALPHA, k=5)}, "expected radii of one kind, got .*top-5"),
        ({"index": 1, "counts": (10, 90, 0, 0)}, "expected one certificate for image 1, got two different ones"),
        ({"clean_probabilities": (0.5, 0.5), "counts": (10, 90)}, r"expected .* one number of classes, got \[2, 4\]"),
    ],
)
def test_certificates_of_different_kinds_are_refused(change: dict[str, Any], message: str) -> None:
    rows = records([0.1] * 60, 0.2)
    rows[7] = replace(rows[7], **change)
    with pytest.raises(InputError, match=message):
        calibrated(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.5}, "expected top-1 certificates of sigma 0.25, alpha 0.001, got sigma 0.5"),
        ({"basis": Basis(BasisKind.STATISTICAL, alpha=0.01)}, "alpha 0.001, got sigma 0.25, statistical, alpha=0.01"),
        ({"basis": Basis(BasisKind.STATISTICAL, alpha=ALPHA, k=5)}, "expected top-1 certificates"),
        ({"basis": Basis(BasisKind.CONFORMAL, confidence=0.9)}, "expected top-1 certificates"),
        ({"radii": np.full(60, np.nan)}, "`radius`: expected 0 or more, got nan"),
    ],
)
def test_certificates_of_another_kind_are_refused(change: dict[str, Any], message: str) -> None:
    others = replace(certified([0.1] * 60, 0.2), **change)
    with pytest.raises(InputError, match=message):
        coverage(Calibration((), 4, 0.05, ALPHA, SIGMA, 10, 20), others)
    if others.sigma == SIGMA and others.basis.alpha != 0.01:
        with pytest.raises(InputError, match=r"`radius`: expected 0 or more|expected top-1 certificates"):
            calibrate(others, epsilon=0.1)


def test_no_images_are_refused() -> None:
    with pytest.raises(InputError, match="expected certified images, got none"):
        calibrated([])
