"""The value of a setting that was chosen for a method, and what each one reached."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from heatsmooth.results.schema import Format, Positive, Real, Whole, from_json, to_json
from heatsmooth.runs import read_json, write_json

TriedSetting = Literal["lr", "weight", "consistency", "radius_weight", "mix_weight"]
"""The learning rate, the weight of the penalty, or the weight that a method of others is about."""


@dataclass(frozen=True, kw_only=True)
class ChosenSetting:
    """The value that a trial chose, on test images that no comparison certifies."""

    setting: TriedSetting = "lr"
    rate: Positive
    """The value that was chosen."""
    average_certified_radii: dict[str, Real | None]
    """By value; None if the training failed."""
    accuracies: dict[str, Real | None] = field(default_factory=dict)
    """Likewise, of the answers on images without noise. Empty in files of earlier versions."""
    images: Whole
    """Test images, all with an odd index."""
    n: Whole
    """Noise samples per image."""
    training_images: Whole
    """Of each epoch of the trial."""
    seed: Whole
    format: Format = 1

    def includes(self, values: tuple[float, ...]) -> bool:
        """Whether all these values were tried."""
        return self.average_certified_radii.keys() >= {f"{value:g}" for value in values}

    @classmethod
    def read(cls, path: Path) -> Self:
        """The file of a trial."""
        return from_json(cls, read_json(path), f"{path}: expected a chosen setting", "remove the file")

    def write(self, path: Path) -> None:
        """Replace ``path`` by this choice."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, to_json(self))
