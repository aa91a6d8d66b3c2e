"""Confidence bounds that stay valid whenever sampling stops.

A bound for a fixed n is wrong too often when n depends on the samples: repeated looks allow to stop at a lucky moment.
These bounds hold at all n at once, P(bound_n is wrong for some n) ≤ α. They need only the sums at the end, so they can
be computed again from stored counts, at any α.

They rest on Ville's inequality. A capital that starts at 1, is never negative and has no expected gain at any sample
(a supermartingale) reaches 1/α at some time with probability at most α. So bet against each value of the mean, and
exclude the values for which the capital reached 1/α.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.statistics.bounds import (
    Flags,
    Floats,
    checked,
    clopper_pearson_lower,
    error_probability,
    largest_true,
    sum_of_probabilities,
)


def anytime_lower(total: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p_n with E[X] ≥ p_n for all n at once, except with probability ``alpha``, for independent X in [0, 1].

    ``total``: A = ΣX; a count if X is 0 or 1, else a sum of probabilities.
    ``n``: samples so far.
    ``alpha``: the probability that the bound is wrong at some n, above 0 and below ½.

    Why it holds. Against E[X] ≤ p, take the likelihood ratios Π (q/p)^X ((1−q)/(1−p))^(1−X), q > p. A factor is convex
    and grows in X. So its mean is at most that for X in {0, 1} with P(1) = p, which is 1. Hence each ratio is a
    supermartingale, and so is their mixture over q ~ Beta(½, ½) above p. Over all q, the mixture is
    M = B(A+½, n−A+½) / (π p^A (1−p)^(n−A)), the capital of betting on the running estimate (A+½)/(n+1) (Krichevsky and
    Trofimov 1981). For p < A/n, no ratio of a q < p exceeds 1. So the mixture above p, of prior weight
    w = 2/π·arccos √p, is at least (M − 1 + w)/w. This reaches 1/α, and p is excluded, where M ≥ 1 + w(1/α − 1).

    The excluded p < A/n are an interval from 0, and p_n is its end. With d = A − np and L = ln 1/α, at each of them
    L ≤ n·kl(A/n, p) ≤ d²/(np(1−p)), so d/p ≥ max(L, √(nL(1−p)/p)) ≥ 1/(2√p). And with p, −ln M grows by d/(p(1−p)),
    while −ln(1 + w(1/α − 1)) grows no more than −ln w, by at most 1/(2√p (1−p)).

    >>> anytime_lower([0, 90, 990], [100, 100, 1000], 0.001).round(4).tolist()
    [0.0, 0.7363, 0.9712]
    """
    sums, samples, levels = np.broadcast_arrays(*sum_of_probabilities(total, n), error_probability(alpha, most=0.5))
    return largest_true(_excluded(sums, samples, levels), sums / samples)


def anytime_exceeds(total: ArrayLike, n: ArrayLike, alpha: ArrayLike, p: ArrayLike) -> Flags:
    """Whether ``anytime_lower`` is at least ``p``, without searching for it: then E[X] > p, for all n at once."""
    level = checked("p", p, lambda x: (x >= 0) & (x <= 1), "probabilities from 0 to 1; use Φ(radius/sigma)")
    return _excluded(*sum_of_probabilities(total, n), error_probability(alpha, most=0.5))(level)


def _excluded(sums: Floats, samples: Floats, alpha: Floats) -> Callable[[Floats], Flags]:
    """The function that tells which p are excluded as too small: p < A/n with M ≥ 1 + w(1/α − 1)."""
    mixture = special.betaln(sums + 0.5, samples - sums + 0.5) - np.log(np.pi)

    def excluded(p: Floats) -> Flags:
        capital = mixture - special.xlogy(sums, p) - special.xlog1py(samples - sums, -p)
        enough = np.log1p((1 / alpha - 1) * 2 / np.pi * np.arccos(np.sqrt(p)))
        return np.asarray((capital >= enough) & (p * samples < sums))

    return excluded


def stopped_lower(count: ArrayLike, n: ArrayLike, alpha: float, *, most: int) -> Floats:
    """The p_n with P(success) ≥ p_n for all n ≤ ``most`` at once, except with probability ``alpha``.

    Half of α goes to ``anytime_lower``, the other half to ``clopper_pearson_lower`` at n = ``most``. So an image that
    needs all samples gets almost the bound of a fixed n.

    ``count``: successes so far.
    ``n``: samples so far.
    ``alpha``: the probability that the bound is wrong at some n.
    ``most``: the largest number of samples, fixed before sampling.

    >>> stopped_lower([850, 8500], [1000, 10_000], 0.001, most=10_000).round(4).tolist()
    [0.7948, 0.8379]
    """
    counts, samples = np.broadcast_arrays(np.asarray(count), np.asarray(n))
    early, last = anytime_lower(counts, samples, alpha / 2), clopper_pearson_lower(counts, samples, alpha / 2)
    return np.where(samples == most, np.maximum(early, last), early)


def anytime_upper(total: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p_n with E[X] ≤ p_n for all n at once, except with probability ``alpha``: ``anytime_lower`` of 1 − X."""
    sums, samples = sum_of_probabilities(total, n)
    return 1 - anytime_lower(samples - sums, samples, alpha)
