"""What each kind of guarantee costs and gives: deterministic, statistical and conformal radii side by side.

Each column, and each line of the figure, has one model and one basis. They are never averaged or ranked together.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from heatsmooth.reporting.certificate_tables import CONFORMAL, DETERMINISTIC, STATISTICAL, UNDER_ATTACK
from heatsmooth.reporting.chart import Chart, grid
from heatsmooth.reporting.collection import Calibrated, Certification, Collection, Proven, Training
from heatsmooth.reporting.figures import certified_series
from heatsmooth.reporting.formats import count_text, duration, percent, plain, radius_text
from heatsmooth.reporting.naming import Names
from heatsmooth.reporting.probabilities import QUARTERS_NOTE, of_certification, quartiles, quartiles_text
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.results.radii import Radii
from heatsmooth.statistics.bounds import Floats
from heatsmooth.table import NONE, Column, Table

AVERAGES = 5
"""At most this many averages are shown: those with the largest ACR."""
RADII = {"36/255": 36 / 255, "0.25": 0.25, "72/255": 72 / 255, "108/255": 108 / 255, "0.5": 0.5}
Shown = Callable[["Kind"], str]


@dataclass(frozen=True)
class Kind:
    """The radii of one model on one basis; all images have labels."""

    model: str
    maker: Training | None
    """What made the model, if that is in the report."""
    about: str
    """Which model the radii cover, and on what they rest."""
    false: str
    """When a radius may be false."""
    claims: Radii
    passes: float | None = 1.0
    """Per certificate."""
    seconds: float | None = None
    """Per certificate."""
    clean: float | None = None
    """Accuracy of one pass."""
    p_a: Floats | None = None
    """Lower bounds of p_A, (images,); None without noise."""


def kinds(collection: Collection, names: Names) -> list[Kind]:
    """Deterministic, statistical and conformal radii of labelled images; none if there are no deterministic ones."""
    proven = [_deterministic(item, collection, names) for item in collection.proven if item.labelled]
    calibrated = [_conformal(item, collection, names) for item in collection.calibrated if item.labelled]
    return [*proven, *_averages(collection, names), *calibrated] if proven else []


def _averages(collection: Collection, names: Names) -> list[Kind]:
    """The averages with the largest ACR, in the order of the collection."""
    usual = [item for item in collection.certifications if item.claims.basis.usual]
    items = [item for item in usual if item.labelled and item.top_k == 1]
    best = sorted(items, key=lambda item: item.claims.average_certified_radius, reverse=True)[:AVERAGES]
    lines = names.lines(best)
    return [_statistical(item, collection, lines[item.name][0]) for item in items if item in best]


def _deterministic(item: Proven, collection: Collection, names: Names) -> Kind:
    return Kind(
        names.model_of(item),
        collection.maker(item.model),
        DETERMINISTIC,
        "never",
        item.claims,
        seconds=float(item.claims.seconds.mean()),
        clean=float(item.claims.one_pass_correct.mean()),
    )


def _statistical(item: Certification, collection: Collection, name: str) -> Kind:
    certificates = item.certificates
    return Kind(
        name,
        collection.maker(item.model),
        STATISTICAL,
        f"probability {plain(item.claims.basis.alpha)}",
        item.claims,
        passes=None if certificates is None else float(certificates.samples.mean()),
        seconds=None if item.seconds is None else float(item.seconds.mean()),
        clean=None if certificates is None else float(certificates.one_pass_correct.mean()),
        p_a=of_certification(item),
    )


def _conformal(item: Calibrated, collection: Collection, names: Names) -> Kind:
    confidence = item.claims.basis.confidence
    risk, basis = NONE if confidence is None else plain(round(1 - confidence, 10)), item.claims.basis
    attacked = basis.kind is BasisKind.UNDER_ATTACK
    return Kind(
        names.model_of(item),
        collection.maker(item.model),
        UNDER_ATTACK if attacked else CONFORMAL,
        f"probability {risk}, " + (f"also if attacked within {plain(basis.rho)}" if attacked else "unless attacked"),
        item.claims,
        passes=float(basis.passes),
        clean=item.clean,
    )


def _certified_at(radius: float) -> Shown:
    return lambda kind: percent(float(kind.claims.certified_accuracy(radius)))


def _labels(kind: Kind) -> str:
    return NONE if kind.maker is None else "no" if kind.maker.unlabelled else "yes"


FACTS: dict[str, Shown] = {
    "Made by": lambda kind: (kind.maker and kind.maker.method) or NONE,
    "Labels": _labels,
    "Training": lambda kind: duration(kind.maker.run.info.seconds if kind.maker else None),
    "May be false": lambda kind: kind.false,
    "Passes per image": lambda kind: count_text(kind.passes),
    "Time per image": lambda kind: duration(kind.seconds),
    "Images": lambda kind: count_text(len(kind.claims)),
    "Clean accuracy": lambda kind: percent(kind.clean),
    **{f"Certified at {text}": _certified_at(radius) for text, radius in RADII.items()},
    "ACR": lambda kind: radius_text(kind.claims.average_certified_radius),
    "p_A, quartiles": lambda kind: NONE if kind.p_a is None else quartiles_text(quartiles(kind.p_a)),
}
"""The rows of the table."""


def guarantees_table(collection: Collection, names: Names) -> Table | None:
    """One column per model and basis, one row per fact."""
    shown = kinds(collection, names)
    if not shown:
        return None

    columns = (Column("", words=True), *(Column(kind.model, about=kind.about, words=True) for kind in shown))
    rows = tuple((name, *(fact(kind) for kind in shown)) for name, fact in FACTS.items())
    note = (
        "Each column is about one model on one basis. Clean accuracy: of one pass. Certified: the share of all images "
        "that are correct with a radius of at least this. Training: without that of the network it started from. "
        "May be false: with at most this probability per image, for calibrated radii over images like the calibration "
        "images. A radius of the average says nothing about one pass of the "
        "network, and the other way round. Wrong classes and abstentions count as 0. "
        f"{QUARTERS_NOTE} At most {AVERAGES} averages are shown, those with the largest ACR; the tables above have all "
        "of them."
    )
    return Table("What each kind of guarantee costs and gives", columns, rows, note, "guarantees")


def guarantees_charts(collection: Collection, names: Names) -> list[Chart]:
    """Certified accuracy against radius, one line per model and basis."""
    shown = kinds(collection, names)
    if not shown:
        return []
    at = grid(max(0.05, *(float(kind.claims.radii.max()) for kind in shown)))
    series, alike = [], Counter((kind.model, kind.about) for kind in shown)
    for kind in shown:
        covers = kind.about.replace(", in one pass", "").split(",")[0]
        level = f", {kind.false}" if alike[kind.model, kind.about] > 1 else ""
        name = f"{kind.model}: {covers}{level}"
        series.append(certified_series(kind.claims, at, name, names.style(name)))
    return [
        Chart(
            key="guarantees",
            title="Certified accuracy by kind of guarantee",
            caption=(
                "Share of all images that are correct and have a radius of at least r. The name of a line says which "
                "model it covers and what the radii rest on. Lines of a network and of an average are about different "
                "models: compare what they cover and cost before how high they are. "
                "Bands: Clopper–Pearson, 95\u00a0% at each radius."
            ),
            x_title="L2 radius r, images in [0, 1]",
            y_title="certified accuracy",
            series=tuple(series),
            x_max=float(at[-1]) * 1.02,
            y_max=1.0,
            shape="step",
            percent=True,
            band="95 %",
        )
    ]
