"""What a network is, apart from its weights."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class NetworkSpec:
    """All that is needed, beside the weights, to build a classifier."""

    architecture: str
    """A built-in name, ``package.module:callable``, ``hf:NAME`` or ``program``."""
    classes: int = 10
    channels: int = 3
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    size: int | tuple[int, int] | None = None
    """Of the images it was trained on, if known: the side of squares, else (height, width)."""
    config: str | None = None
    """Of ``hf:NAME``, the configuration as JSON; of a program, the hash of its file."""

    def describe(self) -> dict[str, Any]:
        """What a run and a file of weights record; ``NetworkSpec(**…)`` gives it back."""
        facts = asdict(self)
        return facts if self.config is not None else {name: facts[name] for name in facts if name != "config"}
