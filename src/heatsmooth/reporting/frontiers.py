"""The frontier of one network as a table and a figure."""

import numpy as np

from heatsmooth.reporting.chart import Chart, Series
from heatsmooth.reporting.formats import percent, radius_text
from heatsmooth.results.frontier import FrontierPoint, FrontierResult
from heatsmooth.table import NONE, Column, Table


def frontier_rows(result: FrontierResult) -> list[dict[str, str]]:
    """One row per point, by the head of each column."""
    what, sure = ("clean accuracy", "certified") if result.labelled else ("kept on held-out images", "with a radius")
    return [_row(point, result.radii, what, sure) for point in result.points]


def _row(point: FrontierPoint, radii: tuple[float, ...], what: str, sure: str) -> dict[str, str]:
    low, high = point.kept_interval or (0.0, 0.0)
    return {
        "keep": "as it is" if point.keep is None else f"{point.keep:g}",
        "kept (95 %)": NONE if point.kept is None else f"{percent(point.kept)} ({percent(low)} to {percent(high)})",
        what: percent(point.clean),
        **{f"{sure} at {r:g}": percent(share) for r, share in zip(radii, point.certified, strict=True)},
        "mean radius": radius_text(point.mean_radius, 3),
    }


def frontier_tables(frontiers: list[tuple[str, FrontierResult]]) -> list[Table]:
    """One table per frontier, with its recommendation."""
    tables: list[Table] = []
    for name, result in frontiers:
        rows = frontier_rows(result)
        columns = tuple(Column(head, words=place == 0) for place, head in enumerate(rows[0]))
        title = f"What robustness costs: {name}" if len(frontiers) > 1 else "What robustness costs"
        note = f"{result.recommendation} σ={result.sigma:g}, n={result.n:,}, {result.images} images."
        tables.append(
            Table(
                title, columns, tuple(tuple(row.values()) for row in rows), note=note, key=f"frontier-{len(tables) + 1}"
            )
        )
    return tables


def frontier_charts(frontiers: list[tuple[str, FrontierResult]]) -> list[Chart]:
    """Clean accuracy against certified accuracy, one figure per frontier, one line per radius."""
    return [_chart(number, result) for number, (_, result) in enumerate(frontiers, start=1)]


def _chart(number: int, result: FrontierResult) -> Chart:
    points = sorted(result.points, key=lambda point: point.clean)
    x = np.array([point.clean for point in points])
    what = "clean accuracy, one pass" if result.labelled else "answers kept on held-out images"
    sure = "certified accuracy" if result.labelled else "images with a radius"
    series = tuple(
        Series(f"at radius {radius:g}", style, x, np.array([point.certified[style] for point in points]))
        for style, radius in enumerate(result.radii)
    )
    return Chart(
        key=f"frontier-{number}",
        title="What robustness costs",
        caption=(
            f"Each point is the same network, smoothed to keep another share of its answers; the last one to the right "
            f"is usually the network as it is. {result.recommendation} Certificates are about the Gaussian average."
        ),
        x_title=what,
        y_title=sure,
        series=series,
        x_max=1.0,
        y_max=1.0,
        percent=True,
    )
