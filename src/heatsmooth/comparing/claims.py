"""Whether the claims of the paper hold in the runs of a comparison: differences with intervals, and a verdict."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from heatsmooth.comparing.gains import Kind, Values, middle, resampled_images, shares_differ
from heatsmooth.comparing.recipe import Recipe, Stated
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.claims import Claim, ClaimVerdict
from heatsmooth.results.comparison import TIMING_FILE, Measure, Timing
from heatsmooth.results.schema import Interval
from heatsmooth.results.timesteps import TIMESTEPS_FILE, TimestepsResult
from heatsmooth.statistics.radii import l_bound

RADII = {
    Measure.CERTIFIED_AT_0: 0.0,
    Measure.CERTIFIED_AT_01: 0.1,
    Measure.CERTIFIED_AT_02: 0.2,
    Measure.CERTIFIED_AT_025: 0.25,
    Measure.CERTIFIED_AT_03: 0.3,
    Measure.CERTIFIED_AT_05: 0.5,
}
"""Certified accuracy at these radii."""
STATISTICS: dict[Kind, Callable[..., Values]] = {"share": np.nanmean, "mean": np.nanmean, "median": np.nanmedian}


def claims(recipe: Recipe, places: list[Path]) -> tuple[Claim, ...]:
    """Each claim of the recipe whose two methods are compared.

    - ``recipe``: the comparison.
    - ``places``: the directory of the runs of each seed. A claim uses the seeds that both methods have.
    """
    runs = Runs(recipe)
    return tuple(
        runs.claim(stated, recipe.seeds_of_both(stated.larger, stated.smaller, places))
        for stated in recipe.claims
        if {stated.larger, stated.smaller} <= recipe.compared.keys()
    )


@dataclass(frozen=True)
class Runs:
    """The runs of a comparison, read once."""

    recipe: Recipe
    _read: dict[Path, Certificates] = field(default_factory=dict)

    def claim(self, stated: Stated, places: list[Path]) -> Claim:
        """What these seeds show about a claim."""
        if stated.measure is Measure.ANSWER_SECONDS:
            found = self._seconds(stated, places)
        elif stated.measure in (Measure.DISTANCE_TO_AVERAGE, Measure.DISTANCE_TO_WIDER_AVERAGE):
            found = self._approached(stated, places)
        else:
            found = self._over_images(stated, places)
        finite = np.isfinite(found.values).all()
        return Claim(
            claim=stated.claim,
            where=stated.where,
            larger=stated.larger,
            smaller=stated.smaller,
            measure=stated.measure,
            paper=stated.paper,
            values=found.values if finite else None,
            difference=found.values[0] - found.values[1] if finite else None,
            interval=found.interval,
            by_seed=found.by_seed,
            verdict=ClaimVerdict.of(found.interval, found.by_seed),
        )

    def _over_images(self, stated: Stated, places: list[Path]) -> "_Found":
        names = (stated.larger, stated.smaller)
        (kind, larger), (_, smaller) = (self.values(name, stated.measure, places) for name in names)
        found = difference(kind, larger, smaller)
        if stated.measure is not Measure.DDN_MEAN:
            return found
        both = [np.array([self._distances(place, name, "ddn") for place in places]) for name in names]
        return found.and_also(difference(kind, *(np.minimum(distances, self.recipe.eps) for distances in both)))

    def values(self, name: str, measure: Measure, places: list[Path]) -> tuple[Kind, Values]:
        """How a measure summarises the images, and its value for each (seeds, images); NaN does not count."""
        kind: Kind = "median" if measure in (Measure.L_BOUND_MEDIAN, Measure.PGD_MEDIAN, Measure.DDN_MEDIAN) else "mean"
        if measure in RADII or measure in (Measure.ANSWER_ACCURACY, Measure.AVERAGE_ACCURACY):
            kind = "share"
        return kind, np.array([self._image_values(place, name, measure) for place in places])

    def _image_values(self, place: Path, name: str, measure: Measure) -> Values:
        """Of each image, for one seed. Distances and L-bounds count where the class was correct at the start.

        A failed attack is infinitely far in the median. In the mean of PGD it counts as ε, as in the paper, and in that
        of DDN it does not count.
        """
        if measure in (Measure.PGD_MEDIAN, Measure.PGD_MEAN):
            distances = self._distances(place, name, "pgd")
            return np.minimum(distances, self.recipe.eps) if measure is Measure.PGD_MEAN else distances
        if measure in (Measure.DDN_MEDIAN, Measure.DDN_MEAN):
            distances = self._distances(place, name, "ddn")
            return np.where(np.isinf(distances), np.nan, distances) if measure is Measure.DDN_MEAN else distances
        certified = self._certificates(place / f"{name}-certified")
        averages = self.recipe.methods[name].stochastic
        if measure in (Measure.L_BOUND_MEDIAN, Measure.L_BOUND_MEAN):
            probabilities = certified.average_probabilities if averages else certified.clean_probabilities
            correct = probabilities.argmax(1) == certified.known_labels
            return np.where(correct, l_bound(probabilities, sigma=self.recipe.sigma), np.nan)
        if measure in (Measure.ANSWER_ACCURACY, Measure.AVERAGE_ACCURACY):
            by_average = averages or measure is Measure.AVERAGE_ACCURACY
            answers = certified.average_classes if by_average else certified.clean_classes
            return np.asarray(answers == certified.known_labels, dtype=np.float64)
        radii = np.where(certified.known_correct, certified.radii, 0.0)
        if measure is Measure.ACR:
            return radii
        return np.asarray(certified.known_correct & (radii >= RADII[measure]), dtype=np.float64)

    @staticmethod
    def _distances(place: Path, name: str, attack: str) -> Values:
        """Of each image: infinity where the attack failed, NaN where the class was wrong from the start."""
        results = AttackResults.read(place / f"{name}-{attack}")
        return np.where(results.wrong, np.nan, results.distances)

    def _certificates(self, directory: Path) -> Certificates:
        if directory not in self._read:
            self._read[directory] = Certificates.read(directory)
        return self._read[directory]

    def _seconds(self, stated: Stated, places: list[Path]) -> "_Found":
        """Seconds per answer; there is no interval over images, only the range over seeds."""

        def seconds(place: Path, name: str) -> float:
            timing = Timing.read(place / f"{name}-timed" / TIMING_FILE)
            averages = self.recipe.methods[name].stochastic
            return timing.plain_seconds if averages else timing.plain_one_pass_seconds

        pairs = [(seconds(place, stated.larger), seconds(place, stated.smaller)) for place in places]
        by_seed = tuple(larger - smaller for larger, smaller in pairs)
        return _Found(_mean_pair(np.array(pairs)), (min(by_seed), max(by_seed)), by_seed)

    def _approached(self, stated: Stated, places: list[Path]) -> "_Found":
        """The distance to an average of the teacher, of the teacher itself and of the last student.

        The interval covers those of all seeds.
        """
        results = [TimestepsResult.read(place / f"{stated.smaller}-timesteps" / TIMESTEPS_FILE) for place in places]
        near = stated.measure is Measure.DISTANCE_TO_AVERAGE
        approaches = [result.average if near else result.wider for result in results]
        steps = [list(approach.distances.values()) for approach in approaches]
        values = _mean_pair(np.array([(of_seed[0].mean, of_seed[-1].mean) for of_seed in steps]))
        intervals = [approach.closer_interval for approach in approaches]
        return _Found(values, _covering(intervals), tuple(approach.closer for approach in approaches))


def _covering(intervals: list[Interval | None]) -> Interval | None:
    """The smallest interval that covers all of them; None if one is not known."""
    known = [interval for interval in intervals if interval is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(intervals) else None


@dataclass(frozen=True)
class _Found:
    """What was measured: the two values, and the difference with its interval and for each seed."""

    values: Interval
    interval: Interval | None
    by_seed: tuple[float | None, ...]

    def and_also(self, other: "_Found") -> "_Found":
        """The same values with an interval that covers both: they decide only what both decide."""
        return replace(self, interval=_covering([self.interval, other.interval]))


def difference(kind: Kind, larger: Values, smaller: Values) -> _Found:
    """Of two methods on the same images, (seeds, images) each; NaN does not count.

    The interval is over images, for these networks: for shares by Bonett and Price, else by paired bootstrap.
    """
    statistic = STATISTICS[kind]
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no image counts: the value is NaN, and nothing is decided
        per_seed = np.array([statistic(values, axis=1) for values in (larger, smaller)])
        by_seed = tuple(float(d) if np.isfinite(d) else None for d in per_seed[0] - per_seed[1])
        values = _mean_pair(per_seed.T)
        if kind == "share":
            return _Found(values, shares_differ((larger - smaller).mean(0)), by_seed)
        images = resampled_images(larger.shape[1], 0)
        drawn = [np.mean([statistic(of_seed[images], axis=1) for of_seed in v], axis=0) for v in (larger, smaller)]
        differences = drawn[0] - drawn[1]
    unknown = np.isnan(differences)  # both infinite, or no image counts: as small and as large as can be
    low, _ = middle(np.where(unknown, -np.inf, differences))
    _, high = middle(np.where(unknown, np.inf, differences))
    return _Found(values, (low, high) if np.isfinite([low, high]).all() else None, by_seed)


def _mean_pair(pairs: Values) -> Interval:
    """The mean over seeds of pairs (seeds, 2)."""
    one, other = pairs.mean(0)
    return float(one), float(other)
