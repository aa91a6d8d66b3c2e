"""The result of ``frontier``: what each share of kept answers costs and gives, for one network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from heatsmooth.results.schema import Format, Interval, Real, Share, Whole, from_json, to_json
from heatsmooth.runs import read_json, write_json

FRONTIER_FILE = "frontier.json"


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """One network on the frontier; shares are over the certified images."""

    name: str
    """Of its runs."""
    keep: Share | None = None
    """The share of answers that was asked for; None for the network as it is."""
    kept: Share | None = None
    """The share that was reached, on held-out images."""
    kept_interval: Interval | None = None
    clean: Share
    """Clean accuracy in one pass; without labels, ``kept``."""
    certified: tuple[Share, ...]
    """Certified accuracy at each of the radii; without labels, the share of images with such a radius."""
    mean_radius: Real
    """Average certified radius; without labels, the mean radius."""


@dataclass(frozen=True, kw_only=True)
class FrontierResult:
    """All points, the network as it is first."""

    command: str = "frontier"
    out: str
    sigma: Real
    labelled: bool
    images: Whole
    """Certified images."""
    n: Whole
    radii: tuple[Real, ...]
    points: tuple[FrontierPoint, ...]
    recommendation: str
    report: str | None = None
    format: Format = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """What ``write`` wrote."""
        return from_json(cls, read_json(path), f"{path}: expected a frontier", "repeat heatsmooth frontier")

    def write(self, path: Path) -> None:
        """Replace ``path`` atomically."""
        write_json(path, to_json(self))


def recommended(points: tuple[FrontierPoint, ...], radii: tuple[float, ...], images: int, *, labelled: bool) -> str:
    """One plain sentence: the point with the largest sum of clean and certified accuracy at the first radius above 0.

    >>> before = FrontierPoint(name="as-it-is", clean=0.92, certified=(0.11, 0.04), mean_radius=0.02)
    >>> after = FrontierPoint(name="keep-0.9", keep=0.9, kept=0.9, clean=0.85, certified=(0.6, 0.4), mean_radius=0.2)
    >>> print(recommended((before, after), (0.0, 0.25), 200, labelled=True).partition(":")[0])
    Recommended
    """
    place = next((i for i, radius in enumerate(radii) if radius > 0), 0)
    first = points[0]
    best = max(points, key=lambda point: point.clean + point.certified[place])
    what = "clean accuracy" if labelled else "kept answers"
    sure = "certified accuracy" if labelled else "images certified"
    facts = (
        f"{what} {best.clean:.1%} instead of {first.clean:.1%}, "
        f"{sure} at {radii[place]:g} {best.certified[place]:.1%} instead of {first.certified[place]:.1%}"
    )
    within = f"Differences of less than {1.96 * (0.5 / images) ** 0.5:.1%} may be chance with {images} images."
    if best.keep is None:
        return f"Recommended: leave the network as it is; no point has a larger sum of {what} and {sure}. {within}"
    return f"Recommended: --keep {best.keep:g}, with {facts}; the sum of the two is the largest here. {within}"
