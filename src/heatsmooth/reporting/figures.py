"""The figures of a report, from what was read."""

import numpy as np

from heatsmooth.reporting.chart import Chart, Mark, Series, grid, nice_limit
from heatsmooth.reporting.collection import AttackRun, Certification, Collection, Training
from heatsmooth.reporting.formats import count_text, plain, radius_text
from heatsmooth.reporting.naming import Names
from heatsmooth.reporting.probabilities import of_certification, probability_chart, probability_series
from heatsmooth.results.radii import Radii
from heatsmooth.statistics.accuracy import certified_accuracy, certified_accuracy_band
from heatsmooth.statistics.bounds import Floats

BAND = 0.05
"""Each confidence band is wrong with at most this probability, at each radius."""
CURVE_POINTS = 150


def certified_charts(collection: Collection, names: Names) -> list[Chart]:
    """Certified accuracy against radius: one figure per norm for top-1, one per norm and top-k."""
    figures: dict[tuple[int, str], list[Certification]] = {}
    for item in collection.certifications:
        if item.labelled:
            figures.setdefault((item.top_k, item.claims.basis.norm_name), []).append(item)
    in_order = sorted(figures, key=lambda key: (key[0], key[1] != "L2", key[1]))
    return [_certified(figures[key], names, *key) for key in in_order]


def _certified(items: list[Certification], names: Names, top_k: int, norm: str) -> Chart:
    most = max(item.cap if item.cap is not None else float(item.claims.radii.max()) for item in items)
    at, lines = grid(max(most, 0.001 if norm == "L∞" else 0.05)), names.lines(items)
    series = [certified_series(item.claims, at, *lines[item.name]) for item in items]
    unknown = sum(item.cap is None for item in items)
    noise = "Gaussian average" if all(item.claims.basis.noise == "gaussian" for item in items) else "average over noise"
    file, tail = ("", "") if norm == "L2" else (f"-{'linf' if norm == 'L∞' else norm.lower()}", f", {norm}")
    what = "that are correct and certified" if top_k == 1 else f"whose label provably stays among the top {top_k}"
    caption = (
        f"Share of all images {what} at radius r. The curves are about the {noise} of each network. "
        "Each certificate is true with probability at least 1−α. Abstentions count as errors. "
        "Bands: Clopper–Pearson, 95\u00a0% at each radius, over images of the same kind."
    )
    if unknown:
        logs = "A log does" if unknown == 1 else f"{unknown} logs do"
        caption += f" {logs} not state n and α, so the largest possible radius is not drawn."
    return Chart(
        key=("certified-accuracy" if top_k == 1 else f"certified-accuracy-top-{top_k}") + file,
        title="Certified accuracy against radius" + ("" if top_k == 1 else f", top-{top_k}") + tail,
        caption=caption,
        x_title=f"{norm} radius r, images in [0, 1]",
        y_title="certified accuracy",
        series=tuple(series),
        x_max=float(at[-1]) * 1.02,
        y_max=1.0,
        shape="step",
        marks=_caps(items, lines),
        percent=True,
        band="95 %",
    )


def certified_series(claims: Radii, at: Floats, name: str, style: int) -> Series:
    """Certified accuracy at each radius of ``at``, up to the first 0; without labels, the share with such a radius."""
    counted = ~claims.abstained if claims.correct is None else claims.correct
    share = certified_accuracy(claims.radii, counted, at)
    low, high = certified_accuracy_band(claims.radii, counted, at, alpha=BAND)
    last = int((share > 0).sum()) + 1
    return Series(name, style, at[:last], share[:last], low[:last], high[:last])


def _caps(items: list[Certification], lines: dict[str, tuple[str, int]]) -> tuple[Mark, ...]:
    """The largest radius that n and α allow, once for all series that have the same."""
    by_cap: dict[tuple[str, str], list[Certification]] = {}
    for item in items:
        if item.cap is not None:
            how = f"n {count_text(item.n)}, α {plain(item.claims.basis.alpha)}, σ {plain(item.sigma)}"
            key = (radius_text(item.cap, 3), how)
            by_cap.setdefault(key, []).append(item)
    marks = []
    for (cap, settings), group in by_cap.items():
        style = lines[group[0].name][1] if len(group) == 1 and len(by_cap) > 1 else None
        marks.append(Mark(group[0].cap or 0.0, f"no radius beyond {cap}: {settings}", f"cap {cap}", style))
    return tuple(marks)


def attack_charts(collection: Collection, names: Names) -> list[Chart]:
    """The share of images attacked against distance, one figure per kind of attack."""
    kinds = dict.fromkeys(sorted((a.kind for a in collection.attacks), key=lambda kind: (kind != "PGD", kind)))
    return [_attacked([a for a in collection.attacks if a.kind == kind], names, kind) for kind in kinds]


def _attacked(items: list[AttackRun], names: Names, kind: str) -> Chart:
    reached = [item.results.distances[~item.results.failed] for item in items]
    most = max((float(np.quantile(d, 0.995)) for d in reached if d.size), default=1.0)
    at = grid(max(most, 0.05))
    series = []
    for item in items:
        share = np.searchsorted(np.sort(item.results.distances), at, side="right") / len(item.results)
        name = names.attacks[item.name]
        series.append(Series(name, names.style(name), at, share))
    return Chart(
        key=f"attacked-{kind.lower()}",
        title=f"Images attacked by {kind} against distance",
        caption=(
            f"Share of all images for which {kind} found a wrong answer within this distance. Images that are wrong at "
            "the start count from 0. Images on which the attack failed never count. The distance of an attack is an "
            "upper bound: lower curves look more robust, and a stronger attack may raise them."
        ),
        x_title="L2 distance, images in [0, 1]",
        y_title="images attacked",
        series=tuple(series),
        x_max=float(at[-1]),
        y_max=1.0,
        shape="step",
        percent=True,
    )


def probability_charts(collection: Collection, names: Names) -> list[Chart]:
    """The distribution of p_A over the images; top-k only for models without top-1."""
    items = _with_top_1_first(collection, names)
    known = [(item, values) for item in items if (values := of_certification(item)) is not None]
    if not known:
        return []
    lines = names.lines([item for item, _ in known])
    series = [probability_series(values, *lines[item.name]) for item, values in known]
    return [probability_chart(series, missing=len(items) - len(known))]


def _with_top_1_first(collection: Collection, names: Names) -> list[Certification]:
    """The top-1 certifications, and those of other models."""
    top_1 = {names.model_of(item) for item in collection.certifications if item.top_k == 1}
    return [item for item in collection.certifications if item.top_k == 1 or names.model_of(item) not in top_1]


def _highest(series: list[Series]) -> float:
    return nice_limit(max(float(one.y.max()) for one in series))


def training_charts(collection: Collection) -> list[Chart]:
    """The loss of each training over epochs."""
    return [_training(item, i) for i, item in enumerate(collection.trainings) if item.curves]


def _training(item: Training, position: int) -> Chart:
    series = []
    for style, (name, (x, y)) in enumerate(item.curves.items()):
        kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).round().astype(int))
        series.append(Series(name, style, x[kept], y[kept]))
    points = max(len(x) for x, _ in item.curves.values())
    every = "every record" if points <= CURVE_POINTS else f"{CURVE_POINTS} of {points} records"
    return Chart(
        key=f"training-{position + 1}",
        title=item.name,
        caption=f"The loss of the {item.run.command} run and its terms: {every} of metrics.jsonl.",
        x_title="epoch",
        y_title="loss",
        series=tuple(series),
        x_max=max(float(s.x[-1]) for s in series) or 1.0,
        y_max=_highest(series),
        small=True,
    )
