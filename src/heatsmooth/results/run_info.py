"""What ``run.json`` says of a run: the command, its settings, where and when it ran, and what training measured."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from heatsmooth.errors import require
from heatsmooth.identity import Identity, first_difference, recorded_identity
from heatsmooth.results.schema import Format, Json, Positive, Real, Share, Whole, from_json, read_object, to_json
from heatsmooth.results.training import TrainingResult
from heatsmooth.runs import read_json, write_json
from heatsmooth.settings import Noise


@dataclass(frozen=True, kw_only=True)
class DataDescription:
    """The images of a run."""

    name: str | None = None
    images: Whole | None = None
    shape: tuple[int, ...] | None = None
    """(channels, height, width)."""
    rule: str | None = None
    """Which images of the data set were used."""
    fingerprint: str | None = None
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""


@dataclass(frozen=True, kw_only=True)
class HeatChoices:
    """Of ``smooth``."""

    sigma: Real | None = None
    timesteps: Whole = 1
    distribution: Noise = "gaussian"
    """Of the noise. ``noise`` on disk says which images have noise."""


@dataclass(frozen=True, kw_only=True)
class TrainingChoices:
    """Of ``train``."""

    method: str | None = None
    sigma: Real | None = None


@dataclass(frozen=True, kw_only=True)
class PlanChoices:
    """Of the training loop."""

    epochs: Whole | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationChoices:
    """Of calibrated one-pass radii."""

    sigma: Positive | None = None
    epsilon: Share | None = None
    alpha: Share | None = None


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Those settings of a run that others read; what a command does not have is None."""

    data: DataDescription = field(default_factory=DataDescription)
    model: str | None = None
    """The hash of the weights of the network that was used."""
    teacher: str | None = None
    """The hash of the weights of the network that it was smoothed from."""
    seed: int | None = None
    preset: str | None = None
    heat: HeatChoices = field(default_factory=HeatChoices)
    choices: TrainingChoices = field(default_factory=TrainingChoices)
    plan: PlanChoices = field(default_factory=PlanChoices)
    certificate: Json | None = None
    """Of ``certify``, as ``certification.settings.Settings.from_json`` reads it."""
    calibration: CalibrationChoices = field(default_factory=CalibrationChoices)
    attack: str | None = None
    steps: Whole | None = None
    eps: Real | None = None
    top_k: Whole | None = None
    noise_samples: Whole | None = None
    sigma: Real | None = None
    """The noise level of an attacked average."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What ``run.json`` holds, of one process or of all parts of a run together."""

    command: str
    settings: Json
    """Everything that the result depends on, as it was recorded, to compare runs; ``chosen`` has types."""
    arguments: tuple[Any, ...] = ()
    """Of the command line."""
    started: str = ""
    seconds: Real
    status: str
    versions: Json = field(default_factory=dict)
    commit: str | None = None
    hardware: Json = field(default_factory=dict)
    model_hash: str | None = None
    """The hash of the weights of the network that was made or used; recorded when the run is done."""
    device: str | None = None
    processes: Whole | None = None
    threads: Whole | None = None
    precision: str | None = None
    summary: TrainingResult | None = None
    format: Format = 1

    def __post_init__(self) -> None:
        _ = self.chosen

    @classmethod
    def from_json(cls, value: Any, path: Path) -> Self:
        """What the file ``path`` holds."""
        return from_json(cls, value, f"{path}: expected a run", "remove the file")

    @classmethod
    def read(cls, path: Path) -> Self:
        """One ``run.json``."""
        return cls.from_json(read_json(path), path)

    @classmethod
    def read_directory(cls, directory: Path) -> tuple[Self, int]:
        """A run directory, and the number of its parts: the first part, with the seconds of all, done when all are."""
        files = sorted(directory.glob("run*.json"))
        require(bool(files), f"{directory}: expected a run, got none; check the path")
        first, *others = parts = [cls.read(file) for file in files]
        for part in others:
            difference = first_difference(first.settings, part.settings)
            alike = part.command == first.command and difference is None
            what = "another command" if difference is None else f"other settings ({difference[0]})"
            require(alike, f"{directory}: expected parts of one run, got parts with {what}; read them separately")
        status = next((part.status for part in parts if not part.done), first.status)
        return replace(first, seconds=sum(part.seconds for part in parts), status=status), len(parts)

    def write(self, path: Path) -> None:
        """Replace ``path`` by this information."""
        write_json(path, to_json(self))

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return self.status == "done"

    @cached_property
    def chosen(self) -> RunSettings:
        """The settings that others read, with types."""
        return read_object(RunSettings, self.settings)

    @property
    def network(self) -> str | None:
        """The hash of the weights of the network that the run is about."""
        return self.chosen.model or self.model_hash

    def identity(self, role: str = "model") -> Identity:
        """The network that the settings name in this role."""
        return recorded_identity(self.settings, role)

    def argument(self, option: str) -> str | None:
        """What the command line gave for an option, such as ``--from``."""
        words = [str(word) for word in self.arguments]
        return words[words.index(option) + 1] if option in words[:-1] else None
