"""What ``compare`` found over all seeds: means, what smoothing gained and cost, ratios of average certified radii."""

import math
from collections.abc import Callable
from dataclasses import replace

from heatsmooth.reporting.certificate_tables import DETERMINISTIC, STATISTICAL
from heatsmooth.reporting.formats import count_text, one_line, plain, radius_text
from heatsmooth.results.comparison import Change, Comparison, Factor, Gain, Measure, MethodFigures, Ratio
from heatsmooth.results.schema import Interval
from heatsmooth.table import NONE, Column, Table

Comparisons = list[tuple[str, Comparison]]
"""By the name of the directory."""
FIGURES = {
    "one pass": Measure.ONE_PASS_ACCURACY,
    "average": Measure.AVERAGE_ACCURACY,
    "agree": Measure.AGREEMENT,
    "r ≥ .25": Measure.CERTIFIED_AT_025,
    "r ≥ .5": Measure.CERTIFIED_AT_05,
    "ACR": Measure.ACR,
}
PROVEN_FIGURES = {
    "clean": Measure.ONE_PASS_ACCURACY,
    "r ≥ 36/255": Measure.CERTIFIED_AT_36,
    "r ≥ .25": Measure.CERTIFIED_AT_025,
    "r ≥ 72/255": Measure.CERTIFIED_AT_72,
    "r ≥ 108/255": Measure.CERTIFIED_AT_108,
    "r ≥ .5": Measure.CERTIFIED_AT_05,
    "ACR": Measure.ACR,
}
RADII: tuple[str, ...] = (Measure.ACR, Measure.MEDIAN_CERTIFIED_RADIUS)
CHANGED: dict[str, str] = {
    Measure.ONE_PASS_ACCURACY: "one pass accuracy",
    Measure.CERTIFIED_AT_0: "certified at 0",
    Measure.ACR: "ACR",
    Measure.MEDIAN_CERTIFIED_RADIUS: "median radius",
}
EXPLAINED = (
    "One pass: accuracy of the network. Average: accuracy of its Gaussian average. Agree: how often both have the same "
    "class. r ≥ and ACR: certified accuracy and mean certified radius of the average; each certificate is false with "
    "probability at most α. The certified class is that of one pass, or of a vote for methods that predict by a vote. "
    "Wrong classes and abstentions count as 0. The number of samples limits every radius. The distribution of p_A of "
    "each run is among the certificates: ACR can be large because of easy images alone (arXiv 2410.06895)."
)
PROVEN_EXPLAINED = (
    "Deterministic: the network itself keeps its class within the radius, proven from its weights in one pass. Clean: "
    "accuracy of one pass. r ≥ and ACR: certified accuracy and mean certified radius of the network; wrong classes "
    "count as 0. The radii of an average cover another model, on another basis."
)
OVER_IMAGES = (
    "Intervals are over images, for these networks, 95 % each: for shares by Bonett and Price, for radii by paired "
    "bootstrap, which is too narrow for a few dozen images. The number of samples limits every radius."
)


def figures(row: MethodFigures) -> dict[str, str]:
    """The shares of images and the ACR of a method, each with its standard deviation over the seeds."""
    return {head: _figure(row, measure) for head, measure in FIGURES.items()}


def proven_figures(row: MethodFigures) -> dict[str, str]:
    """The same for a network with deterministic certificates."""
    return {head: _figure(row, measure) for head, measure in PROVEN_FIGURES.items()}


def _figure(row: MethodFigures, measure: Measure) -> str:
    mean, deviation = row.mean(measure), row.deviation(measure)
    if measure in RADII:
        return _radius(mean) + ("" if deviation is None else f" ± {deviation:.3f}")
    return (NONE if mean is None else f"{mean:.1%}") + ("" if deviation is None else f" ± {deviation:.1%}")


def _radius(value: float | None) -> str:
    return NONE if value is None or value < 0 else radius_text(value, 3)


def gained(gain: Gain) -> list[tuple[str, str, str, str]]:
    """Measure, before, after, change with its interval: shares in points, radii as a factor if there is one."""
    return [
        (
            CHANGED.get(measure, one_line(measure, 60)) + ("" if kind == "certified" else f", {one_line(kind, 20)}"),
            *_change(change, is_radius=measure in RADII),
        )
        for kind, changes in gain.kinds.items()
        for measure, change in changes.items()
    ]


def _change(change: Change, *, is_radius: bool) -> tuple[str, str, str]:
    interval = change.difference_interval
    if not is_radius:
        points = f"{100 * change.difference:+.1f} points{_outwards(interval, '+.1f', 100)}"
        return f"{change.before:.1%}", f"{change.after:.1%}", points
    factor = times(change)
    if factor == NONE:
        factor = f"{_rounded(change.difference, 3, math.floor):+.3f}{_outwards(interval, '+.3f')}"
    return _radius(change.before), _radius(change.after), factor


def times(factor: Factor) -> str:
    """A factor with its interval; a dash where the divisor may be 0."""
    if factor.factor is None or factor.factor_interval is None:
        return NONE
    return f"× {factor.factor:.2f}{_outwards(factor.factor_interval, '.2f')}"


def _outwards(interval: Interval, shown: str, scale: float = 1) -> str:
    """An interval in brackets, rounded outwards."""
    digits = int(shown[-2])
    low, high = _rounded(scale * interval[0], digits, math.floor), _rounded(scale * interval[1], digits, math.ceil)
    return f" ({low:{shown}} to {high:{shown}})"


def _rounded(value: float, digits: int, direction: Callable[[float], int]) -> float:
    """Rounded up or down, without the error of binary fractions: 100 × 0.07 is 7."""
    scale = 10.0**digits
    return direction(round(value * scale, 6)) / scale


def ratios(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """A smoothed method, another one, the ratio of their ACRs, and the same for each seed.

    Pairs of a method and the one that it was smoothed from are in ``gained``. Of two smoothed methods, the one with the
    larger ACR is first.
    """
    smoothed = comparison.average_certified_radius_ratios
    return [
        (one_line(name, 60), one_line(other, 60), times(ratio), _by_seed(ratio))
        for name, others in smoothed.items()
        for other, ratio in others.items()
        if not (name in comparison.gains and comparison.gains[name].start == other)
        and not (other in smoothed and (ratio.factor or 0) < 1)
    ]


def _by_seed(ratio: Ratio) -> str:
    factors = ratio.by_seed
    return ", ".join(NONE if factor is None else f"{factor:.2f}" for factor in factors) if len(factors) > 1 else ""


def conditions(comparison: Comparison) -> str:
    """The settings under which the figures were measured, as far as they are known."""
    seeds = ", ".join(map(str, comparison.seeds))
    facts = [
        ("σ = ", plain(comparison.sigma), ""),
        ("α = ", plain(comparison.alpha), ""),
        ("n = ", count_text(comparison.n), ""),
        ("", count_text(comparison.n_wrong), " where the class is wrong"),
        ("", count_text(comparison.images), " images"),
        ("seeds " if len(comparison.seeds) > 1 else "seed ", seeds or NONE, ""),
        ("", NONE if comparison.certified_images_unseen else "on the images that the networks were made on", ""),
    ]
    return ", ".join(before + value + after for before, value, after in facts if value != NONE)


def means_table(comparisons: Comparisons) -> Table | None:
    """The methods over several seeds; the other tables show single runs."""
    rows = [
        (one_line(name, 60), directory, *figures(row).values())
        for directory, comparison in comparisons
        if len(comparison.seeds) > 1
        for name, row in comparison.methods.items()
    ]
    columns = (
        Column("Method", words=True),
        Column("Comparison", words=True),
        Column("One pass"),
        Column("Average"),
        Column("Agree"),
        Column("r ≥ .25", about=STATISTICAL),
        Column("r ≥ .5", about=STATISTICAL),
        Column("ACR", about=STATISTICAL),
    )
    note = f"Mean ± standard deviation over the seeds. Tables of single runs may show one seed. {EXPLAINED}"
    return finished(Table("Methods over all seeds", columns, tuple(rows), note, "over-seeds"), comparisons)


def proven_means_table(comparisons: Comparisons) -> Table | None:
    """The networks with deterministic certificates over several seeds."""
    rows = [
        (one_line(name, 60), directory, count_text(comparison.proven_images), *proven_figures(row).values())
        for directory, comparison in comparisons
        if len(comparison.seeds) > 1
        for name, row in comparison.proven.items()
    ]
    columns = (
        Column("Method", words=True),
        Column("Comparison", words=True),
        Column("Images"),
        Column("Clean", about="one pass"),
        *(Column(head, about=DETERMINISTIC) for head in list(PROVEN_FIGURES)[1:]),
    )
    note = f"Mean ± standard deviation over the seeds. {PROVEN_EXPLAINED}"
    title = "Deterministic certificates over all seeds"
    return finished(Table(title, columns, tuple(rows), note, "proven-over-seeds"), comparisons)


def gains_table(comparisons: Comparisons) -> Table | None:
    """What smoothing gained and cost."""
    rows = [
        (f"{one_line(gain.start) or '?'} → {one_line(name, 60)}", directory, *row)
        for directory, comparison in comparisons
        for name, gain in comparison.gains.items()
        for row in gained(gain)
    ]
    columns = (
        Column("Smoothing", words=True),
        Column("Comparison", words=True),
        Column("Measure", words=True),
        Column("Before"),
        Column("After"),
        Column("Change (95\u00a0% interval)"),
    )
    note = (
        "Means over the seeds. Radii and certified accuracy are of the average, statistical. Wrong classes and "
        f"abstentions count as 0. {OVER_IMAGES}"
    )
    return finished(Table("What smoothing gained and cost", columns, tuple(rows), note, "smoothing-gains"), comparisons)


def ratios_table(comparisons: Comparisons) -> Table | None:
    """How many times the ACR of a smoothed method is that of others."""
    rows = [(name, directory, *row) for directory, comparison in comparisons for name, *row in ratios(comparison)]
    columns = (
        Column("ACR of", words=True),
        Column("Comparison", words=True),
        Column("Against that of", words=True),
        Column("Factor (95\u00a0% interval)"),
        Column("By seed"),
    )
    note = (
        "Each ACR is a mean over seeds and images of statistical lower bounds. Their ratio is measured, not certified. "
        f"{OVER_IMAGES}"
    )
    title = "Average certified radius against others"
    return finished(Table(title, columns, tuple(rows), note, "acr-ratios"), comparisons)


def finished(table: Table, comparisons: Comparisons) -> Table | None:
    """The table with the conditions of each comparison in its note; directories only if there are several."""
    if not table.rows:
        return None
    alone = len(comparisons) == 1
    rows = tuple((first, "" if alone else directory, *cells) for first, directory, *cells in table.rows)
    told = "; ".join(("" if alone else f"{name}: ") + conditions(comparison) for name, comparison in comparisons)
    return replace(table, rows=rows, note=f"{table.note} ({told}.)").without_empty_columns()
