"""Confidence bounds that stay valid however one decides to stop drawing.

A bound for a fixed n is wrong too often when n depends on the draws: looking again and again, one stops at the lucky
moment. These hold at all times at once, P(bound_n is wrong for some n) ≤ α. They need only the sums at the end, so
they can be computed again from stored counts, at any α.

``anytime`` and ``betting`` rest on Ville's inequality: a capital that starts at 1, is never negative and has no
expected gain at any draw (a supermartingale) ever reaches 1/α with probability at most α. Bet against each value of the
mean, and exclude those that made the bettor rich.
"""

from collections.abc import Callable
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.errors import require
from heatsmooth.statistics.bounds import (
    Flags,
    Floats,
    Integers,
    checked,
    clopper_pearson_lower,
    complement,
    error_probability,
    largest_true,
    sum_of_probabilities,
    sums_of_probabilities,
)

STAKES = [0.58 / 2**i for i in range(10)]
"""λ of ``betting_lower``, good for some 10 to 10⁷ draws; with 2ψ(λ) ≤ λ the capital falls with m."""


def anytime_lower(total: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p_n with E[X] ≥ p_n for all n at once, except with probability ``alpha`` < ½, from A = ΣX, X in [0, 1].

    X is 0 or 1, and A a count, or X is a probability. Why it holds: against E[X] ≤ p stand the likelihood ratios
    Π (q/p)^X ((1−q)/(1−p))^(1−X), q > p. A factor is convex and grows in X, so its mean is at most that for a 0/1 draw
    with P(1) = p, which is 1: each ratio is a supermartingale, and so is their mixture over q ~ Beta(½, ½) above p.
    Over all q, the mixture is M = B(A+½, n−A+½) / (π p^A (1−p)^(n−A)), the capital of betting on the running estimate
    (A+½)/(n+1) (Krichevsky and Trofimov 1981). For p < A/n no ratio of a q < p exceeds 1, so the mixture above p, of
    prior weight w = 2/π·arccos √p, is at least (M − 1 + w)/w, which reaches 1/α, and p is excluded, where
    M ≥ 1 + w(1/α − 1).

    The excluded p < A/n are an interval from 0, and p_n its end: with d = A − np and L = ln 1/α, at each of them
    L ≤ n·kl(A/n, p) ≤ d²/(np(1−p)), so d/p ≥ max(L, √(nL(1−p)/p)) ≥ 1/(2√p); and with p, −ln M grows by d/(p(1−p)),
    while −ln(1 + w(1/α − 1)) grows no more than −ln w, by at most 1/(2√p (1−p)).

    >>> anytime_lower([0, 90, 990], [100, 100, 1000], 0.001).round(4).tolist()
    [0.0, 0.7363, 0.9712]
    """
    sums, draws, levels = np.broadcast_arrays(*sum_of_probabilities(total, n), error_probability(alpha, most=0.5))
    return largest_true(_excluded(sums, draws, levels), sums / draws)


def anytime_exceeds(total: ArrayLike, n: ArrayLike, alpha: ArrayLike, p: ArrayLike) -> Flags:
    """Whether ``anytime_lower`` is at least ``p``, without looking for it: E[X] > p, shown at all times at once."""
    level = checked("p", p, lambda x: (x >= 0) & (x <= 1), "probabilities from 0 to 1; take Φ(radius/sigma)")
    return _excluded(*sum_of_probabilities(total, n), error_probability(alpha, most=0.5))(level)


def _excluded(sums: Floats, draws: Floats, alpha: Floats) -> Callable[[Floats], Flags]:
    """Which p are excluded as too small: p < A/n with M ≥ 1 + w(1/α − 1)."""
    mixture = special.betaln(sums + 0.5, draws - sums + 0.5) - np.log(np.pi)

    def excluded(p: Floats) -> Flags:
        capital = mixture - special.xlogy(sums, p) - special.xlog1py(draws - sums, -p)
        enough = np.log1p((1 / alpha - 1) * 2 / np.pi * np.arccos(np.sqrt(p)))
        return np.asarray((capital >= enough) & (p * draws < sums))

    return excluded


def stopped_lower(count: ArrayLike, n: ArrayLike, alpha: float, *, most: int) -> Floats:
    """The p_n with P(1) ≥ p_n at all n ≤ ``most`` at once, except with probability ``alpha``, from counts of 0/1 draws.

    Half of α goes to ``anytime_lower``, the other half to ``clopper_pearson_lower`` at the last look, n = ``most``,
    which must be fixed beforehand: a count that needs all its draws gets almost the bound of a fixed n.

    >>> stopped_lower([850, 8500], [1000, 10_000], 0.001, most=10_000).round(4).tolist()
    [0.7948, 0.8379]
    """
    counts, draws = np.broadcast_arrays(np.asarray(count), np.asarray(n))
    early, last = anytime_lower(counts, draws, alpha / 2), clopper_pearson_lower(counts, draws, alpha / 2)
    return np.where(draws == most, np.maximum(early, last), early)


def anytime_upper(total: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p_n with E[X] ≤ p_n for all n at once, except with probability ``alpha`` < ½: ``anytime_lower`` of 1 − X."""
    sums, draws = sum_of_probabilities(total, n)
    return 1 - anytime_lower(draws - sums, draws, alpha)


def betting_lower(total: ArrayLike, squares: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The m_n with E[X] ≥ m_n for all n at once, except with probability ``alpha``, from ΣX and ΣX², X in [0, 1].

    Betting the share λ on X > m multiplies the capital by 1 + λ(X−m), of mean ≤ 1 where E[X] ≤ m, and never less than
    exp(λ(X−m) − ψ(λ)(X−m)²), ψ(λ) = −ln(1−λ) − λ, as X−m ≥ −1 (Fan, Grama and Liu 2015). The product of the latter is
    known from the sums alone; the capital is its mean over the fixed ``STAKES``. Its logarithm has the slope
    −nλ + 2nψ(λ)(mean−m) ≤ 0 in m below the mean, so the excluded m are an interval from 0. It knows the variance, and
    is tighter than ``anytime_lower`` unless most X are near 0 or 1; up to n = 10⁴ mostly than ``bernstein_lower`` too.
    """
    sums, squared, draws = sums_of_probabilities(total, squares, n)
    sums, squared, draws, needed = np.broadcast_arrays(
        sums, squared, draws, np.log(len(STAKES) / error_probability(alpha))
    )

    def excluded(m: Floats) -> Flags:
        gain, spread = sums - draws * m, squared - 2 * m * sums + draws * m**2
        capitals = (stake * gain + (np.log1p(-stake) + stake) * spread for stake in STAKES)
        return np.asarray(reduce(np.logaddexp, capitals) >= needed)

    return largest_true(excluded, sums / draws)


def betting_upper(total: ArrayLike, squares: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The m_n with E[X] ≤ m_n for all n at once, except with probability ``alpha``: ``betting_lower`` of 1 − X."""
    return 1 - betting_lower(*complement(total, squares, n), alpha)


def look_alpha(look: ArrayLike, alpha: float, *, rounds: int | None = None) -> Floats:
    """The share of ``alpha`` for a fixed-n bound at the 1st, 2nd, … ``look``: any of them may be the last.

    With ``rounds`` looks at most, each has alpha/rounds (Horváth 2022); without end, the t-th has 5α/((t+4)(t+5)),
    which add up to α (Voráček 2024). With looks at numbers of draws fixed beforehand, such as ``geometric_looks``,
    ``clopper_pearson_lower(count, n, look_alpha(look, alpha))`` holds at all of them at once.

    >>> look_alpha([1, 2, 3], 0.001).round(6).tolist(), float(look_alpha(1, 0.001, rounds=4))
    ([0.000167, 0.000119, 8.9e-05], 0.00025)
    """
    numbered = checked(
        "look", look, lambda t: (t >= 1) & (t == np.floor(t)), "whole numbers from 1; the first look is 1"
    )
    if rounds is None:
        return 5 * error_probability(alpha) / ((numbered + 4) * (numbered + 5))
    require(
        bool((numbered <= rounds).all()),
        f"look: expected at most {rounds} rounds, got {numbered.max():g}; plan more rounds",
    )
    return np.full_like(numbered, float(error_probability(alpha)) / rounds)


def geometric_looks(first: int, ratio: float, last: int) -> Integers:
    """Numbers of draws at which to look: ``first``, then ``ratio`` times as many each time, and at the end ``last``.

    >>> geometric_looks(100, 2, 1000).tolist()
    [100, 200, 400, 800, 1000]
    """
    require(1 <= first <= last, f"first: expected 1 to {last} draws, got {first}; start with fewer")
    require(ratio > 1, f"ratio: expected a number above 1, got {ratio}; 1.5 is usual")
    exponents = np.arange(int(np.log(last / first) / np.log(ratio)) + 2)
    return np.unique(np.minimum(np.ceil(first * ratio**exponents), last)).astype(np.int64)
