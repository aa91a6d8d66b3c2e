"""When adaptive sampling may stop. Soundness does not depend on it: the bounds hold whenever one stops; draws do."""

from bisect import bisect_left
from functools import cache
from typing import Protocol

import numpy as np
from scipy import special

from heatsmooth.statistics.bounds import Floats, Integers
from heatsmooth.statistics.sequences import anytime_exceeds, anytime_lower, anytime_upper, stopped_lower

HOPE = 0.05
"""Adaptive sampling gives up on a radius when all n draws would reach it with less than this probability, by what was
drawn so far. It costs no soundness, only power."""


class Drawn(Protocol):
    """How often each class was drawn."""

    counts: Integers

    @property
    def n(self) -> int: ...


class Wanted(Protocol):
    """What adaptive sampling is to find out, with at most ``n`` draws."""

    @property
    def n(self) -> int: ...
    @property
    def sigma(self) -> float: ...
    @property
    def alpha(self) -> float: ...
    @property
    def radii(self) -> tuple[float, ...]: ...
    @property
    def tolerance(self) -> float: ...


def may_stop(drawn: Drawn, chosen: int, wanted: Wanted) -> bool:
    """Whether no draws are left, each of the radii is reached or beyond hope, or the radius is known well enough."""
    count, n = int(drawn.counts[chosen]), drawn.n
    if n >= wanted.n:
        return True
    if wanted.radii:
        levels = tuple(special.ndtr(np.array(wanted.radii) / wanted.sigma).tolist())
        return all_decided(count, n, wanted.n, wanted.alpha, levels)
    return width(count, n, wanted.alpha, wanted.sigma) <= wanted.tolerance


def all_decided(count: int, n: int, most: int, alpha: float, levels: tuple[float, ...]) -> bool:
    """Whether ``stopped_lower`` has reached each level of probability, or cannot hope to within ``most`` draws."""
    reached = anytime_exceeds(count, n, alpha / 2, levels)
    return bool((reached | (hope(count, n, most, alpha, levels) < HOPE)).all())


def hope(count: int, n: int, most: int, alpha: float, levels: tuple[float, ...]) -> Floats:
    """The probability that ``most`` draws will show each level, after ``count`` of ``n`` < ``most``.

    Of a beta-binomial with the prior Beta(½, ½), taken as normal.
    """
    left, a, b = most - n, count + 0.5, n - count + 0.5
    mean, spread = left * a / (a + b), np.sqrt(left * a * b * (a + b + left) / ((a + b) ** 2 * (a + b + 1)))
    missing = np.array([_least_count(most, alpha, level) for level in levels]) - count
    return np.asarray(special.ndtr((mean - missing + 0.5) / spread))


def width(count: int, n: int, alpha: float, sigma: float) -> float:
    """How much larger than its lower bound the radius may still turn out."""
    low, high = (max(float(p), 0.5) for p in (anytime_lower(count, n, alpha / 2), anytime_upper(count, n, HOPE)))
    return float(sigma * (special.ndtri(high) - special.ndtri(low)))


@cache
def _least_count(n: int, alpha: float, level: float) -> int:
    """The fewest of ``n`` draws that show the level; n + 1 if not even all of them do."""
    return bisect_left(range(n + 1), True, key=lambda count: bool(stopped_lower(count, n, alpha, most=n) >= level))
