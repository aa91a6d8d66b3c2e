"""Attacks: the result for one image as it is on disk, and arrays of the results for many."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import InputError, require
from heatsmooth.results.guarantees import Subject
from heatsmooth.results.records import read_each
from heatsmooth.results.schema import Real, Whole


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The result of an attack on one image: an upper bound on the distance (L2, pixels in [0, 1]) to another class."""

    index: Whole
    label: Whole
    success: bool
    distance: Real | None
    """0 if the class was wrong at the start; None if the attack failed."""
    norm_steps: Whole | None = None
    """Steps of the attack."""
    subject: Subject = Subject.NETWORK

    def __post_init__(self) -> None:
        if self.success != (self.distance is not None):
            raise InputError("one that contradicts itself")


def read_attacks(directory: Path) -> list[AttackResult]:
    """All attacks of a run directory, of every shard and process: each image once, ordered by index."""
    return read_each(directory, "attacks*.jsonl", "an attack", AttackResult)


@dataclass(frozen=True)
class AttackResults:
    """Attacks on many images; ``distances`` (images,) are 0 where wrong at the start, infinite where they failed."""

    distances: NDArray[np.float64]
    subject: Subject

    @classmethod
    def of(cls, rows: Sequence[AttackResult]) -> Self:
        """The arrays of attacks on one model."""
        require(bool(rows), "expected attacks, got none; repeat the attack command")
        subjects = sorted({row.subject for row in rows})
        require(len(subjects) == 1, f"expected attacks on one model, got {subjects}; read them separately")
        return cls(np.array([np.inf if row.distance is None else row.distance for row in rows]), rows[0].subject)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """All attacks of a run directory."""
        return cls.of(read_attacks(directory))

    def __len__(self) -> int:
        return len(self.distances)

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Where the class was wrong at the start."""
        return np.asarray(self.distances == 0)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Where the attack failed: the true distance is not known."""
        return np.asarray(np.isinf(self.distances))

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """Where the attack changed a class that was correct at the start."""
        return ~self.wrong & ~self.failed

    @property
    def median(self) -> float | None:
        """Over images correct at the start; a failed attack counts as infinitely far. None without such images."""
        correct = self.distances[~self.wrong]
        return float(np.median(correct)) if correct.size else None

    @property
    def finite_median(self) -> float | None:
        """``median``; None also if most attacks failed."""
        return None if self.median is None or np.isinf(self.median) else self.median

    @property
    def mean(self) -> float | None:
        """Over the attacks that succeeded on images correct at the start; None if there is none."""
        reached = self.distances[self.succeeded]
        return float(reached.mean()) if reached.size else None
