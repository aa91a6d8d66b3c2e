"""A stage of a comparison: one run directory, and the work that fills it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heatsmooth.progress import Progress


@dataclass(frozen=True)
class Stage:
    """One run directory of a comparison, and the work that fills it."""

    name: str
    fill: Callable[[Progress], object]
    """Does the work, and tells the progress."""
    shared: bool = True
    """Several processes fill it together; otherwise the first one does, while the others wait."""
    directory: Path | None = None
    """Of its run, if that has another name."""
    of: str = ""
    """The method that it belongs to."""
    alone: bool = False
    """It measures time, so nothing else may run beside it."""
