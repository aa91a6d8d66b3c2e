"""The figures of a report, from what was read."""

from itertools import pairwise

import numpy as np

from heatsmooth.report.chart import Chart, Mark, Series, grid, nice_limit
from heatsmooth.report.collection import Attack, Certification, Collection, Training
from heatsmooth.report.naming import Names
from heatsmooth.report.values import count_text, plain, radius_text
from heatsmooth.statistics.bounds import Floats

BAND = 0.05
"""Each confidence band may be wrong with this probability, at each radius."""
CURVE_POINTS = 150
BINS = 20


def certified_charts(collection: Collection, names: Names) -> list[Chart]:
    """Certified accuracy against radius: one figure for the class itself, one for each top-k."""
    labelled = [item for item in collection.certifications if item.claims.correct is not None]
    return [
        _certified([item for item in labelled if item.top_k == k], names, k)
        for k in sorted({item.top_k for item in labelled})
    ]


def _certified(items: list[Certification], names: Names, top_k: int) -> Chart:
    most = max(item.cap if item.cap is not None else float(item.claims.radii.max()) for item in items)
    at, lines = grid(max(most, 0.05)), names.lines(items)
    series = []
    for item in items:
        share = item.claims.certified_accuracy(at)
        low, high = item.claims.certified_accuracy_band(at, alpha=BAND)
        last = int((share > 0).sum()) + 1
        series.append(Series(*lines[item.name], at[:last], share[:last], low[:last], high[:last]))
    unknown = sum(item.cap is None for item in items)
    what = "that are right and certified" if top_k == 1 else f"whose label provably stays in the top {top_k}"
    caption = (
        f"Share of all images {what} at radius r. It speaks of the average of each network over Gaussian "
        "noise, each certificate being true with probability at least 1−α; abstentions count as errors. "
        "Bands: Clopper–Pearson, 95\u00a0% at each radius, for other images of the same kind."
    )
    if unknown:
        caption += (
            f" {'A log does' if unknown == 1 else f'{unknown} logs do'} not say n and α, so the largest radius they "
            "allow is not drawn."
        )
    return Chart(
        key="certified-accuracy" if top_k == 1 else f"certified-accuracy-top-{top_k}",
        title="Certified accuracy against radius" + ("" if top_k == 1 else f", top-{top_k}"),
        caption=caption,
        x_title="L2 radius r, images in [0, 1]",
        y_title="certified accuracy",
        series=tuple(series),
        x_max=float(at[-1]) * 1.02,
        y_max=1.0,
        shape="step",
        marks=_caps(items, lines),
        percent=True,
        band="95 %",
    )


def _caps(items: list[Certification], lines: dict[str, tuple[str, int]]) -> tuple[Mark, ...]:
    """The largest radius that n and α allow, once for all series that share it."""
    shared: dict[tuple[str, str], list[Certification]] = {}
    for item in items:
        if item.cap is not None:
            how = f"n {count_text(item.n)}, α {plain(item.claims.basis.alpha)}, σ {plain(item.sigma)}"
            key = (radius_text(item.cap, 3), how)
            shared.setdefault(key, []).append(item)
    marks = []
    for (cap, settings), group in shared.items():
        style = lines[group[0].name][1] if len(group) == 1 and len(shared) > 1 else None
        marks.append(Mark(group[0].cap or 0.0, f"no radius beyond {cap}: {settings}", f"cap {cap}", style))
    return tuple(marks)


def attack_charts(collection: Collection, names: Names) -> list[Chart]:
    """The share of images attacked against distance, one figure for each kind of attack."""
    kinds = dict.fromkeys(sorted((a.kind for a in collection.attacks), key=lambda kind: (kind != "PGD", kind)))
    return [_attacked([a for a in collection.attacks if a.kind == kind], names, kind) for kind in kinds]


def _attacked(items: list[Attack], names: Names, kind: str) -> Chart:
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
            f"Share of all images for which {kind} found a wrong answer at most this far away. Images wrong from the "
            "start count from 0 on; where the attack failed, the image never counts. An attack gives an upper bound "
            "of the true distance: lower curves look more robust, and a stronger attack may raise them."
        ),
        x_title="L2 distance, images in [0, 1]",
        y_title="images attacked",
        series=tuple(series),
        x_max=float(at[-1]),
        y_max=1.0,
        shape="step",
        percent=True,
    )


def probability_chart(collection: Collection, names: Names) -> Chart | None:
    """How often the certified class came up among the noisy draws, over the images; for top-k only where it is all."""
    known = [item for item in collection.certifications if item.certificates is not None]
    top_1 = {names.model_of(item) for item in known if item.top_k == 1}
    items = [item for item in known if item.top_k == 1 or names.model_of(item) not in top_1]
    if not items:
        return None
    lines = names.lines(items)
    edges = np.linspace(0, 1, BINS + 1)
    middles: Floats = (edges[1:] + edges[:-1]) / 2
    series = []
    for item in items:
        assert item.certificates is not None
        share = np.histogram(item.certificates.target_shares, edges)[0] / len(item.certificates)
        series.append(Series(*lines[item.name], middles, share))
    bins = tuple(f"{low:.2f}–{high:.2f}" for low, high in pairwise(edges.tolist()))
    return Chart(
        key="p-a",
        title="Distribution of p_A",
        caption=(
            "p_A: the share of the noisy draws of an image in which the network gives the certified class, right or "
            "wrong. Only images well above ½ get a radius; the radius grows without bound as p_A nears 1."
        ),
        x_title="p_A, estimated",
        y_title="images",
        series=tuple(series),
        x_max=1.0,
        y_max=min(1.0, nice_limit(max(float(s.y.max()) for s in series))),
        shape="bins",
        marks=(Mark(0.5, "below ½ it abstains", "½"),),
        percent=True,
        bin_names=bins,
    )


def training_charts(collection: Collection) -> list[Chart]:
    """What each run minimised, over epochs."""
    return [_training(item, i) for i, item in enumerate(collection.trainings) if item.curves]


def _training(item: Training, number_: int) -> Chart:
    series = []
    for style, (name, (x, y)) in enumerate(item.curves.items()):
        kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).round().astype(int))
        series.append(Series(name, style, x[kept], y[kept]))
    points = max(len(x) for x, _ in item.curves.values())
    every = "every record" if points <= CURVE_POINTS else f"{CURVE_POINTS} of {points} records"
    return Chart(
        key=f"training-{number_ + 1}",
        title=item.run.name,
        caption=f"What the {item.run.command} run minimised; {every} of metrics.jsonl, each exact.",
        x_title="epoch",
        y_title="loss",
        series=tuple(series),
        x_max=max(float(s.x[-1]) for s in series) or 1.0,
        y_max=nice_limit(max(float(s.y.max()) for s in series)),
        small=True,
    )
