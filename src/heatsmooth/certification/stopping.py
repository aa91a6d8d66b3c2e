"""When adaptive sampling may stop.

The certificates are valid for any rule, because the bounds hold at all times. The rule only decides the cost.
"""

from bisect import bisect_left
from functools import cache
from typing import Protocol

import numpy as np
from scipy import special

from heatsmooth.settings import Noise, Norm
from heatsmooth.statistics.bounds import Floats, Integers
from heatsmooth.statistics.mixtures import Mixture
from heatsmooth.statistics.noises import Smoothing
from heatsmooth.statistics.sequences import anytime_exceeds, anytime_lower, anytime_upper, stopped_lower

LEAST_CHANCE = 0.05
"""Adaptive sampling gives up on a radius that all n samples would reach with less than this probability, judged by the
samples so far. This loses some certificates and makes none invalid."""


MOST_PER_RADIUS = 8.0
"""A mixture gives up on the radii of an image that are expected to take more than this times n samples each. Chosen so
that about half a point of certified accuracy is lost (``benchmarks/fewer_samples.py``)."""


class Sampled(Protocol):
    """How many samples had each class."""

    counts: Integers

    @property
    def n(self) -> int: ...


class Wanted(Protocol):
    """What adaptive sampling must decide, with at most ``n`` samples."""

    @property
    def n(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def radii(self) -> tuple[float, ...]: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def sigma(self) -> float: ...
    @property
    def noise(self) -> Noise: ...
    @property
    def radius_norm(self) -> Norm: ...
    @property
    def mixes(self) -> bool: ...
    def mixture(self, one_pass: float) -> Mixture: ...


def may_stop(sampled: Sampled, selected: int, wanted: Wanted, one_pass: float = 1.0) -> bool:
    """Whether no samples are left, each radius is reached or given up, or the radius is known within the tolerance.

    ``one_pass``: the probability of the selected class in one pass, for a fitted prior.
    """
    count, n = int(sampled.counts[selected]), sampled.n
    if n >= wanted.n:
        return True
    if wanted.mixes:
        return bool(wanted.mixture(one_pass).gain(count, n, wanted.alpha) < 1 / (MOST_PER_RADIUS * wanted.n))
    smoothing = Smoothing(wanted.sigma, wanted.noise, wanted.radius_norm)
    if wanted.radii:
        levels = tuple(smoothing.probability(np.array(wanted.radii)).tolist())
        return all_decided(count, n, wanted.n, wanted.alpha, levels)
    return width(count, n, wanted.alpha, smoothing) <= wanted.tolerance


def all_decided(count: int, n: int, most: int, alpha: float, levels: tuple[float, ...]) -> bool:
    """Whether ``stopped_lower`` has reached each level of probability, or will hardly reach it with ``most``."""
    reached = anytime_exceeds(count, n, alpha / 2, levels)
    return bool((reached | (chance(count, n, most, alpha, levels) < LEAST_CHANCE)).all())


def chance(count: int, n: int, most: int, alpha: float, levels: tuple[float, ...]) -> Floats:
    """The probability that ``most`` samples will show each level, after ``count`` of ``n`` < ``most``.

    By a beta-binomial with the prior Beta(½, ½), in its normal approximation.
    """
    left, a, b = most - n, count + 0.5, n - count + 0.5
    mean, spread = left * a / (a + b), np.sqrt(left * a * b * (a + b + left) / ((a + b) ** 2 * (a + b + 1)))
    missing = np.array([_least_count(most, alpha, level) for level in levels]) - count
    return np.asarray(special.ndtr((mean - missing + 0.5) / spread))


def width(count: int, n: int, alpha: float, smoothing: Smoothing) -> float:
    """How much larger than its present lower bound the radius may still become."""
    low, high = (
        max(float(p), 0.5) for p in (anytime_lower(count, n, alpha / 2), anytime_upper(count, n, LEAST_CHANCE))
    )
    return float(smoothing.one_sided(high)[0] - smoothing.one_sided(low)[0])


@cache
def _least_count(n: int, alpha: float, level: float) -> int:
    """The fewest of ``n`` samples that show the level; n + 1 if not even all of them do."""
    return bisect_left(range(n + 1), True, key=lambda count: bool(stopped_lower(count, n, alpha, most=n) >= level))
