"""What smoothing brought a network, and what it cost, on the same images; how many times one radius is another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import require
from heatsmooth.results.certificates import Certificates, read_certificates

RESAMPLES = 2000
LEVEL = 0.95

Values = NDArray[np.float64]
Kind = Literal["share", "mean", "median"]


def gains(before: list[Path], after: list[Path], *, top_k: int = 1, seed: int = 0) -> dict[str, dict[str, Any]]:
    """By measure, its value before and after, the difference, and an interval of the difference and of the factor.

    ``before`` and ``after``: directories of certificates over the same images, one for each seed of the comparison;
    values are means over the seeds. Radii count as 0 where the class is wrong or abstained from. ``top_k``: the
    certificates are of the label among the k most probable classes, and a pass is right if it has it there. The
    intervals, ``LEVEL`` each, speak of other images of the same kind, for these networks. Of differences of shares:
    Bonett and Price's, which holds for few images and shares next to 0 or 1. Of radii: the middle of what the images
    give when drawn anew with replacement, the same for both (paired percentile bootstrap; too narrow for a few dozen
    images). A factor is None where its divisor is, or may well be, 0.
    """
    runs = _read([before, after])
    chosen = _redrawn(len(runs[0][0]), seed)
    measured = [_measures(seeds, top_k) for seeds in runs]
    found: dict[str, dict[str, Any]] = {}
    for name, (kind, first) in measured[0].items():
        last = measured[1][name][1]
        then, now = (_Summary.of(values, chosen, kind == "median") for values in (first, last))
        found[name] = {
            "before": then.value,
            "after": now.value,
            "difference": now.value - then.value,
            "difference_interval": shares_differ(last.mean(0) - first.mean(0))
            if kind == "share"
            else _middle(now.redrawn - then.redrawn),
            **_factor(now, then),
        }
    return found


def ratios(
    certified: Mapping[str, list[Path]], names: Iterable[str], *, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """How many times the average certified radius of each of ``names`` is that of each other method.

    ``certified``: by method, directories of certificates, as for ``gains``. The interval is as there: over images, for
    these networks. ``by_seed``: the factor of each seed alone, None where it would divide by 0.
    """
    runs = _read(list(certified.values()))
    chosen = _redrawn(len(runs[0][0]), seed)
    radii = {name: _radii(seeds) for name, seeds in zip(certified, runs, strict=True)}
    means = {name: _Summary.of(values, chosen) for name, values in radii.items()}
    return {
        one: {
            other: {**_factor(means[one], means[other]), "by_seed": _by_seed(radii[one], radii[other])}
            for other in radii
            if other != one
        }
        for one in names
    }


def _by_seed(radii: Values, others: Values) -> list[float | None]:
    pairs = zip(radii.mean(1).tolist(), others.mean(1).tolist(), strict=True)
    return [mean / other if other > 0 else None for mean, other in pairs]


def shares_differ(differences: Values) -> list[float]:
    """An interval for the mean of paired differences in [−1, 1], (images,), by which shares of images differ.

    As if there were two images more, one gained and one lost (Bonett and Price 2012, Statistics in Medicine 31:1479):

    >>> [round(end, 3) for end in shares_differ(np.repeat([0.0, -1.0], [96, 4]))]
    [-0.086, 0.007]
    """
    n = len(differences) + 2
    mean = differences.sum() / n
    deviation = np.sqrt(((np.square(differences).sum() + 2) / n - mean**2) / n)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * deviation
    return [float(max(-1.0, mean - reach)), float(min(1.0, mean + reach))]


def _read(methods: list[list[Path]]) -> list[list[Certificates]]:
    """The certificates of each method and seed, which must be of the same images."""
    runs = [[Certificates.of(read_certificates(directory)) for directory in seeds] for seeds in methods]
    first = runs[0][0].indices
    for directories, seeds in zip(methods, runs, strict=True):
        for directory, run in zip(directories, seeds, strict=True):
            require(
                np.array_equal(run.indices, first),
                f"{directory}: expected certificates of the images of {methods[0][0]}, got others; "
                "certify the same ones",
            )
    return runs


def _redrawn(images: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(images, size=(RESAMPLES, images))


@dataclass(frozen=True)
class _Summary:
    """A mean or median over images, then the mean over seeds: of the images as they are, and as drawn anew."""

    value: float
    redrawn: Values

    @classmethod
    def of(cls, values: Values, chosen: NDArray[np.int64], is_median: bool = False) -> Self:
        """Of ``values`` (seeds, images)."""
        summary = np.median if is_median else np.mean
        redrawn = np.mean([summary(of_seed[chosen], axis=-1) for of_seed in values], axis=0)
        return cls(float(summary(values, axis=-1).mean()), redrawn)


def _factor(now: _Summary, then: _Summary) -> dict[str, Any]:
    if np.quantile(then.redrawn, (1 - LEVEL) / 2) <= 0:
        return {"factor": None, "factor_interval": None}
    factors = np.divide(now.redrawn, then.redrawn, out=np.full(len(then.redrawn), np.inf), where=then.redrawn > 0)
    return {"factor": now.value / then.value, "factor_interval": _middle(factors)}


def _measures(seeds: list[Certificates], top_k: int) -> dict[str, tuple[Kind, Values]]:
    """By name, what over the images is meant, and the values of (seeds, images)."""
    radii = _radii(seeds)
    most_probable = [np.argsort(run.clean_probabilities, axis=1)[:, -top_k:] for run in seeds]
    one_pass = [(top == run.known_labels[:, None]).any(1) for top, run in zip(most_probable, seeds, strict=True)]
    return {
        "one_pass_accuracy": ("share", np.array(one_pass, dtype=np.float64)),
        "certified_at_0": ("share", np.array([run.known_correct for run in seeds], dtype=np.float64)),
        "average_certified_radius": ("mean", radii),
        "median_certified_radius": ("median", radii),
    }


def _radii(seeds: list[Certificates]) -> Values:
    """Of (seeds, images), 0 where the class is wrong or abstained from."""
    return np.array([np.where(run.known_correct, run.radii, 0.0) for run in seeds])


def _middle(values: Values) -> list[float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return [float(low), float(high)]
