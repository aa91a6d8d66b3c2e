"""What smoothing gained and cost on the same images, and how many times one certified radius is another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import require
from heatsmooth.results.certificates import Certificates, read_certificates
from heatsmooth.results.comparison import Change, Factor, Measure, Ratio
from heatsmooth.results.schema import Interval

RESAMPLES = 2000
LEVEL = 0.95

Values = NDArray[np.float64]
Kind = Literal["share", "mean", "median"]


def gains(before: list[Path], after: list[Path], *, top_k: int = 1, seed: int = 0) -> dict[str, Change]:
    """Each measure before and after, with intervals of the difference and of the factor.

    - ``before``, ``after``: directories of certificates over the same images, one per seed of the comparison. Values
      are means over the seeds. Radii count as 0 where the class is wrong or the model abstains.
    - ``top_k``: the certificates are about the label among the k most probable classes, and one pass is correct if the
      label is among them.
    - ``seed``: of the bootstrap.

    The intervals, ``LEVEL`` each, are over other images of the same kind, for these networks. For shares: Bonett and
    Price, valid for few images and for shares near 0 or 1. For radii: paired percentile bootstrap over images, too
    narrow for a few dozen images. A factor is None if its divisor is, or may be, 0.
    """
    runs = _read([before, after])
    resampled = resampled_images(len(runs[0][0]), seed)
    measured = [_measures(seeds, top_k) for seeds in runs]
    changes: dict[str, Change] = {}
    for measure, (kind, first) in measured[0].items():
        last = measured[1][measure][1]
        then, now = (_Estimate.of(values, resampled, kind == "median") for values in (first, last))
        shares = kind == "share"
        changes[measure] = Change(
            before=then.value,
            after=now.value,
            difference=now.value - then.value,
            difference_interval=shares_differ(last.mean(0) - first.mean(0))
            if shares
            else middle(now.resampled - then.resampled),
            **vars(_factor(now, then)),
        )
    return changes


def ratios(certified: Mapping[str, list[Path]], names: Iterable[str], *, seed: int = 0) -> dict[str, dict[str, Ratio]]:
    """How many times the average certified radius of each of ``names`` is that of each other method.

    - ``certified``: by method, directories of certificates, as for ``gains``.
    - ``seed``: of the bootstrap, whose interval is over images, for these networks.

    A factor is of means over the seeds that both methods have. ``by_seed`` has that of each seed, None where the
    divisor is 0.
    """
    runs = _read(list(certified.values()))
    resampled = resampled_images(len(runs[0][0]), seed)
    radii = {name: _radii(seeds) for name, seeds in zip(certified, runs, strict=True)}

    @cache
    def mean(name: str, seeds: int) -> _Estimate:
        return _Estimate.of(radii[name][:seeds], resampled)

    def ratio(one: str, other: str) -> Ratio:
        seeds = min(len(radii[one]), len(radii[other]))  # those that both have
        factor = _factor(mean(one, seeds), mean(other, seeds))
        return Ratio(**vars(factor), by_seed=_by_seed(radii[one][:seeds], radii[other][:seeds]))

    return {one: {other: ratio(one, other) for other in radii if other != one} for one in names}


def _by_seed(radii: Values, others: Values) -> tuple[float | None, ...]:
    pairs = zip(radii.mean(1).tolist(), others.mean(1).tolist(), strict=True)
    return tuple(mean / other if other > 0 else None for mean, other in pairs)


def shares_differ(differences: Values) -> Interval:
    """An interval for the mean of paired differences in [−1, 1], (images,), between two shares of images.

    It counts two more images, one gained and one lost (Bonett and Price 2012, Statistics in Medicine 31:1479):

    >>> [round(end, 3) for end in shares_differ(np.repeat([0.0, -1.0], [96, 4]))]
    [-0.086, 0.007]
    """
    n = len(differences) + 2
    mean = differences.sum() / n
    deviation = np.sqrt(((np.square(differences).sum() + 2) / n - mean**2) / n)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
    return float(max(-1.0, mean - reach)), float(min(1.0, mean + reach))


def _read(methods: list[list[Path]]) -> list[list[Certificates]]:
    """The certificates of each method and seed, which must be of the same images."""
    runs = [[Certificates.of(read_certificates(directory)) for directory in seeds] for seeds in methods]
    first = runs[0][0].indices
    for directories, seeds in zip(methods, runs, strict=True):
        for directory, run in zip(directories, seeds, strict=True):
            require(
                np.array_equal(run.indices, first),
                f"{directory}: expected certificates of the images of {methods[0][0]}, got others; "
                "certify the same images",
            )
    return runs


def resampled_images(images: int, seed: int) -> NDArray[np.int64]:
    """Indices of images, drawn with replacement, (``RESAMPLES``, images)."""
    return np.random.default_rng(seed).integers(images, size=(RESAMPLES, images))


@dataclass(frozen=True)
class _Estimate:
    """A mean or median over images, then the mean over seeds: for the images, and for each bootstrap sample."""

    value: float
    resampled: Values

    @classmethod
    def of(cls, values: Values, resampled: NDArray[np.int64], is_median: bool = False) -> Self:
        """Of ``values`` (seeds, images)."""
        statistic = np.median if is_median else np.mean
        estimates = np.mean([statistic(of_seed[resampled], axis=-1) for of_seed in values], axis=0)
        return cls(float(statistic(values, axis=-1).mean()), estimates)


def _factor(now: _Estimate, then: _Estimate) -> Factor:
    if np.quantile(then.resampled, (1 - LEVEL) / 2) <= 0:
        return Factor(factor=None, factor_interval=None)
    divisible = then.resampled > 0
    factors = np.divide(now.resampled, then.resampled, out=np.full(len(divisible), np.inf), where=divisible)
    return Factor(factor=now.value / then.value, factor_interval=middle(factors))


def _measures(seeds: list[Certificates], top_k: int) -> dict[Measure, tuple[Kind, Values]]:
    """What is summarised over the images, and how; values (seeds, images)."""
    radii = _radii(seeds)
    most_probable = [np.argsort(run.clean_probabilities, axis=1)[:, -top_k:] for run in seeds]
    one_pass = [(top == run.known_labels[:, None]).any(1) for top, run in zip(most_probable, seeds, strict=True)]
    return {
        Measure.ONE_PASS_ACCURACY: ("share", np.array(one_pass, dtype=np.float64)),
        Measure.CERTIFIED_AT_0: ("share", np.array([run.known_correct for run in seeds], dtype=np.float64)),
        Measure.ACR: ("mean", radii),
        Measure.MEDIAN_CERTIFIED_RADIUS: ("median", radii),
    }


def _radii(seeds: list[Certificates]) -> Values:
    """(seeds, images), 0 where the class is wrong or the model abstains."""
    return np.array([np.where(run.known_correct, run.radii, 0.0) for run in seeds])


def middle(values: Values) -> Interval:
    """The interval between the quantiles that leave out ``1 − LEVEL``."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return float(low), float(high)
