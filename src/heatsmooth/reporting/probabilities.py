"""The distribution of p_A over images: how probable the label is under noise. ACR alone hides it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from heatsmooth.reporting.chart import Chart, Mark, Series
from heatsmooth.reporting.collection import Certification
from heatsmooth.reporting.formats import radius_text
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.results.radii import Radii
from heatsmooth.statistics.accuracy import distribution_band, empirical_distribution
from heatsmooth.statistics.bounds import Floats, clopper_pearson_lower
from heatsmooth.table import Column

BAND = 0.05
"""The band of a distribution is wrong with at most this probability, over all p together."""
QUARTERS = (0.25, 0.5, 0.75)
AT: Floats = np.linspace(0, 1, 201).round(3)
COARSE: Floats = AT[::4]
"""For small drawings."""
WHY = (
    "ACR can be large because of easy images alone, since a radius grows without bound as p_A approaches 1 "
    "(arXiv 2410.06895). So certified accuracy at fixed radii comes first, and the distribution of p_A stands beside "
    "ACR."
)


QUARTERS_NOTE = (
    "p_A: the probability that the network gives the label under noise; a quarter, half and three quarters of the "
    "images have a lower bound of at most these values."
)


def lower_probabilities(claims: Radii, sigma: float | None) -> Floats | None:
    """The lower bound of p_A per image, (images,): of the probability that the network gives the label under noise.

    Without labels it is that of the certified class. From counts, it is the one-sided Clopper–Pearson bound at the α
    of the certificates. From radii alone, as in a log, it is Φ(r/σ), the bound that the radius was computed from, and 0
    where the class is wrong or the model abstains: nothing is known there. None where no bound follows: without σ, for
    top-k radii of adaptive sampling, and for other kinds of radii, noise and norms.
    """
    basis = claims.basis
    if isinstance(claims, Certificates) and basis.alpha is not None and not basis.anytime:
        return _from_counts(claims, basis.alpha)
    from_radius = basis.kind in (BasisKind.STATISTICAL, BasisKind.UNSTATED) and basis.bound == "one-sided"
    if sigma is None or basis.k != 1 or not from_radius or not basis.usual:
        return None
    counted = ~claims.abstained if claims.correct is None else claims.correct
    return np.where(counted, special.ndtr(claims.radii / sigma), 0.0)


def _from_counts(claims: Certificates, alpha: float) -> Floats:
    """Clopper and Pearson's bound per image; 0 for a label that the network does not know."""
    classes = claims.targets if claims.labels is None else claims.labels
    known = classes < claims.counts.shape[1]
    count = np.take_along_axis(claims.counts, np.where(known, classes, 0)[:, None], 1)[:, 0]
    return np.where(known, clopper_pearson_lower(count, claims.n, alpha), 0.0)


def quartiles(values: Floats) -> tuple[float, float, float]:
    """The p_A that a quarter, half and three quarters of the images do not exceed.

    >>> quartiles(np.array([0.1, 0.2, 0.3, 0.4]))
    (0.1, 0.2, 0.3)
    """
    low, middle, high = np.quantile(values, QUARTERS, method="inverted_cdf").tolist()
    return low, middle, high


def quartiles_text(values: tuple[float, float, float]) -> str:
    """Three probabilities, rounded down.

    >>> quartiles_text((0.5, 0.93, 0.9996))
    '0.500 · 0.930 · 0.999'
    """
    return " · ".join(radius_text(value, 3) for value in values)


def of_certification(item: Certification) -> Floats | None:
    """The lower bounds of p_A of a certification, (images,); of a log by the σ of its name."""
    return lower_probabilities(item.claims, item.named_sigma if item.sigma is None else item.sigma)


def median_p_a(item: Certification) -> float | None:
    """The median of those lower bounds."""
    values = of_certification(item)
    return None if values is None else quartiles(values)[1]


def quartiles_column(certified: Callable[[Any], Certification | None]) -> Column:
    """The column beside ACR; ``certified`` gives the certification that a row is about."""

    def value(row: Any) -> tuple[float, float, float] | None:
        item = certified(row)
        values = None if item is None or not item.labelled else of_certification(item)
        return None if values is None else quartiles(values)

    return Column("p_A, quartiles", value, quartiles_text, "label under noise · lower bound")


def probability_series(values: Floats, name: str, style: int, at: Floats = AT) -> Series:
    """The empirical distribution of p_A, at each p of ``at``, with its simultaneous band."""
    low, high = distribution_band(values, at, alpha=BAND)
    return Series(name, style, at, empirical_distribution(values, at), low, high)


def probability_chart(series: Sequence[Series], *, small: bool = False, missing: int = 0) -> Chart:
    """The share of images whose p_A is at most p; ``missing``: sets of radii that it is not known for."""
    logs = "" if small else " Where a log has a wrong class or an abstention, it counts as 0."
    caption = (
        "Share of all images whose p_A is at most p; lower is better. p_A: the probability that the network gives the "
        f"label (without labels: the certified class) under noise, here its lower bound for each image.{logs} Band: "
        "Dvoretzky–Kiefer–Wolfowitz, 95\u00a0% for all p together, over images of the same kind. "
        f"{WHY}"
    )
    if missing:
        caption += f" Not drawn: {missing} of the sets of radii, whose σ is not known or which are not one-sided."
    return Chart(
        key="p-a",
        title="Distribution of p_A",
        caption=caption,
        x_title="p, lower bound of p_A",
        y_title="images with p_A at most p",
        series=tuple(series),
        x_max=1.0,
        y_max=1.0,
        shape="step",
        marks=(Mark(0.5, "½: no radius below", "½"),),
        percent=True,
        small=small,
        band="95 %",
    )
