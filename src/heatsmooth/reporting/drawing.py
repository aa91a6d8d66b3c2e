"""The layout of a figure: lines, markers and text in pixels. ``svg`` and ``pdf`` only write them down."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from heatsmooth.reporting.chart import Chart, Mark, Series, ticks
from heatsmooth.reporting.formats import one_line

STYLES = 8
"""Lines differ by colour, dashes and markers."""
SWATCH, GAP, ROW = 34, 20, 22
Point = tuple[float, float]


@dataclass(frozen=True)
class Size:
    """How large a drawing is, in the pixels that it is meant for."""

    kind: Literal["wide", "narrow", "any"]
    width: int
    height: int
    font: float
    left: int
    x_ticks: int


WIDE = Size("wide", 800, 400, 13, 56, 10)
NARROW = Size("narrow", 340, 270, 12, 50, 5)
SMALL = Size("any", 340, 210, 12, 50, 5)


@dataclass(frozen=True)
class Line:
    """A line through points; a ``band`` is filled."""

    role: Literal["grid", "base", "line", "faint", "envelope", "band", "mark"]
    points: list[Point]
    style: int | None = None
    key: str = ""


@dataclass(frozen=True)
class Dot:
    """The marker of a series."""

    x: float
    y: float
    style: int


@dataclass(frozen=True)
class Words:
    """A text at its baseline; ``full`` is what it was shortened from."""

    role: Literal["name", "tick", "axis", "mark-name"]
    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    style: int | None = None
    full: str = ""


Shape = Line | Dot | Words


@dataclass
class Drawing:
    """A chart laid out for a size; ``shapes`` are in the order in which they are drawn."""

    chart: Chart
    size: Size
    shapes: list[Shape] = field(default_factory=list)

    def __post_init__(self) -> None:
        legend, rows = self._legend()
        self.left, self.right = self.size.left, self.size.width - 14
        self.top = rows * ROW + 32
        self.bottom = self.top + self.size.height - 58
        self.height = self.bottom + 48
        series = self.chart.series
        self.shapes += [
            *legend,
            *self._axes(),
            *(Line("mark", [(self.x(m.x), self.top), (self.x(m.x), self.bottom)], m.style) for m in self.chart.marks),
            *(band for one in series for band in self._band(one)),
            *(Line(one.role, self._path(one.corners(one.y, self.chart.shape)), one.style, one.key) for one in series),
            *(dot for number, one in enumerate(series) if one.role == "line" for dot in self._dots(one, number)),
            *self._mark_names(),
        ]

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return round(self.left + (self.right - self.left) * value / self.chart.x_max, 1)

    def y(self, value: float) -> float:
        """Pixels from the top; values above the axis are drawn at its end."""
        return round(self.bottom - (self.bottom - self.top) * min(value, self.chart.y_max) / self.chart.y_max, 1)

    def _legend(self) -> tuple[list[Shape], int]:
        """Names in rows, and their number; the widths of letters are estimated generously."""
        letter, available = 0.6 * self.size.font, self.size.width - self.size.left - 14
        x, row, shapes = 0.0, 1, list[Shape]()
        for series in (series for series in self.chart.series if series.role != "faint"):
            name = one_line(series.name, max(8, int((available - SWATCH) / letter)))
            width = SWATCH + letter * len(name)
            if x > 0 and x + width > available:
                x, row = 0.0, row + 1
            left, middle = round(self.size.left + x, 1), row * ROW - 8
            shapes += [
                Line(series.role, [(left, middle), (left + 26, middle)], series.style),
                *([Dot(left + 13, middle, series.style)] if series.role == "line" else []),
                Words("name", left + SWATCH, middle + 4.5, name, full=series.name),
            ]
            x += width + GAP
        return shapes, row

    def _axes(self) -> Iterator[Shape]:
        chart, size = self.chart, self.size
        yield Words("axis", self.left, self.top - 12, chart.y_title)
        for value in ticks(chart.y_max, 5 if size.kind != "any" else 4):
            label = f"{100 * value:.10g} %" if chart.percent else f"{value:.10g}"
            yield Line("grid", [(self.left, self.y(value)), (self.right, self.y(value))])
            yield Words("tick", self.left - 8, self.y(value) + 4, label, "end")
        for value in ticks(chart.x_max, size.x_ticks):
            yield Line("base", [(self.x(value), self.bottom), (self.x(value), self.bottom + 5)])
            yield Words("tick", self.x(value), self.bottom + 19, f"{value:.10g}", "middle")
        yield Line("base", [(self.left, self.bottom), (self.right, self.bottom)])
        yield Words("axis", (self.left + self.right) / 2, self.bottom + 41, chart.x_title, "middle")

    def _path(self, points: Iterator[Point]) -> list[Point]:
        """The points in pixels, without corners on a straight line."""
        kept: list[Point] = []
        for x, y in points:
            point = self.x(x), self.y(y)
            if x > self.chart.x_max + 1e-9:
                continue
            if len(kept) > 1 and _straight(kept[-2], kept[-1], point):
                kept[-1] = point
            elif not kept or kept[-1] != point:
                kept.append(point)
        return kept

    def _band(self, series: Series) -> Iterator[Line]:
        if series.low is not None and series.high is not None:
            upper, lower = (self._path(series.corners(v, self.chart.shape)) for v in (series.high, series.low))
            yield Line("band", upper + lower[::-1], series.style)

    def _dots(self, series: Series, number: int) -> Iterator[Dot]:
        """A few on each curve, shifted so that those of equal curves do not hide each other."""
        shown = [i for i, x in enumerate(series.x.tolist()) if x <= self.chart.x_max + 1e-9]
        every = max(1, len(shown) // 7)
        first = every * (2 * number + 1) // (2 * len(self.chart.series)) % every
        for i in shown[first::every]:
            yield Dot(self.x(float(series.x[i])), self.y(float(series.y[i])), series.style)

    def _mark_names(self) -> Iterator[Words]:
        """Names of vertical lines, one below another from the right, so that none hides another."""
        marks: list[Mark] = [] if self.size.kind == "any" else sorted(self.chart.marks, key=lambda mark: -mark.x)
        for row, mark in enumerate(marks):
            x, y = self.x(mark.x), self.top + 14 + row * (self.size.font + 5)
            name = mark.text if self.size.kind == "wide" and len(marks) <= 3 else mark.short
            if x > (self.left + self.right) / 2:
                yield Words("mark-name", x - 7, y, name, "end", mark.style)
            else:
                yield Words("mark-name", x + 7, y, name, "start", mark.style)


def _straight(a: Point, b: Point, c: Point) -> bool:
    return (a[0] == b[0] == c[0]) or (a[1] == b[1] == c[1])


def turn(style: int) -> int:
    """Dashes and markers of a style: where colours repeat, they do not."""
    return (style + style // STYLES) % STYLES
