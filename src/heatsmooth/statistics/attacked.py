"""How much an attacker who does not know the noise can raise a probability over the noise.

Let z = x + η, η ~ N(0, τ²I), and A a set that is fixed before η is drawn, with p = P(x + η ∈ A). For every shift δ that
is chosen without knowing η, ‖δ‖ ≤ ρ, and a = ρ/τ (Neyman–Pearson)

    P(x + δ + η ∈ A) ≤ Φ(Φ⁻¹(p) + a).

With k independent noises, at least j of the k shifted points are in A with probability at most

    F(p) = P(Binomial(k, Φ(Φ⁻¹(p) + a)) ≥ j),

because given x and δ the points are independent, each is in A with at most that probability, and the probability of at
least j grows with it. The general bound for sets in k·d dimensions, where the shift has the length √k·ρ, is
Φ(Φ⁻¹(u) + √k·a) with u = P(Binomial(k, p) ≥ j). It is never smaller than F(p).
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.statistics.bounds import Floats

POINTS = np.linspace(-8.0, 8.0, 1601)
"""Φ⁻¹(p) of the probabilities p at which ``risks_by_count`` is checked."""
SLACK = 1e-4
"""By how much the expected risk may fall short of F, at most."""


def attacked(p: ArrayLike, shift: float) -> Floats:
    """Φ(Φ⁻¹(p) + ``shift``): the largest probability after a shift of so many standard deviations; 0 and 1 stay.

    >>> round(float(attacked(0.05, 1.0)), 4)
    0.2595
    """
    return np.asarray(special.ndtr(special.ndtri(np.asarray(p, np.float64)) + shift))


def attacked_votes(p: ArrayLike, shift: float, *, passes: int, needed: int) -> Floats:
    """F(p): the largest probability that at least ``needed`` of ``passes`` attacked points are in the set."""
    # P(Binomial(k, q) ≥ j) is the regularised incomplete beta function I_q(j, k − j + 1).
    return np.asarray(special.betainc(needed, passes - needed + 1, attacked(p, shift)))


def risks_by_count(samples: int, shift: float, *, passes: int, needed: int) -> Floats:
    """A risk ψ for each number of ``samples`` in the set, (samples + 1,): E ψ(Binomial(samples, p)) ≥ F(p) − ``SLACK``.

    p is not known, only how many samples are in the set. F at the share of these samples would be too small on average
    where F is concave. So ψ(i) = F((i + b)/samples), with the least b that suffices at all ``POINTS``. It grows with i.
    """
    p, counts = special.ndtr(POINTS), np.arange(samples + 1)
    log_ways = special.gammaln(samples + 1) - special.gammaln(counts + 1) - special.gammaln(samples - counts + 1)
    tails = special.ndtr(-POINTS)
    chances = np.exp(log_ways + special.xlogy(counts, p[:, None]) + special.xlogy(samples - counts, tails[:, None]))
    needed_risk = attacked_votes(p, shift, passes=passes, needed=needed)

    def risks(more: float) -> Floats:
        shares = np.minimum((counts + more) / samples, 1.0)
        return attacked_votes(shares, shift, passes=passes, needed=needed)

    def suffices(more: float) -> bool:
        return bool((chances @ risks(more) >= needed_risk - SLACK / 100).all())

    low, high = 0.0, 0.0 if suffices(0.0) else float(samples)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return risks(high)
