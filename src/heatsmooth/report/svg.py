"""Charts as inline SVG: colours come from the page's style sheet, so that they follow light and dark."""

from dataclasses import dataclass
from html import escape

from heatsmooth.report.chart import DASHES, MARKERS, Chart, Series, ticks
from heatsmooth.report.values import one_line

MARKER_PATHS = {
    "o": "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
    "s": "M-3.2-3.2h6.4v6.4h-6.4z",
    "^": "M0-4.2L4 3H-4z",
    "D": "M0-4.4L4.4 0L0 4.4L-4.4 0z",
    "v": "M0 4.2L4-3H-4z",
    "p": "M0-4.2L4-1.3L2.5 3.4H-2.5L-4-1.3z",
    "X": "M-3.6-2.2L-2.2-3.6L0-1.4L2.2-3.6L3.6-2.2L1.4 0L3.6 2.2L2.2 3.6L0 1.4L-2.2 3.6L-3.6 2.2L-1.4 0z",
    "P": "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
}
SWATCH, GAP, ROW = 34, 20, 22


@dataclass(frozen=True)
class Size:
    """How large a drawing is, in the pixels it is meant for."""

    kind: str
    width: int
    height: int
    font: float
    left: int
    x_ticks: int


WIDE = Size("wide", 800, 400, 13, 56, 10)
NARROW = Size("narrow", 340, 270, 12, 50, 5)
SMALL = Size("any", 340, 210, 12, 50, 5)


def drawings(chart: Chart) -> str:
    """One drawing, or one for wide and one for narrow columns; the style sheet shows the one that fits."""
    sizes = (SMALL,) if chart.small else (WIDE, NARROW)
    return "".join(_Drawing(chart, size).svg() for size in sizes)


class _Drawing:
    def __init__(self, chart: Chart, size: Size) -> None:
        self.chart, self.size = chart, size
        self.legend, legend_rows = self._legend()
        self.stacked = [] if size.kind == "any" else sorted(chart.marks, key=lambda mark: -mark.x)
        self.top = legend_rows * ROW + 32
        self.right = size.width - 14
        self.bottom = self.top + size.height - 58
        self.height = self.bottom + 48

    def x(self, value: float) -> float:
        return round(self.size.left + (self.right - self.size.left) * value / self.chart.x_max, 1)

    def y(self, value: float) -> float:
        return round(self.bottom - (self.bottom - self.top) * value / self.chart.y_max, 1)

    def svg(self) -> str:
        chart, size = self.chart, self.size
        geometry = (
            f'data-left="{size.left}" data-right="{self.right}" data-top="{self.top}" data-bottom="{self.bottom}" '
            f'data-x="{chart.x_max:.10g}" data-y="{chart.y_max:.10g}"'
        )
        many = " many" if len(chart.series) > 4 else ""
        parts = [
            f'<svg class="chart {size.kind}{many}" viewBox="0 0 {size.width} {self.height:g}" '
            f'font-size="{size.font:g}" role="img" aria-label="{escape(chart.title)}" {geometry}>',
            self.legend,
            self._axes(),
            *(self._mark_line(mark.x, mark.style) for mark in chart.marks),
            *(self._band(series) for series in chart.series),
            *(self._line(series) for series in chart.series),
            *(self._markers(series, number) for number, series in enumerate(chart.series)),
            self._mark_names(),
            '<g class="cursor"></g></svg>',
        ]
        return "".join(parts)

    def _legend(self) -> tuple[str, int]:
        """Names in rows; the widths of letters are estimated generously."""
        letter, most = 0.6 * self.size.font, self.size.width - self.size.left - 14
        x, row, parts = 0.0, 1, []
        for series in self.chart.series:
            name = one_line(series.name, max(8, int((most - SWATCH) / letter)))
            width = SWATCH + letter * len(name)
            if x > 0 and x + width > most:
                x, row = 0.0, row + 1
            left, middle = self.size.left + x, row * ROW - 8
            parts.append(
                f'<g class="s{series.style % 8}"><path class="line" d="M{left:.1f} {middle}h26"{_dash(series.style)}/>'
                f"{_marker(series.style, left + 13, middle)}"
                f'<text class="name" x="{left + SWATCH:.1f}" y="{middle + 4.5:g}">{escape(name)}'
                f"<title>{escape(series.name)}</title></text></g>"
            )
            x += width + GAP
        return "".join(parts), row

    def _axes(self) -> str:
        chart, size = self.chart, self.size
        parts = [f'<text class="axis" x="{size.left}" y="{self.top - 12}">{escape(chart.y_title)}</text>']
        for value in ticks(chart.y_max, 5 if size.kind != "any" else 4):
            y = self.y(value)
            label = f"{100 * value:.10g} %" if chart.percent else f"{value:.10g}"
            parts.append(
                f'<path class="grid" d="M{size.left} {y}H{self.right}"/>'
                f'<text class="tick" x="{size.left - 8}" y="{y + 4:g}" text-anchor="end">{label}</text>'
            )
        for value in ticks(chart.x_max, size.x_ticks):
            x = self.x(value)
            parts.append(
                f'<path class="base" d="M{x} {self.bottom}v5"/>'
                f'<text class="tick" x="{x}" y="{self.bottom + 19:g}" text-anchor="middle">{value:.10g}</text>'
            )
        parts.append(f'<path class="base" d="M{size.left} {self.bottom}H{self.right}"/>')
        middle = (size.left + self.right) / 2
        parts.append(
            f'<text class="axis" x="{middle:g}" y="{self.bottom + 41:g}" text-anchor="middle">'
            f"{escape(chart.x_title)}</text>"
        )
        return "".join(parts)

    def _path(self, points: list[tuple[float, float]]) -> str:
        """A path with no corner that is not needed."""
        drawn = [(self.x(x), self.y(min(y, self.chart.y_max))) for x, y in points if x <= self.chart.x_max + 1e-9]
        kept: list[tuple[float, float]] = []
        for point in drawn:
            if len(kept) > 1 and _straight(kept[-2], kept[-1], point):
                kept[-1] = point
            elif not kept or kept[-1] != point:
                kept.append(point)
        return "L".join(f"{x:g} {y:g}" for x, y in kept)

    def _band(self, series: Series) -> str:
        if series.low is None or series.high is None:
            return ""
        upper = list(series.drawn(series.high, self.chart.shape))
        lower = list(series.drawn(series.low, self.chart.shape))[::-1]
        return f'<path class="band s{series.style % 8}" d="M{self._path(upper)}L{self._path(lower)}z"/>'

    def _line(self, series: Series) -> str:
        points = list(series.drawn(series.y, self.chart.shape))
        return f'<path class="line s{series.style % 8}" d="M{self._path(points)}"{_dash(series.style)}/>'

    def _markers(self, series: Series, number: int) -> str:
        """A few on each curve, shifted so that those of equal curves do not hide each other."""
        shown = [i for i, x in enumerate(series.x.tolist()) if x <= self.chart.x_max + 1e-9]
        every = max(1, len(shown) // 7)
        first = (every * (2 * number + 1) // (2 * len(self.chart.series))) % every if every > 1 else 0
        parts = [
            _marker(series.style, self.x(float(series.x[i])), self.y(min(float(series.y[i]), self.chart.y_max)))
            for i in shown[first::every]
        ]
        return f'<g class="s{series.style % 8}">{"".join(parts)}</g>'

    def _mark_line(self, x: float, style: int | None) -> str:
        colour = "" if style is None else f" s{style % 8}"
        return f'<path class="mark{colour}" d="M{self.x(x)} {self.top}V{self.bottom}"/>'

    def _mark_names(self) -> str:
        """Names of vertical lines, one below another from the right, so that none hides another."""
        parts = []
        for row, mark in enumerate(self.stacked):
            x, y = self.x(mark.x), self.top + 14 + row * (self.size.font + 5)
            name = mark.text if self.size.kind == "wide" and len(self.stacked) <= 3 else mark.short
            left = x > (self.size.left + self.right) / 2
            place = f'x="{x - 7:g}" text-anchor="end"' if left else f'x="{x + 7:g}"'
            colour = "" if mark.style is None else f" s{mark.style % 8}"
            parts.append(f'<text class="mark-name{colour}" {place} y="{y:g}">{escape(name)}</text>')
        return "".join(parts)


def _straight(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (a[0] == b[0] == c[0]) or (a[1] == b[1] == c[1])


def _dash(style: int) -> str:
    dashes = DASHES[(style + style // 8) % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _marker(style: int, x: float, y: float) -> str:
    path = MARKER_PATHS[MARKERS[(style + style // 8) % len(MARKERS)]]
    return f'<path class="dot" transform="translate({x:g} {y:g})" d="{path}"/>'
