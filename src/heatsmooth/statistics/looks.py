"""Exact error probabilities of a test that looks at its count several times.

Ville's inequality bounds how often a capital reaches a threshold at any time, for ever. Sampling here ends at a known n
and is looked at after known numbers of samples, so the probability can be computed instead: count by count, from look
to look. The lowest threshold that keeps to α is up to several times lower than 1/α.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import special

from heatsmooth.statistics.bounds import Floats, Integers

FIRST = 50
"""Samples before the first look, and the fewest between two looks."""
SHARE = 50
"""Later, one look for every 50th part of the samples so far."""
TAIL = 1e-13
"""Counts in tails of less than this probability are left out at each step. They are counted as errors."""
ROUNDING = 1e-9
"""Share of α that is left for the rounding of the computed probabilities, which is far smaller."""


@cache
def looks_until(most: int) -> tuple[int, ...]:
    """After how many samples a test of at most ``most`` samples looks at its count, ascending."""
    looks = [min(FIRST, most)]
    while looks[-1] < most:
        looks.append(min(most, looks[-1] + max(FIRST, looks[-1] // SHARE // FIRST * FIRST)))
    return tuple(looks)


def until_next_look(done: int, most: int) -> int:
    """How many samples are left until the first look after ``done`` samples, of at most ``most``; 0 after the last."""
    looks = looks_until(most)
    later = bisect_right(looks, done)
    return looks[later] - done if later < len(looks) else 0


def reaching_probability(looks: tuple[int, ...], least: Integers, p: float) -> float:
    """P(the count is at least ``least`` at some look), for independent samples that succeed with probability ``p``.

    ``least`` (looks,): the count that counts as a success of the test at each look. Never too small, but for rounding:
    what is left out is added. It grows with ``p``, because every count does.
    """
    at_least, reached, lowest, done = np.ones(1), 0.0, 0, 0
    for look, bound in zip(looks, least.tolist(), strict=True):
        start, steps, outside = _binomial(look - done, p)
        at_least, lowest, done = np.convolve(at_least, steps), lowest + start, look
        reached += outside + float(at_least[max(bound - lowest, 0) :].sum())
        at_least = at_least[: max(bound - lowest, 0)]
        dropped = int(np.searchsorted(np.cumsum(at_least), TAIL))
        reached += float(at_least[:dropped].sum())
        at_least, lowest = at_least[dropped:], lowest + dropped
        if not len(at_least):
            break
    return reached


def _binomial(n: int, p: float) -> tuple[int, Floats, float]:
    """Smallest count, probabilities of the counts from there on, and a bound of the probability of all others."""
    counts = np.arange(n + 1, dtype=np.float64)
    ways = special.gammaln(n + 1) - special.gammaln(counts + 1) - special.gammaln(n - counts + 1)
    probabilities = np.exp(ways + counts * np.log(p) + (n - counts) * np.log1p(-p))
    kept = np.flatnonzero(probabilities > TAIL / (n + 1))
    return int(kept[0]), probabilities[kept[0] : kept[-1] + 1], TAIL


def exact_threshold(
    log_capital: Callable[[Integers, Integers], Floats], looks: tuple[int, ...], p: float, alpha: float
) -> float:
    """The lowest threshold that ``log_capital`` reaches at some look with probability at most ``alpha``, given ``p``.

    ``log_capital``: of counts after numbers of samples, (looks,) both; it grows with the count. It must be a
    supermartingale given ``p`` that starts at 0. Then ln 1/α is a valid threshold (Ville), and the lowest one is found
    between it and 0, to within 0.001.
    """
    low, high, after = 0.0, float(np.log(1 / alpha)), np.array(looks)
    while high - low > 0.001:
        middle = (low + high) / 2
        valid = reaching_probability(looks, _least(log_capital, after, middle), p) <= alpha * (1 - ROUNDING)
        low, high = (low, middle) if valid else (middle, high)
    return high


def _least(log_capital: Callable[[Integers, Integers], Floats], after: Integers, threshold: float) -> Integers:
    """At each look, the smallest count whose capital reaches the threshold; one more than all if none does."""
    low, high = np.zeros_like(after), after + 1
    while (low < high).any():
        middle = (low + high) // 2
        reaches = (middle > after) | (log_capital(np.minimum(middle, after), after) >= threshold)
        low, high = np.where(reaches | (low >= high), low, middle + 1), np.where(reaches, middle, high)
    return low
