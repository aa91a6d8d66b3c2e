"""Charts as small PDF files, for papers: the same points, on white."""

import io
import warnings

from heatsmooth.report.chart import COLOURS, DASHES, MARKERS, Chart, ticks


def pdf(chart: Chart) -> bytes:
    """One page; the same bytes for the same chart."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    with (
        rc_context({"text.parse_math": False, "font.size": 8, "font.family": "DejaVu Sans", "axes.linewidth": 0.6}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # letters that the font lacks, in names
        figure = Figure(figsize=(5.2, 3.2))
        FigureCanvasPdf(figure)
        axes = figure.add_subplot()
        for number, series in enumerate(chart.series):
            colour = COLOURS[series.style % 8]
            if series.low is not None and series.high is not None:
                upper, lower = (list(series.drawn(values, chart.shape)) for values in (series.high, series.low))
                axes.fill_between(
                    [x for x, _ in upper], [y for _, y in lower], [y for _, y in upper], color=colour, alpha=0.13, lw=0
                )
            line = list(series.drawn(series.y, chart.shape))
            xs, ys = [x for x, _ in line], [y for _, y in line]
            turn = (series.style + series.style // 8) % 8
            every = max(1, len(line) // 7)
            axes.plot(
                xs,
                ys,
                color=colour,
                lw=1.2,
                marker=MARKERS[turn],
                markersize=3.2,
                markevery=(number % every, every),
                linestyle=_dashes(turn),
                label=series.name if not series.name.startswith("_") else f" {series.name}",
            )
        for mark in chart.marks:
            colour = "#666666" if mark.style is None else COLOURS[mark.style % 8]
            axes.axvline(mark.x, color=colour, lw=0.7, ls=(0, (2, 2)), label=f" {mark.text}")
        axes.set(xlim=(0, chart.x_max), ylim=(0, chart.y_max), xlabel=chart.x_title, ylabel=chart.y_title)
        if chart.percent:
            values = ticks(chart.y_max, 5)
            axes.set_yticks(values, [f"{100 * value:.10g} %" for value in values])
        axes.grid(axis="y", lw=0.3, color="#cccccc")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
        figure.tight_layout()
        file = io.BytesIO()
        figure.savefig(file, format="pdf", metadata={"CreationDate": None, "Title": chart.title})
    return file.getvalue()


def _dashes(turn: int) -> str | tuple[int, tuple[float, ...]]:
    numbers = tuple(float(part) / 2 for part in DASHES[turn].split())
    return (0, numbers) if numbers else "-"
