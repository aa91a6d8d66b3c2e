"""Certified accuracy of a set of images.

Every function takes ``radius`` and ``correct`` with one entry per image, (images,). ``radius`` is L2 in [0, 1] pixels.
``correct`` is True where the certificate is for the label and does not abstain. Every image counts; an abstention is an
error.
"""

import numpy as np
from numpy.typing import ArrayLike

from heatsmooth.errors import require
from heatsmooth.statistics.bounds import Flags, Floats, checked, clopper_pearson, error_probability


def certified_accuracy(radius: ArrayLike, correct: ArrayLike, at: ArrayLike) -> Floats:
    """The share of all images that are correct with radius ≥ r, for each r of ``at``.

    >>> certified_accuracy([0.5, 0.2, 0.9, 0.0], [1, 1, 0, 0], at=[0, 0.25, 0.5]).tolist()
    [0.5, 0.25, 0.25]
    """
    share: Floats = _certified(radius, correct, at).mean(-1)
    return share


def certified_accuracy_band(
    radius: ArrayLike, correct: ArrayLike, at: ArrayLike, *, alpha: float
) -> tuple[Floats, Floats]:
    """Clopper–Pearson bounds, each shaped as ``at``, on the certified accuracy over all images of the same kind.

    At each r of ``at`` they hold, except with probability ``alpha``. For all r at once, pass alpha / len(at).
    """
    certified = _certified(radius, correct, at)
    return clopper_pearson(certified.sum(-1), certified.shape[-1], alpha)


def false_certificates(images: int, *, alpha: float, rho: float) -> float:
    """The largest share of false certificates, except with probability ``rho``.

    Subtracted from the certified accuracy, it gives a lower bound on the robust accuracy of the average on these
    images. The bound is α + √(2α(1−α) ln(1/ρ)/m) + ln(1/ρ)/(3m): Bernstein's inequality for m independent
    certificates, each false with probability ≤ α ≤ ½. The public code of Cohen 2019 lacks the 2,
    and fails for large m.

    ``images``: the number m of certificates.
    ``alpha``: the probability that a certificate is false, at most ½.
    ``rho``: the probability that this bound is wrong.

    >>> round(false_certificates(500, alpha=0.001, rho=0.001), 4)
    0.0109
    """
    require(images >= 1, f"`images`: expected at least 1, got {images}; certify some images first")
    a, information = float(error_probability(alpha, most=0.5)), -float(np.log(error_probability(rho)))
    return a + float(np.sqrt(2 * a * (1 - a) * information / images)) + information / (3 * images)


def average_certified_radius(radius: ArrayLike, correct: ArrayLike) -> float:
    """ACR: the mean over all images of the radius, counted as 0 where the image is not correct."""
    radii, right = _checked(radius, correct)
    return float(np.where(right, radii, 0.0).mean())


def empirical_distribution(values: ArrayLike, at: ArrayLike) -> Floats:
    """The share of ``values`` (images,) that are at most x, for each x of ``at``.

    >>> empirical_distribution([0.2, 0.5, 0.5, 0.9], at=[0.1, 0.5, 1.0]).tolist()
    [0.0, 0.75, 1.0]
    """
    known = np.sort(_at_least_one(values))
    return np.asarray(np.searchsorted(known, np.asarray(at, dtype=np.float64), side="right") / known.size)


def distribution_band(values: ArrayLike, at: ArrayLike, *, alpha: float) -> tuple[Floats, Floats]:
    """Bounds, each shaped as ``at``, on the distribution of the value over all images of the same kind.

    They hold at all x together, except with probability ``alpha``: F̂(x) ± √(ln(2/α)/(2m)) for m independent images
    (Dvoretzky, Kiefer and Wolfowitz 1956, with the constant of Massart 1990).

    >>> low, high = distribution_band([0.5] * 200, at=[0.4, 0.5], alpha=0.05)
    >>> low.round(4).tolist(), high.round(4).tolist()
    ([0.0, 0.904], [0.096, 1.0])
    """
    share = empirical_distribution(values, at)
    slack = np.sqrt(np.log(2 / error_probability(alpha)) / (2 * np.size(values)))
    return np.maximum(share - slack, 0.0), np.minimum(share + slack, 1.0)


def _at_least_one(values: ArrayLike) -> Floats:
    known = checked("values", values, np.isfinite, "finite numbers; leave the others out")
    require(
        known.ndim == 1 and known.size > 0,
        f"`values`: expected one per image, got shape {known.shape}; certify some images first",
    )
    return known


def _certified(radius: ArrayLike, correct: ArrayLike, at: ArrayLike) -> Flags:
    """Whether an image is certified at each radius, (…, images)."""
    radii, right = _checked(radius, correct)
    return right & (radii >= np.asarray(at, dtype=np.float64)[..., None])


def _checked(radius: ArrayLike, correct: ArrayLike) -> tuple[Floats, Flags]:
    """``radius`` and ``correct`` as arrays of one length."""
    radii = checked("radius", radius, lambda r: r >= 0, "radii of 0 or more; certify the image first")
    right = np.asarray(correct).astype(bool)
    require(
        radii.ndim == 1 and radii.size > 0,
        f"`radius`: expected one per image, got shape {radii.shape}; certify some images first",
    )
    require(
        right.shape == radii.shape,
        f"`correct`: expected shape {radii.shape} as the radii, got {right.shape}; give one per image",
    )
    return radii, right
