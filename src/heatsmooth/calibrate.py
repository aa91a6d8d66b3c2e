"""A radius from one forward pass, with a conformal guarantee, learnt from certified images; no torch.

Let v(x) be the one-pass probabilities, R(x) the statistical radius of the average for the class of that pass, and
doubt(x) = Σ_{c≠ĉ} v_c(x) what the pass leaves to the other classes. On one part of the calibration set, a proportional
odds model logit P(R ≥ r | x) = a_r − b·Φ⁻¹(doubt), b ≥ 0, estimates the survival S(r | x). It yields a family of radii

    r_λ(x) = argmax_r (r + λ)·S(r | x),

for each λ the most backed radius E[r·1(r ≤ R)] at the price λ for an r > R. So the error budget goes where it buys
most radius, and uncertain images get 0. The larger λ, the smaller r_λ, everywhere, as (r + λ)·S has decreasing
differences in (r, λ); and r_λ falls with the doubt, as ∂ log S/∂Φ⁻¹(doubt) = −b(1−S) falls with r. On the other part,
λ is the smallest with at most ⌊(m+1)ε⌋ − 1 of the m images at r_λ > R: split conformal prediction, whose score is
the λ from which on an image is covered. The guarantee does not depend on the model being right; how much of the radius
is kept does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from heatsmooth.errors import InputError, require
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import Basis, BasisKind, Subject
from heatsmooth.statistics.bounds import Flags, Floats, Integers, checked, clopper_pearson
from heatsmooth.statistics.radii import without_nan

FORMAT = 1
FITTED, FEWEST = Fraction(1, 3), 30
"""The part of the images that fits the model, the rest corrects it; the fewest images accepted, whatever ε."""
RADII, LEVELS = 40, 256
"""The most radii, and levels of doubt, the map distinguishes."""
RIDGE, SURE, SUMMING = 1e-3, 1e-12, 1e-3
"""The penalty on the weights of the model; the least doubt; how far a sum of probabilities may be from 1."""
SOFTMAX = "take the softmax of logits first"


@dataclass(frozen=True)
class Calibration:
    """A map from one-pass probabilities to a radius, L2 in [0, 1] pixels, about the *average* over N(0, σ²I).

    Guarantee: for a new image exchangeable with those of the calibration set, P(radius > R) ≤ ε, R the statistical
    radius of the average for the class of the pass, 0 if certification would abstain or give another class. As R is
    itself false with probability ≤ α, the average keeps the class of the pass within a positive radius except with
    probability ε + α. That is *marginal*: over the images and the calibration set together, not for each image, nor
    for each class, nor among the images that get a large radius; for one calibration set the share of images
    covered scatters by about √(ε(1−ε)/corrected). It says nothing of the network in one pass at a perturbed image,
    nor of images of another kind. A radius of 0 claims nothing.
    """

    steps: tuple[tuple[float, float], ...]
    """(doubt, radius): an image with at most this doubt has at least this radius; falling doubts, growing radii."""
    classes: int
    epsilon: float
    alpha: float
    sigma: float
    fitted: int
    """The number of images the model was fitted on."""
    corrected: int
    """The number m of other images that corrected it."""
    seed: int = 0
    model_hash: str | None = None
    data: Any = None
    """Which images: a description with their fingerprint, as JSON."""
    subject: Subject = Subject.AVERAGE
    network: Any = None
    """The network's identity as JSON; files written before networks had one say only its ``model_hash``."""

    @property
    def basis(self) -> Basis:
        """What the radius rests on."""
        return Basis(BasisKind.CONFORMAL, confidence=1 - self.epsilon - self.alpha)

    def radius(self, probabilities: Any) -> Floats:
        """The radius of each row of ``probabilities`` (…, classes), an array or a tensor on any device → (…).

        A row with NaN, the softmax of logits that are not finite, has radius 0.
        """
        values, unknown = without_nan(probabilities)
        levels, radii = np.array([(np.inf, 0.0), *self.steps]).T
        return np.where(unknown, 0.0, radii[_level(levels, _doubt(values, self.classes))])

    def to_json(self) -> dict[str, Any]:
        """As JSON: every number exactly."""
        facts = asdict(self) | {"steps": [list(step) for step in self.steps]}
        return {"format": FORMAT, "basis": str(self.basis), **facts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """From what ``to_json`` gave."""
        found = value.get("format")
        require(found == FORMAT, f"calibration: expected format {FORMAT}, got {found!r}; calibrate again")
        try:
            facts = {field.name: value[field.name] for field in fields(cls) if field.name != "network"}
            facts |= {"network": value.get("network"), "subject": Subject(value["subject"])}
            steps = tuple((float(doubt), float(radius)) for doubt, radius in facts.pop("steps"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"calibration: expected all fields, got a wrong one ({error}); calibrate again") from None
        sound = all(d > e and r < s for (d, r), (e, s) in pairwise([(math.inf, 0.0), *steps, (0.0, math.inf)]))
        require(sound, "calibration: expected falling doubts and growing radii, got others; calibrate again")
        return cls(steps=steps, **facts)


def calibrate(
    certificates: Certificates,
    *,
    epsilon: float,
    seed: int = 0,
    model_hash: str | None = None,
    network: Any = None,
    data: Any = None,
) -> Calibration:
    """Learn the radius from certified images, at the σ and α of their certificates.

    Labels are not used. The images must be a random sample of those the radius is meant for, and none the network was
    trained on. ``seed`` divides them into the part that fits and the part that corrects; their order does not matter.
    ``model_hash``, ``network`` (an identity as JSON) and ``data`` are kept beside the radii.
    """
    sigma, alpha, images = certificates.sigma, certificates.basis.alpha or 0.0, len(certificates)
    probabilities, radii = _examples(certificates, sigma=sigma, alpha=alpha)
    classes = probabilities.shape[1]
    doubts = _doubt(probabilities, classes)
    fit, rest = np.split(np.random.default_rng(seed).permutation(images), [math.floor(images * FITTED)])
    allowed = _allowed(len(rest), epsilon, images=images)
    levels, values, survival = _survival(doubts[fit], radii[fit])
    level = _level(levels, doubts[rest])

    def table(price: float) -> Floats:
        best = ((values + price) * survival).argmax(1)
        return np.maximum.accumulate(values[best])

    def covers(price: float) -> bool:
        return int((table(price)[level] > radii[rest]).sum()) <= allowed

    prohibitive = (values[1:] * survival[:, 1:] / (1 - survival[:, 1:])).max(initial=0.0)
    found = table(_least(covers, 1.001 * float(prohibitive)))
    steps = tuple((float(levels[i]), float(found[i])) for i in np.flatnonzero(np.diff(found, prepend=0.0)))
    counts = (len(fit), len(rest))
    return Calibration(steps, classes, epsilon, alpha, sigma, *counts, seed, model_hash, data, network=network)


def coverage(calibration: Calibration, certificates: Certificates) -> dict[str, Any]:
    """How the one-pass radii R̂ compare with the certificates R of held-out images.

    ``coverage`` is the share of images with R̂ ≤ R, ``interval`` its Clopper–Pearson bounds at 95 %. ``acr`` is that of
    full certification; ``claimed`` is the share of it that the one-pass radii reach, ``kept`` the same with R̂ counted
    as 0 where R̂ > R; None if there is nothing to keep. Without labels every class counts as right.
    """
    probabilities, radii = _examples(certificates, sigma=calibration.sigma, alpha=calibration.alpha)
    guess = calibration.radius(probabilities)
    covered = guess <= radii
    images, labelled = len(certificates), certificates.labels is not None
    right = certificates.known_correct if labelled else True
    right_in_one_pass = certificates.one_pass_correct if labelled else True
    acr = float(np.mean(certificates.radii * right))
    claimed, kept = (float(np.mean(radius * right_in_one_pass)) for radius in (guess, guess * covered))
    return {
        "images": images,
        "covered": int(covered.sum()),
        "coverage": float(covered.mean()),
        "interval": [float(bound) for bound in clopper_pearson(int(covered.sum()), images, 0.05)],
        "positive": int((guess > 0).sum()),
        "labelled": labelled,
        "acr": acr,
        "claimed": claimed / acr if acr else None,
        "kept": kept / acr if acr else None,
    }


def _examples(certificates: Certificates, *, sigma: float, alpha: float) -> tuple[Floats, Floats]:
    """One-pass probabilities (images, classes) and radii R (images,), 0 if abstained or of another class."""
    basis = certificates.basis
    require(
        (certificates.sigma, basis.kind, basis.alpha, basis.k) == (sigma, BasisKind.STATISTICAL, alpha, 1),
        f"certificates: expected top-1 certificates of sigma {sigma:g}, alpha {alpha:g}, got sigma "
        f"{certificates.sigma:g}, {basis}; give those they were made with",
    )
    agrees = certificates.classes == certificates.clean_classes
    checked("radius", certificates.radii, lambda r: (r >= 0) & (r < np.inf), "0 or more; certify again")
    return certificates.clean_probabilities, np.where(agrees, certificates.radii, 0.0)


def _doubt(probabilities: ArrayLike, classes: int) -> Floats:
    """Σ_{c≠ĉ} v_c, (…, classes) → (…); summed, as 1 − v_ĉ would lose all digits of a confident network."""
    positive = checked("probabilities", probabilities, lambda p: p >= 0, f"numbers from 0 to 1; {SOFTMAX}")
    v = np.sort(np.atleast_1d(positive))
    fits = v.shape[-1] == classes >= 2
    require(
        fits, f"probabilities: expected {classes} classes, at least 2, got {v.shape[-1]}; take those of the network"
    )
    checked("probabilities", v.sum(-1), lambda p: np.abs(p - 1) <= SUMMING, f"a sum of 1 an image; {SOFTMAX}")
    return np.asarray(np.clip(v[..., :-1].sum(-1), SURE, 1 - SURE))


def _level(levels: Floats, doubts: Floats) -> Integers:
    """The last of the falling ``levels`` that is at least the doubt; the first is infinite."""
    return np.asarray(np.searchsorted(-levels, -doubts, side="right") - 1)


def _survival(doubts: Floats, radii: Floats) -> tuple[Floats, Floats, Floats]:
    """Falling levels of doubt, the first infinite; growing radii, the first 0; S(r | level), (levels, radii)."""
    positive = radii[radii > 0]
    some = np.quantile(positive, np.linspace(0, 1, RADII), method="lower") if positive.size else positive
    values = np.unique(np.append(some, 0.0))
    levels = np.append(np.inf, np.unique(np.quantile(doubts, np.linspace(0, 1, LEVELS), method="higher"))[::-1])
    weights = _proportional_odds(-special.ndtri(doubts), radii[:, None] >= values[1:])
    odds = np.minimum.accumulate(weights[:-1]) - weights[-1] * special.ndtri(levels[1:, None])
    survival = np.zeros((len(levels), len(values)))
    survival[:, 0] = 1
    survival[1:, 1:] = special.expit(odds) * len(radii) / (len(radii) + 1)
    return levels, values, survival


def _proportional_odds(confidence: Floats, reached: Flags) -> Floats:
    """Intercepts a_r, then slope b ≥ 0, of logit P(reached) = a_r + b·confidence; ``reached`` (images, radii)."""

    def loss(weights: Floats) -> tuple[float, Floats]:
        odds = weights[:-1] + weights[-1] * confidence[:, None]
        error = special.expit(odds) - reached
        gradient = np.append(error.sum(0), confidence @ error.sum(1))
        value = (np.logaddexp(0, odds) - reached * odds).sum() + RIDGE / 2 * weights @ weights
        return float(value), gradient + RIDGE * weights

    size = reached.shape[1]
    start = np.append(np.zeros(size), 1.0)
    bounds = [(None, None)] * size + [(0.0, None)]
    return np.asarray(optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x)


def _least(covers: Callable[[float], bool], most: float) -> float:
    """The least price that covers, by bisection, rounded up; ``most`` covers, and so does all above one that does."""
    low, high = 0.0, 0.0 if covers(0.0) else most
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return high


def _allowed(corrected: int, epsilon: float, *, images: int) -> int:
    """How many of the m correcting images may have R̂ > R: m − ⌈(m+1)(1−ε)⌉, ε as written; refused where negative."""
    require(0 < epsilon < 1, f"epsilon: expected a number above 0 and below 1, got {epsilon}; 0.05 is usual")
    exact = Fraction(str(float(epsilon)))
    needed = max(FEWEST, math.floor((math.ceil(1 / exact) - 2) / (1 - FITTED)) + 1)
    enough = f"expected at least {needed} certified images for epsilon {epsilon:g}"
    require(images >= needed, f"certificates: {enough}, got {images}; certify more or raise epsilon")
    return math.floor((corrected + 1) * exact) - 1
