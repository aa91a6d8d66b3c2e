"""From counts to radii, by what the settings ask for."""

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.settings import Settings
from heatsmooth.errors import InputError
from heatsmooth.statistics.bounds import clopper_pearson_lower, clopper_pearson_upper, label_bounds, randomised_lower
from heatsmooth.statistics.noises import Smoothing
from heatsmooth.statistics.radii import round_down
from heatsmooth.statistics.sequences import anytime_lower, anytime_upper, stopped_lower

DRAWN_BEFORE = "counts with the random number drawn beforehand"
DIGITS = 9
"""Decimals of a radius in the records, rounded down."""


def radii_of(
    counts: NDArray[np.int64],
    classes: NDArray[np.int64],
    settings: Settings,
    *,
    one_pass: NDArray[np.float64] | None = None,
    uniform: NDArray[np.float64] | None = None,
    pixels: int | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Radius and abstention per image: counts p̂ → bounds on p → radius.

    ``counts``: of the estimation samples, (images, classes). ``classes``: to certify, (images,). ``settings``: the
    noise, σ, α, the kind of bound and the norm. ``one_pass``: the probabilities of the classes in one pass, (images,),
    for a fitted prior; by default 1. ``uniform``: the random numbers of randomised bounds, (images,), which
    they need. ``pixels``: values of an image, for L∞ radii. Radii are in the norm of the settings, for images in
    [0, 1], rounded down.
    """
    smoothing = Smoothing(settings.sigma, settings.noise, settings.radius_norm, pixels)
    own, rivals = probability_bounds(counts, classes, settings, one_pass=one_pass, uniform=uniform)
    if settings.top_k > 1:
        radius, abstain = smoothing.top_k(own, rivals)
    elif settings.bound == "two-sided":
        radius, abstain = smoothing.two_sided(own, rivals[:, 0])
    else:
        radius, abstain = smoothing.one_sided(own)
    return np.asarray(round_down(radius, DIGITS)), abstain


def probability_bounds(
    counts: NDArray[np.int64],
    classes: NDArray[np.int64],
    settings: Settings,
    *,
    one_pass: NDArray[np.float64] | None = None,
    uniform: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A lower bound of the probability of each class (images,), and upper bounds of its rivals (images, top_k).

    They hold together except with probability α. With bounds of the class alone, all rivals together have what is left.
    ``one_pass`` and ``uniform``: as in ``radii_of``.
    """
    if settings.top_k == 1 and settings.bound != "two-sided":
        count, n = np.take_along_axis(counts, classes[:, None], 1)[:, 0], counts.sum(1)
        if settings.mixes:
            own = _by_group(count, n, settings, np.ones(len(n)) if one_pass is None else one_pass)
        elif settings.adaptive:
            own = stopped_lower(count, n, settings.alpha, most=settings.n)
        elif settings.bound == "randomised":
            if uniform is None:
                raise InputError(f"`bound` randomised: expected {DRAWN_BEFORE}, got none; certify with it")
            own = randomised_lower(count, n, settings.alpha, uniform)
        else:
            own = clopper_pearson_lower(count, n, settings.alpha)
        return own, 1 - own[:, None]
    return label_bounds(
        counts,
        classes,
        alpha=settings.alpha,
        rivals=settings.top_k,
        lower=anytime_lower if settings.adaptive else clopper_pearson_lower,
        upper=anytime_upper if settings.adaptive else clopper_pearson_upper,
    )


def _by_group(
    count: NDArray[np.int64], n: NDArray[np.int64], settings: Settings, one_pass: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Lower bounds by the mixture of each image's group of the prior."""
    mixtures = [settings.mixture(float(probability)) for probability in one_pass]
    lower = np.zeros(len(mixtures))
    for mixture in set(mixtures):
        own = np.array([other is mixture for other in mixtures])
        lower[own] = mixture.lower(count[own], n[own], settings.alpha)
    return lower


def largest_radius(settings: Settings, classes: int, *, pixels: int | None = None) -> float | None:
    """The radius of an image all of whose ``n`` samples agree, for so many classes; None if even that abstains."""
    counts = np.zeros((1, classes), dtype=np.int64)
    counts[0, 0] = settings.n
    radius, abstain = radii_of(counts, np.array([0]), settings, uniform=np.zeros(1), pixels=pixels)
    return None if abstain[0] else float(radius[0])
