"""From counts to radii, by what the settings ask for."""

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.settings import Settings
from heatsmooth.statistics.bounds import clopper_pearson_lower, clopper_pearson_upper, label_bounds, randomised_lower
from heatsmooth.statistics.radii import one_sided_radius, round_down, top_k_radius, two_sided_radius
from heatsmooth.statistics.sequences import anytime_lower, anytime_upper, stopped_lower

DIGITS = 9
"""Decimals of a radius in the records, rounded down."""


def radii_of(
    counts: NDArray[np.int64],
    classes: NDArray[np.int64],
    settings: Settings,
    *,
    one_pass: NDArray[np.float64] | None = None,
    uniform: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Radius and abstention per image: counts p̂ → bounds on p → radius.

    ``counts``: of the estimation samples, (images, classes). ``classes``: to certify, (images,). ``settings``: σ, α and
    the kind of bound. ``one_pass``: the probabilities of the classes in one pass, (images,), for a fitted prior; by
    default 1. ``uniform``: the random numbers of randomised bounds, (images,); by default the most favourable.
    Radii are L2 in [0, 1] pixels, rounded down.
    """
    if settings.top_k == 1 and settings.bound != "two-sided":
        count, n = np.take_along_axis(counts, classes[:, None], 1)[:, 0], counts.sum(1)
        if settings.mixes:
            lower = _by_group(count, n, settings, np.ones(len(n)) if one_pass is None else one_pass)
        elif settings.adaptive:
            lower = stopped_lower(count, n, settings.alpha, most=settings.n)
        elif settings.bound == "randomised":
            lower = randomised_lower(count, n, settings.alpha, 0.0 if uniform is None else uniform)
        else:
            lower = clopper_pearson_lower(count, n, settings.alpha)
        radius, abstain = one_sided_radius(lower, sigma=settings.sigma)
    else:
        own, rivals = label_bounds(
            counts,
            classes,
            alpha=settings.alpha,
            rivals=settings.top_k,
            lower=anytime_lower if settings.adaptive else clopper_pearson_lower,
            upper=anytime_upper if settings.adaptive else clopper_pearson_upper,
        )
        if settings.top_k == 1:
            radius, abstain = two_sided_radius(own, rivals[:, 0], sigma=settings.sigma)
        else:
            radius, abstain = top_k_radius(own, rivals, sigma=settings.sigma)
    return np.asarray(round_down(radius, DIGITS)), abstain


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


def largest_radius(settings: Settings, classes: int) -> float | None:
    """The radius of an image all of whose ``n`` samples agree, for so many classes; None if even that abstains."""
    counts = np.zeros((1, classes), dtype=np.int64)
    counts[0, 0] = settings.n
    radius, abstain = radii_of(counts, np.array([0]), settings)
    return None if abstain[0] else float(radius[0])
