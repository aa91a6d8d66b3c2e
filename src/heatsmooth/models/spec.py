"""What a network is, apart from its weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, one number or one per channel, of images in [0, 1]."""


PerChannel = float | Sequence[float]
"""One number for all channels, or one for each."""


def completed(mean: PerChannel | None, std: PerChannel | None) -> Normalisation | None:
    """Mean and standard deviation, where at least one is given: the other becomes 0 or 1; None if both are None."""
    means, deviations = (
        () if values is None else (float(values),) if isinstance(values, int | float) else tuple(map(float, values))
        for values in (mean, std)
    )
    if mean is None and std is None:
        return None
    return means or (0.0,) * max(1, len(deviations)), deviations or (1.0,) * max(1, len(means))


@dataclass(frozen=True)
class NetworkSpec:
    """Everything, apart from the weights, that is needed to build a classifier."""

    architecture: str
    """A built-in name, ``package.module:callable``, ``hf:NAME``, ``timm:NAME``, ``torchvision:NAME``,
    ``onnx`` or ``program``."""
    classes: int = 10
    channels: int = 3
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    size: int | tuple[int, int] | None = None
    """Size of the images it was trained on, if known: the side of squares, or (height, width)."""
    config: str | None = None
    """For ``hf:NAME``, the configuration as JSON; for a program or an ONNX file, the SHA-256 of the file."""

    def normalised(self, normalisation: Normalisation | None) -> "NetworkSpec":
        """The same network with this normalisation; unchanged for None."""
        return self if normalisation is None else replace(self, mean=normalisation[0], std=normalisation[1])

    def describe(self) -> dict[str, object]:
        """What a run and a file of weights record; ``NetworkSpec(**…)`` reads it."""
        return {name: value for name, value in asdict(self).items() if name != "config" or value is not None}
