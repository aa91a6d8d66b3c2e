"""Drawings as small PDF files, for papers: the same lines, markers and text, on white."""

import io
import warnings
from typing import TYPE_CHECKING

from heatsmooth.reporting.chart import Chart
from heatsmooth.reporting.drawing import SMALL, STYLES, WIDE, Dot, Drawing, Line, Shape, turn
from heatsmooth.reporting.svg import DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = 0.48
"""Points per pixel: 800 pixels become 5.3 inches."""
COLOURS = ("#0b62c4", "#c2410c", "#0f7a5a", "#9d3c86", "#7a5b00", "#0a7f95", "#4b4f58", "#b0303f")
"""Of the light theme."""
MARKERS = ("o", "s", "^", "D", "v", "p", "X", "P")
GREY = {"grid": "#e5e6e3", "base": "#b9bcb6", "tick": "#5b616e", "axis": "#5b616e", "name": "#17191e"}
WIDTHS = {"grid": 1.0, "base": 1.0, "line": 2.0, "faint": 1.0, "envelope": 3.2, "mark": 1.3}


def pdf(chart: Chart) -> bytes:
    """One page; the same bytes for the same chart."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    drawing = Drawing(chart, SMALL if chart.small else WIDE)
    with rc_context({"text.parse_math": False, "font.family": "DejaVu Sans"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters of names that the font lacks
        figure = Figure(figsize=(drawing.size.width * SCALE / 72, drawing.height * SCALE / 72))
        FigureCanvasPdf(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, drawing.size.width), ylim=(drawing.height, 0))
        axes.set_axis_off()
        for order, shape in enumerate(drawing.shapes):
            _draw(axes, shape, order, drawing)
        file = io.BytesIO()
        figure.savefig(file, format="pdf", metadata={"CreationDate": None, "Title": chart.title})
    return file.getvalue()


def _draw(axes: "Axes", shape: Shape, order: int, drawing: Drawing) -> None:
    colour = "#5b616e" if shape.style is None else COLOURS[shape.style % STYLES]
    if isinstance(shape, Dot):
        marker, size = MARKERS[turn(shape.style)], 7.0 * SCALE
        (point,) = axes.plot([shape.x], [shape.y], marker, markersize=size, markerfacecolor="white", zorder=order)
        point.set(markeredgecolor=colour, markeredgewidth=1.7 * SCALE)
    elif isinstance(shape, Line):
        xs, ys = zip(*shape.points, strict=True)
        if shape.role == "band":
            opacity = 0.06 if len(drawing.chart.series) > 4 else 0.13
            axes.fill(xs, ys, color=colour, alpha=opacity, linewidth=0, zorder=order)
            return
        dashes = "2 3" if shape.role == "mark" else DASHES[turn(shape.style)] if shape.style is not None else ""
        width = WIDTHS[shape.role]
        (line,) = axes.plot(xs, ys, color=GREY.get(shape.role, colour), linewidth=width * SCALE, zorder=order)
        if dashes:
            line.set_dashes([float(part) / width for part in dashes.split()])
    else:
        align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        grey, font = GREY.get(shape.role, colour), drawing.size.font * SCALE
        axes.text(shape.x, shape.y, shape.text, color=grey, fontsize=font, ha=align, va="baseline", zorder=order)
