"""A result as a notebook shows it: a figure and a table, as HTML that brings its colours and fetches nothing."""

from functools import singledispatch

import numpy as np

from heatsmooth.reporting.certificate_tables import RADII, with_band
from heatsmooth.reporting.chart import Chart, grid
from heatsmooth.reporting.figures import BAND, certified_series
from heatsmooth.reporting.formats import count_text, duration, percent, plain, radius_text
from heatsmooth.reporting.probabilities import (
    COARSE,
    lower_probabilities,
    probability_chart,
    probability_series,
    quartiles,
    quartiles_text,
)
from heatsmooth.reporting.templates import style, templates
from heatsmooth.results.audit import AuditResult
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.results.guarantees import BasisKind, Subject
from heatsmooth.results.radii import Radii
from heatsmooth.settings import NORM_NAMES
from heatsmooth.statistics.accuracy import certified_accuracy, certified_accuracy_band
from heatsmooth.statistics.bounds import Floats
from heatsmooth.table import NBSP, Column, Table

SUBJECTS = {
    Subject.AVERAGE: "the Gaussian average of the network, not the network in one pass",
    Subject.NETWORK: "the network itself, in one pass",
}
BASES = {
    BasisKind.DETERMINISTIC: "It is a proof from the weights: never false.",
    BasisKind.STATISTICAL: "Each certificate is false with probability at most α = {alpha}.",
    BasisKind.CONFORMAL: "For an image like the calibration images, it holds with probability at least {confidence}.",
    BasisKind.UNDER_ATTACK: (
        "For an image like the calibration images, also if it was changed within {rho} before its secret noise was "
        "drawn, it holds with probability at least {confidence}. It is about the image before the change."
    ),
    BasisKind.EXACT_AVERAGE: "It assumes that the network is an exact Gaussian average, which nothing checks.",
    BasisKind.ESTIMATE: "It is an estimate from sampled gradients, without a guarantee.",
    BasisKind.ATTACK: "It is empirical: attacks on these images found nothing smaller.",
    BasisKind.UNSTATED: "It is statistical. The log does not state its α and n.",
}


@singledispatch
def html(result: object) -> str:
    """The HTML of a result: its own style, a figure and a table. All text is escaped."""
    raise TypeError(f"no HTML for {type(result).__name__}")


@html.register
def _(claims: Radii) -> str:
    charts = [radii_chart(claims)]
    p_a = lower_probabilities(claims, claims.sigma) if isinstance(claims, Certificates) else None
    if p_a is not None:
        charts.append(probability_chart([probability_series(p_a, "p_A, lower bound", 0, COARSE)], small=True))
    return _rendered(charts=charts, tables=[radii_summary(claims, p_a)], audit=None)


@html.register
def _(audit: AuditResult) -> str:
    return _rendered(charts=[], tables=[], audit=audit)


def _rendered(**shown: object) -> str:
    template = templates().get_template("notebook.html")
    return template.render(style=style("parts.css", "notebook.css"), **shown)


def radii_chart(claims: Radii) -> Chart:
    """Certified accuracy against radius; without labels, the share of images with such a radius."""
    at = grid(max(float(claims.radii.max()), 0.001 if claims.basis.norm == "linf" else 0.05), 100)
    labelled = claims.correct is not None
    return Chart(
        key="",
        title="Certified accuracy against radius" if labelled else "Images with a radius of at least r",
        caption="Band: 95\u00a0% interval over images of the same kind (Clopper–Pearson, at each radius).",
        x_title=f"{NORM_NAMES[claims.basis.norm]} radius r, images in [0, 1]",
        y_title="certified accuracy" if labelled else "images with a radius of at least r",
        series=(certified_series(claims, at, f"{claims.subject} · {claims.basis.kind}", 0),),
        x_max=float(at[-1]) * 1.02,
        y_max=1.0,
        shape="step",
        percent=True,
        small=True,
    )


def radii_summary(claims: Radii, p_a: Floats | None = None) -> Table:
    """The figures of many radii, one per row, and what the radii promise; ``p_a``: lower bounds of p_A, (images,)."""
    rows = [
        ("Images", count_text(len(claims))),
        ("Abstained", f"{int(claims.abstained.sum()):,} ({percent(float(claims.abstained.mean()))})"),
        *_shares(claims),
        ("Median radius", radius_text(float(np.median(claims.radii)))),
        ("Mean radius", radius_text(float(claims.radii.mean()))),
        ("Largest radius", radius_text(float(claims.radii.max()))),
    ]
    if claims.correct is not None:
        rows.append(("ACR: mean radius, 0 where wrong", radius_text(claims.average_certified_radius)))
    if p_a is not None:
        rows.append(("p_A, quartiles of its lower bound", quartiles_text(quartiles(p_a))))
    if isinstance(claims, Certificates):
        rows.append(("Noise level σ", plain(claims.sigma)))
        rows.append(("Samples per image", count_text(float(claims.samples.mean()))))
    if isinstance(claims, Certificates | NetworkCertificates):
        rows.append(("Time per image", duration(float(claims.seconds.mean()))))
    columns = (Column("", words=True), Column("Value"))
    return Table("Certified radii", columns, tuple(rows), note=promise(claims))


def _shares(claims: Radii) -> list[tuple[str, str]]:
    at = [radius for radius in RADII[:5] if radius <= claims.radii.max()]
    counted = ~claims.abstained if claims.correct is None else claims.correct
    shares = certified_accuracy(claims.radii, counted, at).tolist()
    low, high = certified_accuracy_band(claims.radii, counted, at, alpha=BAND)
    name = "Share with a radius of at least" if claims.correct is None else "Certified accuracy at"
    values = zip(at, zip(shares, low.tolist(), high.tolist(), strict=True), strict=True)
    return [(f"{name}{NBSP}{plain(radius)}", with_band(three)) for radius, three in values]


def promise(claims: Radii) -> str:
    """What these radii promise, in sentences."""
    basis = claims.basis
    kept = "its class" if basis.k == 1 else f"the class among its {basis.k} most probable"
    rests = BASES[basis.kind].format(alpha=plain(basis.alpha), confidence=plain(basis.confidence), rho=plain(basis.rho))
    measured, subject = NORM_NAMES[basis.norm], SUBJECTS[claims.subject]
    if basis.noise != "gaussian":
        subject = subject.replace("Gaussian average of the network", f"average of the network over {basis.noise} noise")
    return f"Within the radius of an image ({measured}, pixels in [0, 1]), {subject}, keeps {kept}. {rests}"
