"""The largest value of a quantity, extrapolated from the maxima of batches of samples: an estimate, not a bound."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from heatsmooth.errors import require
from heatsmooth.statistics.bounds import Floats

SAME = 1e-5
"""Maxima that differ by less than this share of the largest one count as equal: a distribution has no fit to them."""
FURTHEST = 5.0
"""A fit whose end is this many times the spread of the maxima beyond the largest one is none: it has no finite end."""


def largest_value(maxima: ArrayLike) -> float:
    """The end of the reverse Weibull distribution that fits the maxima of batches best (Weng 2018, CLEVER).

    By extreme-value theory, maxima of large batches of a bounded quantity tend to this distribution. Its end is the
    largest value of the quantity. The estimate is never below the largest of ``maxima``, and it can be too small. Where
    no such distribution fits, it is the largest of ``maxima``.

    ``maxima``: (batches,), at least 2, positive or 0.
    """
    values: Floats = np.asarray(maxima, dtype=np.float64)
    require(values.ndim == 1 and len(values) > 1, f"`maxima`: expected at least 2, got {values.size}; sample more")
    largest = float(values.max())
    spread = largest - float(values.min())
    if spread <= SAME * largest:
        return largest
    _, end, _ = stats.weibull_max.fit((values - largest) / spread, 2.0, loc=0.1, scale=0.6, optimizer=_within_bounds)
    return largest + spread * float(end) if end < 0.99 * FURTHEST else largest


def most_value(maxima: Floats) -> float:
    """What ``largest_value`` of these maxima is at most, without a fit."""
    return float(maxima.max() + FURTHEST * (maxima.max() - maxima.min()))


def _within_bounds(cost: Callable[..., Any], start: Any, args: tuple[Any, ...] = (), disp: int = 0) -> Floats:  # noqa: ARG001
    """The parameters (shape, end, scale) of least ``cost``; maxima are scaled to lie in [−1, 0]."""
    bounds = [(0.5, 100.0), (1e-3, FURTHEST), (1e-2, 10 * FURTHEST)]
    found = optimize.minimize(cost, start, args=args, method="L-BFGS-B", bounds=bounds)
    return np.asarray(found.x)
