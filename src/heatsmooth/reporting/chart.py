"""A figure as data: series whose points are exact, and the ticks of an axis. ``drawing`` lays it out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heatsmooth.statistics.bounds import Floats


@dataclass(frozen=True)
class Series:
    """A curve through exact points, with a confidence band if there is one."""

    name: str
    style: int
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    role: Literal["line", "faint", "envelope"] = "line"
    """``faint``: one of many, without markers and without a place in the legend."""
    key: str = ""
    """By which a script finds the line."""

    def columns(self, shown: str) -> list[dict[float, str]]:
        """The text of each value by x: of the curve, and of the ends of its band if it has one."""
        known = [values for values in (self.y, self.low, self.high) if values is not None]
        return [{x: f"{y:{shown}}" for x, y in zip(self.x.tolist(), v.tolist(), strict=True)} for v in known]

    def corners(self, values: Floats, shape: str) -> Iterator[tuple[float, float]]:
        """The corners of the line through ``values``.

        Between two points, a ``step`` has the value of the second one. It is the less favourable one for certified
        accuracy, which falls, and for the share attacked, which rises.
        """
        if shape == "line":
            yield from zip(self.x.tolist(), values.tolist(), strict=True)
            return
        edges = self.x.tolist()
        previous = edges[0]
        for x, y in zip(edges, values.tolist(), strict=True):
            yield previous, y
            yield x, y
            previous = x


@dataclass(frozen=True)
class Mark:
    """A vertical line with a long and a short name."""

    x: float
    text: str
    short: str
    style: int | None = None


@dataclass(frozen=True)
class Chart:
    """Everything that the drawings, the table and the caption of a figure show."""

    key: str
    title: str
    caption: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    x_max: float
    y_max: float
    shape: Literal["line", "step"] = "line"
    marks: tuple[Mark, ...] = ()
    percent: bool = False
    small: bool = False
    band: str = ""

    def rows(self) -> list[tuple[float, str, list[str]]]:
        """The numbers drawn: x, its text, and per series its value, and its band if it has one."""
        xs = np.unique(np.concatenate([s.x for s in self.series])).tolist()
        columns = [column for series in self.series for column in series.columns(".4f" if self.percent else ".5g")]
        return [(x, f"{x:.6g}", [column.get(x, "") for column in columns]) for x in xs]


def ticks(most: float, count: int) -> list[float]:
    """About ``count`` round numbers from 0 to ``most``.

    >>> ticks(0.95, 6), ticks(1.0, 5)
    ([0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    step = _rounded_up(most / count, (1, 2, 2.5, 5, 10))
    return [round(i * step, 12) for i in range(math.floor(most / step + 1e-9) + 1)]


def grid(most: float, points: int = 200) -> Floats:
    """At most ``points`` steps from 0 to ``most`` or just beyond, in decimals.

    >>> grid(0.95, 20).tolist()[:4], len(grid(0.95))
    ([0.0, 0.05, 0.1, 0.15], 191)
    """
    step = _rounded_up(max(most, 1e-6) / points, (1, 2.5, 5, 10))
    return np.array([round(i * step, 12) for i in range(math.ceil(most / step - 1e-9) + 1)])


def nice_limit(most: float) -> float:
    """A round number at or above ``most``.

    >>> nice_limit(0.37), nice_limit(2.31), nice_limit(0)
    (0.4, 2.5, 1.0)
    """
    return _rounded_up(most, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)) if most > 0 else 1.0


def _rounded_up(value: float, leading: tuple[float, ...]) -> float:
    unit = 10.0 ** math.floor(math.log10(value))
    return round(next(digit for digit in leading if digit * unit >= value * (1 - 1e-9)) * unit, 12)
