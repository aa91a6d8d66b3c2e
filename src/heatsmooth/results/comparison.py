"""The result of ``compare``: figures of each method, what smoothing changed, ratios of radii, and times."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

import numpy as np

from heatsmooth.results.claims import Claim
from heatsmooth.results.rates import ChosenSetting
from heatsmooth.results.schema import (
    OTHER_KEYS,
    Finite,
    Format,
    Interval,
    Json,
    Positive,
    Real,
    Share,
    Whole,
    check_order,
    from_json,
    named,
    to_json,
)
from heatsmooth.results.timesteps import TimestepsResult
from heatsmooth.runs import read_json, write_json

COMPARISON_FILE = "comparison.json"
"""What ``compare`` writes beside its runs."""
TIMING_FILE = "timing.json"


class Measure(StrEnum):
    """What is measured of a method. Radii and distances are L2; shares and means are over the images."""

    ONE_PASS_ACCURACY = "one_pass_accuracy"  # noqa: S105 - not a password
    AVERAGE_ACCURACY = "average_accuracy"
    ANSWER_ACCURACY = "answer_accuracy"
    """Of the average for methods that predict by it, else of one pass."""
    AGREEMENT = "agreement"
    CERTIFIED_AT_0 = "certified_at_0"
    CERTIFIED_AT_36 = "certified_at_36/255"
    CERTIFIED_AT_72 = "certified_at_72/255"
    CERTIFIED_AT_108 = "certified_at_108/255"
    CERTIFIED_AT_01 = "certified_at_0.1"
    CERTIFIED_AT_02 = "certified_at_0.2"
    CERTIFIED_AT_03 = "certified_at_0.3"
    CERTIFIED_AT_025 = "certified_at_0.25"
    CERTIFIED_AT_05 = "certified_at_0.5"
    CERTIFIED_AT_075 = "certified_at_0.75"
    ACR = "average_certified_radius"
    MEDIAN_CERTIFIED_RADIUS = "median_certified_radius"
    MEDIAN_RADIUS = "median_radius"
    MEAN_RADIUS = "mean_radius"
    LARGEST_RADIUS = "largest_radius"
    L_BOUND_MEDIAN = "l_bound_median"
    L_BOUND_MEAN = "l_bound_mean"
    ONE_PASS_SECONDS = "one_pass_seconds"  # noqa: S105
    STOCHASTIC_SECONDS = "stochastic_seconds"
    CERTIFICATE_SECONDS = "certificate_seconds"
    PLAIN_SECONDS = "plain_seconds"
    PLAIN_ONE_PASS_SECONDS = "plain_one_pass_seconds"  # noqa: S105
    ANSWER_SECONDS = "answer_seconds"
    """Of the plain average for methods that predict by it, else of one plain pass."""
    DISTANCE_TO_AVERAGE = "distance_to_average"
    DISTANCE_TO_WIDER_AVERAGE = "distance_to_wider_average"
    PGD_MEDIAN = "pgd_median"
    PGD_MEAN = "pgd_mean_of_attacked"
    DDN_MEDIAN = "ddn_median"
    DDN_MEAN = "ddn_mean_of_attacked"


@dataclass(frozen=True, kw_only=True)
class MethodFigures:
    """The figures of a method: by ``Measure`` the mean over seeds, and with ``_sd`` the standard deviation."""

    values: dict[str, Finite | None] = field(metadata=OTHER_KEYS)

    @classmethod
    def of(cls, per_seed: Sequence[dict[Measure, float | None]]) -> Self:
        """Mean over the seeds that have a value, and standard deviation if there are several; None if none has one."""
        values: dict[str, float | None] = {}
        for measure in per_seed[0]:
            known = [value for figures in per_seed if (value := figures.get(measure)) is not None]
            values[measure] = float(np.mean(known)) if known else None
            if len(known) > 1:
                values[f"{measure}_sd"] = float(np.std(known, ddof=1))
        return cls(values=values)

    def mean(self, measure: Measure) -> float | None:
        """Over the seeds; None if it was not measured."""
        return self.values.get(measure)

    def deviation(self, measure: Measure) -> float | None:
        """The standard deviation over the seeds; None for one seed."""
        return self.values.get(f"{measure}_sd")


@dataclass(frozen=True, kw_only=True)
class Factor:
    """How many times one value is another, with its 95 % interval over images; None if the divisor may be 0."""

    factor: Finite | None
    factor_interval: Interval | None

    def __post_init__(self) -> None:
        check_order(self.factor_interval)


@dataclass(frozen=True, kw_only=True)
class Change(Factor):
    """A measure before and after smoothing: means over the seeds, and the 95 % interval of the difference."""

    before: Finite
    after: Finite
    difference: Finite
    difference_interval: Interval

    def __post_init__(self) -> None:
        check_order(self.factor_interval, self.difference_interval)


@dataclass(frozen=True, kw_only=True)
class Ratio(Factor):
    """How many times the average certified radius of one method is that of another."""

    by_seed: tuple[Finite | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What smoothing changed."""

    start: str = field(metadata=named("from"))
    """The method that was smoothed."""
    kinds: dict[str, dict[str, Change]] = field(metadata=OTHER_KEYS)
    """By kind of certificate (``certified``, ``top-5``) and ``Measure``."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that ``compare`` found, over all seeds."""

    command: Literal["compare"] = "compare"
    out: str = ""
    seeds: tuple[int, ...] = ()
    certified_images_unseen: bool = True
    """Whether the networks were made on other images than those certified."""
    attacked_top_k: Whole = 1
    seconds: Real = 0.0
    """What the recorded stages took together."""
    sigma: Positive | None = None
    n: Whole | None = None
    n_wrong: Whole | None = None
    alpha: Share | None = None
    images: Whole | None = None
    methods: dict[str, MethodFigures]
    """Of methods whose average is certified, from noisy samples."""
    proven: dict[str, MethodFigures] = field(default_factory=dict)
    """Of networks with deterministic certificates, which cover the network itself."""
    proven_images: Whole | None = None
    """Images with deterministic certificates."""
    gains: dict[str, Gain] = field(default_factory=dict)
    average_certified_radius_ratios: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    """What the paper claims, and whether it holds here."""
    size: str = ""
    """How much smaller than in the paper everything is."""
    trades: tuple[Claim, ...] = ()
    """How HeatSmoothing compares with methods of others at no less clean accuracy."""
    timesteps: dict[str, TimestepsResult] = field(default_factory=dict)
    """By method, how far the student is from the average of the teacher after each timestep; of the first seed."""
    rates: dict[str, ChosenSetting] = field(default_factory=dict)
    """By trial, how learning rates were chosen."""
    report: str | None = None
    """The page made from it."""
    format: Format = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """A ``comparison.json``."""
        value = read_json(path)
        expected = f"{path}: expected what `heatsmooth compare` writes"
        return from_json(cls, {"command": None, **value}, expected, "leave it out")

    def to_json(self) -> Json:
        """As on disk: ``n_wrong`` is null where it is not used; what came later is left out where there is none."""
        written = {**to_json(self), "n_wrong": self.n_wrong}
        later = ("proven", "claims", "size", "trades", "timesteps", "rates")
        return {name: value for name, value in written.items() if value or name not in later}

    def write(self, path: Path) -> None:
        """Replace ``path`` by this comparison."""
        write_json(path, self.to_json())


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds per image, one image at a time; medians over rounds."""

    one_pass_seconds: Real
    """One pass of the optimised network."""
    stochastic_seconds: Real
    """Cohen's PREDICT from ``samples`` noisy samples with the same optimised network."""
    plain_seconds: Real
    """PREDICT as its pseudo-code reads, with the network and the memory layout as they are."""
    plain_one_pass_seconds: Real
    """One pass of the network as it is."""
    samples: Whole
    images: Whole
    threads: Whole
    agreement: Share
    """How often one pass has the class of PREDICT, which may abstain."""
    commit: str | None
    hardware: Json
    format: Format = 1
    other_seconds: dict[str, Real] = field(default_factory=dict, metadata=OTHER_KEYS)
    """Other ways by name."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """A ``timing.json``."""
        return from_json(cls, read_json(path), f"{path}: expected inference times", "remove the file")

    def write(self, path: Path) -> None:
        """Replace ``path`` by these times."""
        write_json(path, to_json(self))
