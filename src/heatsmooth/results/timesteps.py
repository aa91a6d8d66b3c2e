"""How far the student is from the Gaussian average of the teacher after each timestep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from heatsmooth.results.audit import Distances
from heatsmooth.results.schema import Finite, Format, Interval, Positive, Whole, check_order, from_json, to_json
from heatsmooth.runs import read_json, write_json

TIMESTEPS_FILE = "timesteps.json"


@dataclass(frozen=True, kw_only=True)
class Approach:
    """Distances to one average: of the teacher itself (timestep 0), then of the student after each timestep."""

    variance: Positive
    """Of the noise of the average."""
    distances: dict[str, Distances]
    """By timestep."""
    closer: Finite
    """How much closer the last student is than the teacher itself, mean over images."""
    closer_interval: Interval | None
    """95 % over images; None for one image."""

    def __post_init__(self) -> None:
        check_order(self.closer_interval)


@dataclass(frozen=True, kw_only=True)
class TimestepsResult:
    """L2 distances of softmax v(x) to E softmax f(x + η) or to softmax E f(x + η), from ``n`` noise samples per image.

    The form that the paper trains tends to the average of variance 2σ², its scalar form to σ² (appendix A).
    """

    sigma: Positive
    images: Whole
    n: Whole
    seed: Whole
    average: Approach
    """Of variance σ²."""
    wider: Approach
    """Of variance 2σ²."""
    averaged: Literal["probabilities", "logits"] = "probabilities"
    """Which outputs of the teacher are averaged: those that were smoothed."""
    format: Format = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """A ``timesteps.json``."""
        return from_json(cls, read_json(path), f"{path}: expected distances by timestep", "remove the file")

    def write(self, path: Path) -> None:
        """Replace ``path`` by these distances."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, to_json(self))
