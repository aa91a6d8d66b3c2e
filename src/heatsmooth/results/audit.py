"""The result of an audit: each measure with its counts and interval, and the verdict."""

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Self

from heatsmooth.errors import InputError
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.results.schema import Format, Interval, Positive, Real, Share, Whole, from_json, named, to_json
from heatsmooth.results.shown import Shown
from heatsmooth.runs import read_json, write_json
from heatsmooth.settings import check_at_least, check_positive
from heatsmooth.statistics.bounds import clopper_pearson

AUDIT_FILE = "audit.json"
CONFIDENCE = 0.95
"""Of every interval in an audit."""
NEEDS_NOISE = (
    "`sigma`: expected the noise level, got none; only a network made by heatsmooth distill is audited without noise"
)


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How thorough an audit is."""

    sigma: float | None = None
    """Standard deviation of the noise, in [0, 1] pixels. Without it, deterministic radii are tested: those of a network
    made by distill, by `steps` alone."""
    n: int = 1000
    """Noise samples per image. They give the certificate and the mean probabilities, and confirm violations."""
    alpha: float = 0.001
    """Largest probability that a certificate is false."""
    steps: int = 50
    """Steps of the attacks: DDN on the network, PGD on the network and on its average."""
    noise_samples: int = 32
    """Noise samples of the average under attack."""
    batch_size: int = 50
    """Images attacked together."""

    def __post_init__(self) -> None:
        check_positive(self, "sigma")
        check_at_least(self, 1, "n", "steps", "noise_samples", "batch_size")

    @property
    def noise_level(self) -> float:
        """σ; an error where it is needed and there is none."""
        if self.sigma is None:
            raise InputError(NEEDS_NOISE)
        return self.sigma


@dataclass(frozen=True, kw_only=True)
class CountedShare:
    """A share of images, with its Clopper–Pearson interval."""

    share: Share
    interval: Interval

    @classmethod
    def of(cls, count: int, total: int) -> Self:
        """``count`` of ``total`` images: the two fields that a subclass adds."""
        low, high = clopper_pearson(count, total, 1 - CONFIDENCE) if total else (0.0, 1.0)
        names = [item.name for item in fields(cls)[-2:]]
        counts = dict(zip(names, (count, total), strict=True))
        return cls(share=count / max(total, 1), interval=(float(low), float(high)), **counts)


@dataclass(frozen=True, kw_only=True)
class Agreement(CountedShare):
    """For how many images one pass and the average have the same class."""

    count: Whole
    images: Whole


@dataclass(frozen=True, kw_only=True)
class Distances:
    """L2 distances over images between probabilities in one pass and averaged ones; 0 is an exact average."""

    mean: Real
    interval: tuple[float, float] | None
    """Of the mean; None for one image. Older files have infinite ends there."""
    median: Real
    largest: Real

    def __post_init__(self) -> None:
        if self.interval is not None and not all(map(math.isfinite, self.interval)):
            object.__setattr__(self, "interval", None)


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """How far one pass is from an average: of the network itself, and of its teacher if there is one."""

    own: Distances = field(metadata=named("self"))
    teacher: Distances | None


@dataclass(frozen=True, kw_only=True)
class AverageAttacks:
    """Attacks on the average inside its certified radii."""

    attacked: Whole
    violations: Whole
    """Attacks whose other class was confirmed by new samples."""
    expected_at_most: Real
    """Violations that α allows, in expectation."""


@dataclass(frozen=True, kw_only=True)
class Broken(CountedShare):
    """How many images an attack on one pass broke inside a radius."""

    broken: Whole
    attacked: Whole


@dataclass(frozen=True, kw_only=True)
class SurvivingFraction:
    """The fraction of the average's radius at which ``share`` of the classes of one pass survived these attacks."""

    share: Share
    fraction: Real
    images: Whole
    basis: BasisKind = BasisKind.ATTACK


@dataclass(frozen=True, kw_only=True)
class NetworkAttacks:
    """Attacks on the network in one pass."""

    inside_l_bound: Broken
    inside_average_radius: Broken
    surviving_fraction: SurvivingFraction


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Slopes of the gap between probabilities: the steepest that attacks met, and the one that the L-bound assumes."""

    steepest: Real = field(metadata=named("found"))
    assumed: Positive
    ratio: Real


class VerdictKind(StrEnum):
    """What an audit concludes."""

    HOLDS = "holds"
    CAUTION = "caution"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The conclusion of an audit, and the sentences that explain it."""

    kind: VerdictKind
    text: str


@dataclass(frozen=True, kw_only=True)
class AgreementMeasures:
    """What an audit measured without attacks: how close one pass is to the average."""

    sigma: Positive
    alpha: Share
    images: Whole
    n: Whole
    """Samples per image."""
    seed: int
    agreement: Agreement
    approximation: Approximation


@dataclass(frozen=True, kw_only=True)
class AuditMeasures(AgreementMeasures):
    """What an audit measured."""

    average_attacks: AverageAttacks
    network_attacks: NetworkAttacks
    lipschitz: Slope


@dataclass(frozen=True, kw_only=True)
class AuditResult(AuditMeasures, Shown):
    """What an audit measured, and its verdict."""

    verdict: Verdict
    format: Format = 1

    @classmethod
    def read(cls, directory: Path) -> Self:
        """The audit of a run directory."""
        file = directory / AUDIT_FILE
        return from_json(cls, read_json(file), f"{file}: expected an audit", "audit again")

    def write(self, directory: Path) -> None:
        """Write the audit into a run directory."""
        write_json(directory / AUDIT_FILE, to_json(self))
