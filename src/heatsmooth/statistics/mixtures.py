"""One betting process for several radii at once, with a prior from other images.

A capital per asked level of probability t bets that the true p is above t. It is a mixture of likelihood ratios over
q > t, so a supermartingale for every p ≤ t, whatever the weights of the mixture. By Ville's inequality it reaches 1/α
at some time with probability at most α. A prior that fits saves samples; one that does not fit only costs samples.

If the looks at the counts are known beforehand, the capital need not reach 1/α: ``looks`` computes the lowest threshold
that it reaches at one of them with probability at most α.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.errors import require
from heatsmooth.statistics.bounds import Flags, Floats, Integers, largest_true, sum_of_probabilities
from heatsmooth.statistics.looks import exact_threshold, looks_until

KNOTS = np.linspace(-4.0, 5.0, 37)
"""Values of z = Φ⁻¹(p) at which a prior has its weights."""
STEPS = 0.02 * 1.3 ** np.arange(22)
"""Distances of the alternatives from a level, in z: from what 100,000 samples show to what 10 show."""
DOUBT = 0.1
"""Share of an even prior in every fitted one. So no fitted prior is far worse than none."""
MOST_GROUPS, GROUP_SIZE = 6, 30
BLUR = 0.25
"""Standard deviation, in z, by which a fitted prior is smoothed."""
MOST_EXACT = 1_000_000
"""Above so many samples, exact thresholds would take minutes to compute, and 1/α is used."""
BETWEEN = 0.1
"""Share of α for bounds between and above the asked levels, where the others are exact."""


@dataclass(frozen=True)
class Prior:
    """How probable each z = Φ⁻¹(p) is before sampling, by the probability of the class in one pass.

    It must not depend on the samples that it is used for. Then certificates are valid however wrong it is.
    """

    edges: tuple[float, ...] = ()
    """Probabilities in one pass that separate the groups of images, in ascending order."""
    weights: tuple[tuple[float, ...], ...] = ((1.0,) * len(KNOTS),)
    """Per group, the density of z at each of ``KNOTS``, up to a factor."""

    def __post_init__(self) -> None:
        fits = (
            len(self.weights) == len(self.edges) + 1,
            all(len(row) == len(KNOTS) and all(0 < w < 1e9 for w in row) for row in self.weights),
            all(a < b for a, b in zip((0.0, *self.edges), (*self.edges, 1.0), strict=True)),
        )
        require(all(fits), "`prior`: expected positive weights per group, got others; fit it again")

    def groups(self, one_pass: ArrayLike) -> Integers:
        """The group of images by the probability of their class in one pass."""
        return np.digitize(np.asarray(one_pass, dtype=np.float64), np.array(self.edges))


def fitted_prior(count: ArrayLike, n: ArrayLike, one_pass: ArrayLike) -> Prior:
    """The prior of images like these, by smoothed maximum likelihood (expectation–maximisation).

    ``count``, ``n``: samples with the class, and all samples, (images,).
    ``one_pass``: the probability of the class in one pass, (images,).
    """
    counts, samples = (np.asarray(values, dtype=np.float64) for values in np.broadcast_arrays(count, n))
    confidence = np.asarray(one_pass, dtype=np.float64)
    groups = int(np.clip(len(counts) // GROUP_SIZE, 1, MOST_GROUPS))
    quantiles = np.quantile(confidence, np.linspace(0, 1, groups + 1)[1:-1])
    edges = np.unique(quantiles[(quantiles > 0) & (quantiles < 1)].round(6))
    edges = edges[(edges > 0) & (edges < 1)]
    of_group = np.digitize(confidence, edges)
    weights = [_smoothed(counts[of_group == group], samples[of_group == group]) for group in range(len(edges) + 1)]
    return Prior(tuple(edges.tolist()), tuple(tuple(row.round(6).tolist()) for row in weights))


def _smoothed(count: Floats, n: Floats) -> Floats:
    """Weights of the knots for images with these counts, with ``DOUBT``; they sum to the number of knots."""
    likelihood = np.outer(count, special.log_ndtr(KNOTS)) + np.outer(n - count, special.log_ndtr(-KNOTS))
    likelihood = np.exp((likelihood - likelihood.max(1, keepdims=True)).clip(min=-700))
    blur = np.exp(-0.5 * ((KNOTS[:, None] - KNOTS) / BLUR) ** 2)
    weights, blur = np.full(len(KNOTS), 1 / len(KNOTS)), blur / blur.sum(0)
    for _ in range(100 if len(count) else 0):
        share = likelihood * weights
        weights = blur @ (share / share.sum(1, keepdims=True)).mean(0)
    return np.asarray(len(KNOTS) * ((1 - DOUBT) * weights + DOUBT / len(KNOTS)))


@dataclass(frozen=True)
class Points:
    """Alternatives q = Φ(z), with the logarithms of their weights, which sum to 1."""

    z: Floats
    log_weights: Floats

    @cached_property
    def _logarithms(self) -> tuple[Floats, Floats]:
        return special.log_ndtr(self.z), special.log_ndtr(-self.z)

    def log_likelihoods(self, count: Floats, n: Floats) -> Floats:
        """The logarithm of weight·q^A (1−q)^(n−A), (images, points)."""
        success, failure = self._logarithms
        return self.log_weights + count[..., None] * success + (n - count)[..., None] * failure

    def divergences(self, level: float) -> Floats:
        """KL(q, level), (points,): the mean growth of ln of the likelihood ratio per sample."""
        q, (success, failure) = special.ndtr(self.z), self._logarithms
        growth = q * (success - np.log(level)) + (1 - q) * (failure - np.log1p(-level))
        return np.asarray(np.maximum(growth, 1e-12))


@dataclass(frozen=True)
class Mixture:
    """The capitals of one group of images, for ascending ``levels`` of probability and at most ``most`` samples."""

    levels: tuple[float, ...]
    weights: tuple[float, ...]
    """The row of ``Prior.weights``."""
    most: int
    exact: bool = False
    """Whether thresholds are computed for the looks of ``looks_until(most)``, instead of 1/α."""

    @cached_property
    def _bets(self) -> list[tuple[float, Points]]:
        """Each level, and the alternatives above it.

        Their weight is the prior times √(1/KL), about the root of the samples that an alternative takes: those that
        take many samples gain most by a larger weight.
        """
        bets = []
        for level in self.levels:
            z = special.ndtri(level) + STEPS
            taken = np.minimum(1 / Points(z, z).divergences(level), self.most)
            weight = np.interp(z, KNOTS, self.weights) * np.gradient(STEPS) * np.sqrt(taken)
            bets.append((level, Points(z, np.log(weight / weight.sum()))))
        return bets

    @cached_property
    def _prior(self) -> Points:
        """The prior on a grid that is fine at the levels."""
        levels = special.ndtri(np.array(self.levels))[:, None]
        z = np.unique(np.concatenate([np.linspace(-4, 5, 91), *(levels + STEPS), *(levels - STEPS)]).clip(-6, 8))
        weight = np.interp(z, KNOTS, self.weights) * np.gradient(z)
        return Points(z, np.log(weight / weight.sum()))

    @cached_property
    def _above(self) -> list[tuple[Integers, Floats]]:
        """Per level: which points of the prior are above it, in descending order, and their divergences from it."""
        z = self._prior.z
        above = [np.flatnonzero(z > special.ndtri(level) + STEPS[0] / 2)[::-1] for level in self.levels]
        return [
            (points, self._prior.divergences(level)[points]) for points, level in zip(above, self.levels, strict=True)
        ]

    def log_capitals(self, count: ArrayLike, n: ArrayLike) -> Floats:
        """ln M per image and level, (images, levels): M ≥ 1/α at any time excludes p ≤ level."""
        a, samples = sum_of_probabilities(count, n)
        return np.stack([_log_capital(a, samples, level, points) for level, points in self._bets], -1)

    def thresholds(self, alpha: float) -> Floats:
        """The ln M that excludes p ≤ level, (levels,)."""
        if not self.exact:
            return np.full(len(self.levels), np.log(1 / alpha))
        share = (1 - BETWEEN) * alpha
        if self.most > MOST_EXACT:
            return np.full(len(self.levels), np.log(1 / share))
        return np.array(_exact_thresholds(self, share))

    def excludes(self, count: ArrayLike, n: ArrayLike, alpha: float) -> Flags:
        """Whether p ≤ level is excluded, (images, levels), ascending: none without those below it.

        The first level that is not below p is excluded with probability at most ``alpha``, and none above it without
        it. Exact thresholds are for the planned looks alone. Between two of them, a level is excluded if it must have
        been at the one before, where the count was at least A less the samples since; or if it must be at the next one,
        where the count is at least A. More than ``most`` samples exclude nothing.
        """
        a, samples = sum_of_probabilities(count, n)
        if not self.exact:
            return self._reaches(a, samples, alpha)
        looks = np.array(looks_until(self.most), dtype=np.float64)
        later = np.searchsorted(looks, samples).clip(max=len(looks) - 1)
        after, before = looks[later], looks[np.maximum(later - 1, 0)]
        least = np.where(later > 0, a - (samples - before), 0.0).clip(0, before)
        earlier = self._reaches(least, before, alpha)
        excluded = earlier | self._reaches(np.minimum(a, after), after, alpha)
        return np.asarray(excluded & (samples <= self.most)[..., None])

    def _reaches(self, count: Floats, n: Floats, alpha: float) -> Flags:
        """Whether the capitals of each level and of those below it reach their thresholds."""
        return np.logical_and.accumulate(self.log_capitals(count, n) >= self.thresholds(alpha), -1)

    def lower(self, count: ArrayLike, n: ArrayLike, alpha: float) -> Floats:
        """The p_n with P(success) ≥ p_n for all n ≤ ``most`` at once, except with probability ``alpha``; (images,).

        Each p up to a level, and above the level before it, is tested with the alternatives of that level; each p above
        the last one with those of the last level that are above p. Both capitals fall as p grows, so the p that are
        excluded between two levels are an interval. p_n is the end of those that are excluded without a gap from 0 on.
        A true p below p_n was excluded itself, for which Ville's inequality gives the probability.

        With exact thresholds this bound gets a tenth of ``alpha``, and the levels get the rest.
        """
        a, samples = sum_of_probabilities(count, n)
        if self.exact:
            excluded = self.excludes(a, samples, alpha).sum(-1)
            reached = np.concatenate([[0.0], self.levels])[excluded]
            between = replace(self, exact=False).lower(a, samples, BETWEEN * alpha)
            return np.asarray(np.maximum(reached, between))
        bound, unbroken = np.zeros_like(a), np.ones(a.shape, dtype=bool)
        for level, points in self._bets:
            excluded = _excluded(a, samples, alpha, points.log_likelihoods(a, samples))
            whole = excluded(np.full_like(a, level))
            if not unbroken.any():
                return bound
            end = np.full_like(a, level) if whole.all() else largest_true(excluded, np.full_like(a, level))
            bound = np.where(unbroken, np.maximum(bound, np.where(whole, level, end)), bound)
            unbroken &= whole
        if not unbroken.any():
            return bound
        last = self._bets[-1][1]
        excluded = _excluded(a, samples, alpha, last.log_likelihoods(a, samples), special.ndtr(last.z))
        return np.where(unbroken, np.maximum(bound, largest_true(excluded, np.ones_like(a))), bound)

    def gain(self, count: ArrayLike, n: ArrayLike, alpha: float) -> Floats:
        """How many more levels per sample further sampling is expected to exclude, (images,); 0 if none is left.

        A level that not even ``most`` samples would exclude, if all others succeed, counts as none.

        For each level: the largest, over a horizon H, of P(T ≤ H) / E[min(T, H)]. T is the time that the capital still
        needs to reach its threshold if it grows by KL(q, level) per sample, and q is drawn from the prior given the
        samples so far. The largest of these over the levels is the gain. It decides what is sampled, never what is
        claimed.
        """
        a, samples = sum_of_probabilities(count, n)
        posterior = self._prior.log_likelihoods(a, samples)
        posterior = np.exp(posterior - posterior.max(-1, keepdims=True))
        posterior /= posterior.sum(-1, keepdims=True)
        missing = self.thresholds(alpha) - self.log_capitals(a, samples)
        reached, best = self.excludes(a, samples, alpha), np.zeros_like(a)
        left = (self.most - samples)[..., None]
        possible = self.log_capitals(a + left[..., 0].clip(min=0), np.maximum(samples, self.most)) >= self.thresholds(
            alpha
        )
        for column, (above, divergences) in enumerate(self._above):
            if reached[..., column].all():
                continue
            time = np.maximum(np.maximum(missing[..., column, None], 1.0) / divergences, 1.0)
            share = posterior[..., above]
            chance = np.cumsum(share, -1)
            cost = np.cumsum(share * time, -1) + (1 - chance) * time
            rate = np.where(time <= left, chance / cost, 0.0).max(-1)
            best = np.maximum(best, np.where(possible[..., column] & ~reached[..., column], rate, 0.0))
        return best


@cache
def mixture_of(prior: Prior, group: int, levels: tuple[float, ...], most: int, exact: bool = False) -> Mixture:
    """The mixture of a group of images; made once."""
    return Mixture(levels, prior.weights[group], most, exact)


@cache
def _exact_thresholds(mixture: Mixture, alpha: float) -> tuple[float, ...]:
    """Per level; computed once, in half a second for 10,000 samples and in 6 seconds for 1,000,000."""
    looks = looks_until(mixture.most)
    return tuple(
        exact_threshold(partial(_log_capital, level=level, points=points), looks, level, alpha)
        for level, points in mixture._bets
    )


def _log_capital(count: Floats | Integers, n: Floats | Integers, level: float, points: Points) -> Floats:
    a, samples = np.asarray(count, dtype=np.float64), np.asarray(n, dtype=np.float64)
    whole = _log_sum(points.log_likelihoods(a, samples))
    return np.asarray(whole - a * np.log(level) - (samples - a) * np.log1p(-level))


def _log_sum(terms: Floats) -> Floats:
    most = terms.max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(most == -np.inf, most, most + np.log(np.exp(terms - most[..., None]).sum(-1))))


def _excluded(
    count: Floats, n: Floats, alpha: float, terms: Floats, alternatives: Floats | None = None
) -> Callable[[Floats], Flags]:
    """The function that tells which p are excluded: Σ exp(terms) ≥ p^A (1−p)^(n−A)/α, over alternatives above p."""
    whole = _log_sum(terms)

    def excluded(p: Floats) -> Flags:
        total = whole
        if alternatives is not None:
            total = _log_sum(np.where(alternatives > p[..., None], terms, -np.inf))
        capital = total - special.xlogy(count, p) - special.xlog1py(n - count, -p)
        return np.asarray((capital >= np.log(1 / alpha)) & (p * n < count))

    return excluded
