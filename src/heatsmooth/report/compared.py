"""What ``compare`` found over all seeds: means, what smoothing brought and cost, how many times one ACR is another."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from heatsmooth.report.results import STATISTICAL
from heatsmooth.report.tables import Column, Table, without_empty_columns
from heatsmooth.report.values import (
    NONE,
    count_text,
    dig,
    entries,
    interval,
    number,
    one_line,
    plain,
    radius_text,
    text,
)

Comparisons = list[tuple[str, dict[str, Any]]]
"""What ``comparison.json`` holds, by the name of its directory."""
LARGEST = 1e6
"""Beyond this, what a file calls a radius, a share or a factor is none."""
SHARES = {
    "one pass": "one_pass_accuracy",
    "average": "average_accuracy",
    "agree": "agreement",
    "r ≥ .25": "certified_at_0.25",
    "r ≥ .5": "certified_at_0.5",
}
MEASURES = {
    "one_pass_accuracy": "one pass accuracy",
    "certified_at_0": "certified at 0",
    "average_certified_radius": "ACR",
    "median_certified_radius": "median radius",
}
EXPLAINED = (
    "One pass: accuracy of the network; average: of its Gaussian average; agree: how often both have the same class. "
    "r ≥ and ACR: certified accuracy and mean radius of the average, each certificate false with probability at most "
    "α, of the class of one pass, or of a vote where the method answers by one; wrong classes and abstentions count as "
    "0. The number of draws caps every radius."
)
OVER_IMAGES = (
    "Intervals are over images, for these very networks, each 95 % on its own: of shares by Bonett and Price, of radii "
    "by paired bootstrap, too narrow for a few dozen images. The number of draws caps every radius."
)


def figures(row: Any) -> dict[str, str]:
    """A method's shares of images and ACR, each with its standard deviation over the seeds if there are several."""
    acr = "average_certified_radius"
    shares = {head: _share(_number(row, key)) + _spread(row, key, _share) for head, key in SHARES.items()}
    return {**shares, "ACR": _radius(_number(row, acr)) + _spread(row, acr, lambda sd: f"{sd:.3f}")}


def _number(facts: Any, *keys: str) -> float | None:
    found = number(facts, *keys)
    return found if found is not None and abs(found) < LARGEST else None


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def _radius(value: float | None) -> str:
    return NONE if value is None or value < 0 else radius_text(value, 3)


def _spread(row: Any, key: str, shown: Callable[[float], str]) -> str:
    deviation = _number(row, f"{key}_sd")
    return "" if deviation is None else f" ± {shown(deviation)}"


def gained(gain: Any) -> list[tuple[str, str, str, str]]:
    """Measure, before, after, change with its interval: of shares in points, of radii as a factor if there is one."""
    return [
        (
            MEASURES.get(measure, one_line(measure, 60)) + ("" if kind == "certified" else f", {one_line(kind, 20)}"),
            *_change(facts, is_radius=measure.endswith("radius")),
        )
        for kind, measures in entries(gain)
        for measure, facts in entries(measures)
    ]


def _change(facts: Any, *, is_radius: bool) -> tuple[str, str, str]:
    before, after, change = (_number(facts, key) for key in ("before", "after", "difference"))
    between = interval(facts, "difference_interval")
    if not is_radius:
        points = NONE if change is None else f"{100 * change:+.1f} points{_outwards(between, '+.1f', 100)}"
        return _share(before), _share(after), points
    factor = times(facts)
    if factor == NONE and change is not None:
        factor = f"{_rounded(change, 3, math.floor):+.3f}{_outwards(between, '+.3f')}"
    return _radius(before), _radius(after), factor


def times(facts: Any) -> str:
    """A factor with its interval; there is none where the divisor may be 0."""
    factor, between = _number(facts, "factor"), _outwards(interval(facts, "factor_interval"), ".2f")
    return f"× {factor:.2f}{between}" if factor is not None and between else NONE


def _outwards(ends: tuple[float | None, float | None], shown: str, scale: float = 1) -> str:
    """An interval in brackets, rounded outwards; nothing if there is none."""
    low, high = ends
    if low is None or high is None or not -LARGEST < low <= high < LARGEST:
        return ""
    digits = int(shown[-2])
    low, high = _rounded(scale * low, digits, math.floor), _rounded(scale * high, digits, math.ceil)
    return f" ({low:{shown}} to {high:{shown}})"


def _rounded(value: float, digits: int, way: Callable[[float], int]) -> float:
    """Rounded up or down, but for what binary fractions add: 100 × 0.07 is 7."""
    scale = 10.0**digits
    return way(round(value * scale, 6)) / scale


def ratios(comparison: Any) -> list[tuple[str, str, str, str]]:
    """A smoothed method, another one, how many times the other's ACR its own is, and the same of each seed alone.

    Without the pairs that ``gained`` tells of; of two smoothed methods, the one with the larger ACR stands first.
    """
    smoothed = dict(entries(comparison, "average_certified_radius_ratios"))
    return [
        (one_line(name, 60), one_line(other, 60), times(facts), _by_seed(facts))
        for name, others in smoothed.items()
        for other, facts in entries(others)
        if text(comparison, "gains", name, "from") != other
        and not (other in smoothed and (number(facts, "factor") or 0) < 1)
    ]


def _by_seed(facts: Any) -> str:
    found = dig(facts, "by_seed")
    factors = [_number(factor) for factor in found] if isinstance(found, list) else []
    return ", ".join(NONE if f is None else f"{f:.2f}" for f in factors) if len(factors) > 1 else ""


def conditions(comparison: Any) -> str:
    """Under what the figures of a comparison were measured, as far as it says."""
    seeds = dig(comparison, "seeds")
    numbers = [plain(number(seed)) for seed in seeds] if isinstance(seeds, list) else []
    wrong = number(comparison, "n_wrong")
    facts = [
        (f"σ = {plain(number(comparison, 'sigma'))}", number(comparison, "sigma")),
        (f"α = {plain(number(comparison, 'alpha'))}", number(comparison, "alpha")),
        (f"n = {count_text(number(comparison, 'n'))}", number(comparison, "n")),
        (f"{count_text(wrong)} where the class is wrong", wrong),
        (f"{count_text(number(comparison, 'images'))} images", number(comparison, "images")),
        (f"seed{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}", numbers or None),
    ]
    seen = dig(comparison, "certified_images_unseen") is False
    said = ", ".join(fact for fact, value in facts if value is not None)
    return said + (", on the very images that the networks were made on" if seen else "")


def means_table(comparisons: Comparisons) -> Table | None:
    """The methods over several seeds, which the other tables show one by one."""
    rows = [
        (one_line(name, 60), comparison, *figures(row).values())
        for comparison, facts in comparisons
        if isinstance(seeds := dig(facts, "seeds"), list) and len(seeds) > 1
        for name, row in entries(facts, "methods")
    ]
    columns = (
        Column("Method", words=True),
        Column("Comparison", words=True),
        Column("One pass"),
        Column("Average"),
        Column("Agree"),
        Column("r ≥ .25", STATISTICAL),
        Column("r ≥ .5", STATISTICAL),
        Column("ACR", STATISTICAL),
    )
    note = f"Mean ± standard deviation over the seeds; tables of single runs may show one seed. {EXPLAINED}"
    return _table("over-seeds", "Methods over all seeds", columns, rows, note, comparisons)


def gains_table(comparisons: Comparisons) -> Table | None:
    """What smoothing brought and cost."""
    rows = [
        (f"{text(gain, 'from') or '?'} → {one_line(name, 60)}", comparison, *row)
        for comparison, facts in comparisons
        for name, gain in entries(facts, "gains")
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
        "Means over the seeds. Radii, and what is certified, are of the average, statistical; wrong classes and "
        f"abstentions count as 0. {OVER_IMAGES}"
    )
    return _table("smoothing-gains", "What smoothing brought and cost", columns, rows, note, comparisons)


def ratios_table(comparisons: Comparisons) -> Table | None:
    """How many times the ACR of a smoothed method is that of others."""
    rows = [(name, comparison, *row) for comparison, facts in comparisons for name, *row in ratios(facts)]
    columns = (
        Column("ACR of", words=True),
        Column("Comparison", words=True),
        Column("Against that of", words=True),
        Column("Factor (95\u00a0% interval)"),
        Column("By seed"),
    )
    note = (
        "Of ACRs of the averages, which are means over seeds and images of statistical lower bounds; their ratio is "
        f"measured, not certified. {OVER_IMAGES}"
    )
    return _table("acr-ratios", "Average certified radius against others", columns, rows, note, comparisons)


def _table(
    key: str,
    title: str,
    columns: tuple[Column, ...],
    rows: Iterable[tuple[str, ...]],
    note: str,
    comparisons: Comparisons,
) -> Table | None:
    """The table, with the conditions of each comparison in its note, and its name in the rows if there are several."""
    alone = len(comparisons) == 1
    shown = tuple((first, "" if alone else comparison, *cells) for first, comparison, *cells in rows)
    told = "; ".join(("" if alone else f"{name}: ") + conditions(facts) for name, facts in comparisons)
    return without_empty_columns(Table(key, title, columns, shown, f"{note} ({told}.)")) if shown else None
