"""A radius from one forward pass, with a conformal guarantee, learnt from certified images; no torch.

Let v(x) be the one-pass probabilities, and R(x) the statistical radius of the average for the class of that pass. The
doubt(x) of the pass is the probability that it gives to all other classes, weighted by how much of it the second class
has (``learnt_radius.doubt_of``). One part of the calibration set fits this weight, and then a proportional odds model
logit P(R ≥ r | x) = a_r − b·Φ⁻¹(doubt), b ≥ 0, of the survival S(r | x). It yields a family of radii

    r_λ(x) = argmax_r (r + λ)·S(r | x).

For each λ, this is the largest expected radius E[r·1(r ≤ R)] at the price λ for an r > R. So the error budget is spent
where it gains most radius, and uncertain images get radius 0. A larger λ gives a smaller r_λ everywhere, because
(r + λ)·S has decreasing differences in (r, λ). And r_λ falls with the doubt, because ∂ log S/∂Φ⁻¹(doubt) = −b(1−S)
falls with r.

The other part selects λ: the smallest for which at most ⌊(m+1)ε⌋ − 1 of its m images have r_λ > R. This is split
conformal prediction. Its score is the λ from which on an image is covered. The guarantee does not depend on the model
being right; the size of the radii does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from scipy import optimize, special

from heatsmooth.errors import require
from heatsmooth.learnt_radius import LARGEST_WEIGHT, LearntRadius, doubt_of, level_of, radius_at
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.statistics.bounds import Flags, Floats, Integers, checked, clopper_pearson
from heatsmooth.statistics.radii import without_nan

FITTED = Fraction(1, 3)
"""Share of the images that fits the model. The rest selects λ."""
FEWEST = 30
"""Fewest images accepted, whatever ε."""
RADII, LEVELS = 40, 256
"""Largest number of radii, and of levels of doubt, that the map distinguishes."""
FEW_RADII = 10
"""Radii from which the weight of the runner-up is learnt."""
LEAST_SPREAD = 1e-6
"""Images whose log odds differ by less than this are alike."""
RIDGE = 1e-3
"""Penalty on the weights of the model."""


@dataclass(frozen=True)
class Calibration(LearntRadius):
    """A map from one-pass probabilities to a radius, L2 in [0, 1] pixels, of the *average* over N(0, σ²I).

    Guarantee: for a new image exchangeable with those of the calibration set, P(radius > R) ≤ ε. R is the statistical
    radius of the average for the class of the pass; it is 0 if certification would abstain or give another class. R
    is itself false with probability ≤ α. So the average keeps the class of the pass within a positive radius, except
    with probability ε + α.

    The guarantee is *marginal*: over the images and the calibration set together. It does not hold for each image, for
    each class, or among the images with a large radius. For one calibration set, the share of images covered varies by
    about √(ε(1−ε)/corrected). It does not cover the network in one pass at a perturbed image, nor images of another
    kind. A radius of 0 claims nothing.
    """

    @property
    def basis(self) -> Basis:
        """What the radius rests on."""
        return Basis(BasisKind.CONFORMAL, confidence=1 - self.epsilon - self.alpha)

    def radius(self, probabilities: Any) -> Floats:
        """The radius of each row of ``probabilities`` (…, classes), an array or a tensor on any device → (…).

        A row with NaN, the softmax of logits that are not finite, has radius 0.
        """
        values, unknown = without_nan(probabilities)
        return np.where(unknown, 0.0, radius_at(self.steps, doubt_of(values, self.classes, self.runner_up)))


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How one-pass radii R̂ compare with the certificates R of held-out images.

    Without labels, every class counts as correct.
    """

    images: int
    covered: int
    """Number of images with R̂ ≤ R."""
    coverage: float
    """Share of images with R̂ ≤ R."""
    interval: tuple[float, float]
    """Clopper–Pearson bounds on the coverage, at 95 %."""
    positive: int
    """Number of images with R̂ > 0."""
    labelled: bool
    acr: float
    """Average certified radius of full certification."""
    claimed: float | None
    """Share of ``acr`` that the one-pass radii reach; None if ``acr`` is 0."""
    kept: float | None
    """The same, with R̂ counted as 0 where R̂ > R."""


class Recorded(TypedDict, total=False):
    """What a calibration records beside its radii."""

    seed: int
    """Splits the images into the part that fits the model and the part that selects λ; 0 by default."""
    model_hash: str | None
    network: Any
    """The network's identity as JSON."""
    data: Any
    head: str | None
    """Hash of the head that predicted the probabilities, if one did."""


def calibrate(
    certificates: Certificates, *, epsilon: float, runner_up: float | None = None, **recorded: Unpack[Recorded]
) -> Calibration:
    """Learn a one-pass radius from certified images, with the guarantee of ``Calibration`` at their σ and α.

    Labels are not used, and the order of the images does not matter.

    ``certificates``: top-1 certificates of a random sample of the images that the radius is meant for. The network
    must not have been trained on them.
    ``epsilon``: the probability ε of a radius that is too large, above 0 and below 1.
    ``runner_up``: its weight in the doubt, from −4 to 4; None: the one that fits best. 0 leaves the runner-up out.
    ``seed``: splits the images into the part that fits the model and the part that selects λ.
    ``model_hash``, ``network`` (an identity as JSON), ``data``, ``head`` (its hash): recorded in the calibration.

    With a head (``learn_votes``), give ``certificates.with_one_pass(probabilities)`` of its probabilities. The radius
    is then for the class that the head predicts. The guarantee does not depend on the head being right. It needs a head
    that was learnt without the calibration images.
    """
    sigma, alpha, images = certificates.sigma, certificates.basis.alpha or 0.0, len(certificates)
    probabilities, radii = _examples(certificates, sigma=sigma, alpha=alpha)
    classes = probabilities.shape[1]
    fit, rest = split_parts(images, recorded.get("seed", 0))
    allowed = allowed_errors(len(rest), epsilon, images=images)
    weight = _weight_of_runner_up(probabilities[fit], radii[fit]) if runner_up is None else float(runner_up)
    require(abs(weight) <= LARGEST_WEIGHT, f"`runner_up`: expected from -4 to 4, got {runner_up}; leave it out")
    doubts = doubt_of(probabilities, classes, weight)
    family = RadiusFamily.fit(doubts[fit], radii[fit])
    level = level_of(family.levels, doubts[rest])
    return Calibration(
        steps=family.largest(lambda table: int((table[level] > radii[rest]).sum()) <= allowed),
        classes=classes,
        epsilon=epsilon,
        alpha=alpha,
        sigma=sigma,
        fitted=len(fit),
        corrected=len(rest),
        runner_up=weight,
        **recorded,
    )


def coverage(calibration: Calibration, certificates: Certificates) -> Coverage:
    """Compare the one-pass radii of ``calibration`` with the ``certificates`` of held-out images."""
    probabilities, radii = _examples(certificates, sigma=calibration.sigma, alpha=calibration.alpha)
    one_pass = calibration.radius(probabilities)
    covered = one_pass <= radii
    images, labelled = len(certificates), certificates.labels is not None
    correct = certificates.known_correct if labelled else True
    correct_in_one_pass = certificates.one_pass_correct if labelled else True
    acr = float(np.mean(certificates.radii * correct))
    claimed, kept = (float(np.mean(radius * correct_in_one_pass)) for radius in (one_pass, one_pass * covered))
    low, high = (float(bound) for bound in clopper_pearson(int(covered.sum()), images, 0.05))
    return Coverage(
        images=images,
        covered=int(covered.sum()),
        coverage=float(covered.mean()),
        interval=(low, high),
        positive=int((one_pass > 0).sum()),
        labelled=labelled,
        acr=acr,
        claimed=claimed / acr if acr else None,
        kept=kept / acr if acr else None,
    )


@dataclass(frozen=True)
class RadiusFamily:
    """The radii r_λ by level of doubt, one table (levels,) for each price λ."""

    levels: Floats
    """Falling levels of doubt; the first is infinite."""
    values: Floats
    """Growing radii; the first is 0."""
    survival: Floats
    """S(r | level), (levels, radii)."""

    @classmethod
    def fit(cls, doubts: Floats, radii: Floats) -> Self:
        """Fit the survival to images with these doubts and true radii, both (images,)."""
        return cls(*_survival(doubts, radii))

    def radius_by_level(self, price: float) -> Floats:
        """r_λ at each level, (levels,): growing, and nowhere larger for a larger price."""
        best = ((self.values + price) * self.survival).argmax(1)
        return np.maximum.accumulate(self.values[best])

    def largest(self, covers: Callable[[Floats], bool]) -> tuple[tuple[float, float], ...]:
        """The largest table that ``covers``, as the steps of a calibration; smaller tables must cover if larger do."""
        rest = self.survival[:, 1:]
        prohibitive = 1.001 * float((self.values[1:] * rest / (1 - rest)).max(initial=0.0))
        table = self.radius_by_level(_least(lambda price: covers(self.radius_by_level(price)), prohibitive))
        return tuple((float(self.levels[i]), float(table[i])) for i in np.flatnonzero(np.diff(table, prepend=0.0)))


def split_parts(images: int, seed: int) -> tuple[Integers, Integers]:
    """The positions of the images that fit the model, and of those that select λ."""
    fit, rest = np.split(np.random.default_rng(seed).permutation(images), [math.floor(images * FITTED)])
    return fit, rest


def require_certificates(certificates: Certificates, *, sigma: float, alpha: float) -> None:
    """Refuse other certificates than top-1 ones of this σ and α, and radii that are none."""
    basis = certificates.basis
    require(
        (certificates.sigma, basis.kind, basis.alpha, basis.k) == (sigma, BasisKind.STATISTICAL, alpha, 1),
        f"`certificates`: expected top-1 certificates of sigma {sigma:g}, alpha {alpha:g}, got sigma "
        f"{certificates.sigma:g}, {basis}; use certificates of those settings",
    )
    checked("radius", certificates.radii, lambda r: (r >= 0) & (r < np.inf), "0 or more; certify again")


def _examples(certificates: Certificates, *, sigma: float, alpha: float) -> tuple[Floats, Floats]:
    """One-pass probabilities (images, classes) and radii R (images,), 0 if abstained or of another class."""
    require_certificates(certificates, sigma=sigma, alpha=alpha)
    agrees = certificates.classes == certificates.clean_classes
    return certificates.clean_probabilities, np.where(agrees, certificates.radii, 0.0)


def _survival(doubts: Floats, radii: Floats) -> tuple[Floats, Floats, Floats]:
    """Falling levels of doubt, the first infinite; growing radii, the first 0; S(r | level), (levels, radii)."""
    values = _spread_over(radii, RADII)
    levels = np.append(np.inf, np.unique(np.quantile(doubts, np.linspace(0, 1, LEVELS), method="higher"))[::-1])
    intercepts, (slope,) = _proportional_odds(
        -special.ndtri(doubts[:, None]), radii[:, None] >= values[1:], bounded=True
    )
    odds = np.minimum.accumulate(intercepts) - slope * special.ndtri(levels[1:, None])
    survival = np.zeros((len(levels), len(values)))
    survival[:, 0] = 1
    survival[1:, 1:] = special.expit(odds) * len(radii) / (len(radii) + 1)
    return levels, values, survival


def _spread_over(radii: Floats, most: int) -> Floats:
    """0 and at most so many quantiles of the positive radii, growing."""
    positive = radii[radii > 0]
    quantiles = np.quantile(positive, np.linspace(0, 1, most), method="lower") if positive.size else positive
    return np.unique(np.append(quantiles, 0.0))


def _weight_of_runner_up(probabilities: Floats, radii: Floats) -> float:
    """The weight with which the doubt tells most about the radii of these images."""
    classes = probabilities.shape[1]
    alone, weighted = (special.logit(doubt_of(probabilities, classes, weight)) for weight in (0.0, 1.0))
    confidence = np.stack([-alone, alone - weighted], 1)
    scale, values = confidence.std(0), _spread_over(radii, FEW_RADII)[1:]
    if classes == 2 or not values.size or scale.min() < LEAST_SPREAD:
        return 0.0
    _, slopes = _proportional_odds((confidence - confidence.mean(0)) / scale, radii[:, None] >= values)
    of_doubt, of_share = (slopes / scale).tolist()
    return min(max(of_share / of_doubt, -LARGEST_WEIGHT), LARGEST_WEIGHT) if of_doubt > 0 else 0.0


def _proportional_odds(confidence: Floats, reached: Flags, *, bounded: bool = False) -> tuple[Floats, Floats]:
    """Intercepts a_r and slopes b of logit P(reached) = a_r + b·confidence.

    ``confidence``: (images, slopes). ``reached``: (images, radii). ``bounded``: b ≥ 0.
    """

    def loss(weights: Floats) -> tuple[float, Floats]:
        odds = weights[:size] + (confidence @ weights[size:])[:, None]
        error = special.expit(odds) - reached
        gradient = np.append(error.sum(0), confidence.T @ error.sum(1))
        value = (np.logaddexp(0, odds) - reached * odds).sum() + RIDGE / 2 * weights @ weights
        return float(value), gradient + RIDGE * weights

    size, slopes = reached.shape[1], confidence.shape[1]
    start = np.append(np.zeros(size), np.eye(slopes)[0])
    bounds = [(None, None)] * size + [(0.0 if bounded else None, None)] * slopes
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return np.asarray(found[:size]), np.asarray(found[size:])


def _least(covers: Callable[[float], bool], most: float) -> float:
    """The least price that covers, by bisection, rounded up; ``most`` covers, and covering is monotone in the price."""
    low, high = 0.0, 0.0 if covers(0.0) else most
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high


def allowed_errors(corrected: int, epsilon: float, *, images: int) -> int:
    """How many of the m images that select λ may have R̂ > R: m − ⌈(m+1)(1−ε)⌉; an error where this is negative.

    ε is taken exactly as its shortest decimal form.
    """
    require(0 < epsilon < 1, f"`epsilon`: expected a number above 0 and below 1, got {epsilon}; 0.05 is usual")
    exact = Fraction(str(float(epsilon)))
    needed = max(FEWEST, math.floor((math.ceil(1 / exact) - 2) / (1 - FITTED)) + 1)
    require(
        images >= needed,
        f"`certificates`: expected at least {needed} certified images for epsilon {epsilon:g}, got {images}; "
        "certify more images or raise `epsilon`",
    )
    return math.floor((corrected + 1) * exact) - 1
