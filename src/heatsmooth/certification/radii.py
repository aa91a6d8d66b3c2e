"""From counts to radii, by what the settings ask for."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.settings import Settings
from heatsmooth.statistics.bounds import clopper_pearson_lower, clopper_pearson_upper, label_bounds
from heatsmooth.statistics.radii import one_sided_radius, round_down, top_k_radius, two_sided_radius
from heatsmooth.statistics.sequences import anytime_lower, anytime_upper, stopped_lower

DIGITS = 9
"""Decimals of a radius in the records, rounded down."""


def radii_of(
    counts: NDArray[np.int64], classes: NDArray[np.int64], settings: Settings
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Radius and abstention per image: counts p̂ → bounds on p → radius.

    ``counts``: of the estimation samples, (images, classes). ``classes``: to certify, (images,). ``settings``: σ, α and
    the kind of bound. Radii are L2 in [0, 1] pixels, rounded down.
    """
    if settings.top_k == 1 and settings.bound == "one-sided":
        lower = partial(stopped_lower, most=settings.n) if settings.adaptive else clopper_pearson_lower
        count = np.take_along_axis(counts, classes[:, None], 1)[:, 0]
        radius, abstain = one_sided_radius(lower(count, counts.sum(1), settings.alpha), sigma=settings.sigma)
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


def largest_radius(settings: Settings, classes: int) -> float | None:
    """The radius of an image all of whose ``n`` samples agree, for so many classes; None if even that abstains."""
    counts = np.zeros((1, classes), dtype=np.int64)
    counts[0, 0] = settings.n
    radius, abstain = radii_of(counts, np.array([0]), settings)
    return None if abstain[0] else float(radius[0])
