"""Drawings as inline SVG: colours come from the page's style sheet, so that they follow light and dark."""

from functools import singledispatch
from html import escape

from heatsmooth.reporting.chart import Chart
from heatsmooth.reporting.drawing import NARROW, SMALL, STYLES, WIDE, Dot, Drawing, Line, Words, turn

DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "9 3 2 3 2 3")
MARKERS = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.2L4 3H-4z",
    "M0-4.4L4.4 0L0 4.4L-4.4 0z",
    "M0 4.2L4-3H-4z",
    "M0-4.2L4-1.3L2.5 3.4H-2.5L-4-1.3z",
    "M-3.6-2.2L-2.2-3.6L0-1.4L2.2-3.6L3.6-2.2L1.4 0L3.6 2.2L2.2 3.6L0 1.4L-2.2 3.6L-3.6 2.2L-1.4 0z",
    "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
)


def drawings(chart: Chart) -> str:
    """One drawing, or one for wide and one for narrow columns; the style sheet shows the one that fits."""
    return "".join(_svg(Drawing(chart, size)) for size in ((SMALL,) if chart.small else (WIDE, NARROW)))


def _svg(drawing: Drawing) -> str:
    chart, size = drawing.chart, drawing.size
    many = " many" if len(chart.series) > 4 else ""
    return (
        f'<svg class="chart {size.kind}{many}" viewBox="0 0 {size.width} {drawing.height:g}" '
        f'font-size="{size.font:g}" role="img" aria-label="{escape(chart.title)}" '
        f'data-left="{drawing.left}" data-right="{drawing.right}" data-top="{drawing.top}" '
        f'data-bottom="{drawing.bottom}" data-x="{chart.x_max:.10g}" data-y="{chart.y_max:.10g}">'
        f'{"".join(map(_element, drawing.shapes))}<g class="cursor"></g></svg>'
    )


def _colour(style: int | None) -> str:
    return "" if style is None else f" s{style % STYLES}"


@singledispatch
def _element(shape: object) -> str:
    raise TypeError(shape)


@_element.register
def _(line: Line) -> str:
    path = "L".join(f"{x:g} {y:g}" for x, y in line.points) + ("z" if line.role == "band" else "")
    dashes = DASHES[turn(line.style)] if line.role in ("line", "envelope") and line.style is not None else ""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    role = "line envelope" if line.role == "envelope" else line.role
    key = f' data-key="{escape(line.key)}"' if line.key else ""
    return f'<path class="{role}{_colour(line.style)}"{key} d="M{path}"{dashed}/>'


@_element.register
def _(dot: Dot) -> str:
    place = f"translate({dot.x:g} {dot.y:g})"
    return f'<path class="dot{_colour(dot.style)}" transform="{place}" d="{MARKERS[turn(dot.style)]}"/>'


@_element.register
def _(words: Words) -> str:
    anchor = "" if words.anchor == "start" else f' text-anchor="{words.anchor}"'
    full = f"<title>{escape(words.full)}</title>" if words.full else ""
    place = f'x="{words.x:g}" y="{words.y:g}"{anchor}'
    return f'<text class="{words.role}{_colour(words.style)}" {place}>{escape(words.text)}{full}</text>'
