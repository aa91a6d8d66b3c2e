"""L2 radii within which the average keeps its class, from bounds on its class probabilities.

Each certificate takes the same arguments:

``lower``: (images,), a lower bound of the label's probability, from ``bounds.label_bounds``.
``rival``: (images,), an upper bound of its rival's probability, where the certificate needs one.
``sigma``: the noise level, in [0, 1] pixels.

It returns the radius, in the units of ``sigma``, and where to abstain. It holds whenever the bounds hold. Where it
abstains, the radius is 0 and the bounds do not show that the label wins at the image itself. Where the bounds are equal
(for one bound: at ½), the radius is 0 without abstaining.

Bounds on how often a class occurs give a radius of the most frequent class. Bounds on mean probabilities give a radius
of the class with the largest mean.
"""

from decimal import ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.errors import require
from heatsmooth.statistics.bounds import Flags, Floats, check_rank, checked, largest_true

FURTHEST = 100.0
"""No radius of ``top_k_radius`` exceeds this times sigma."""
CANCELLATION = 1e-13
"""Subtracted from a small difference before its square root, so that rounding never enlarges a radius."""


def one_sided_radius(lower: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """σ·Φ⁻¹(p̲), abstaining where p̲ < ½ (Cohen 2019, CERTIFY): all rivals together have at most 1 − p̲.

    >>> radius, abstain = one_sided_radius([0.3, 0.5, 0.9], sigma=0.25)
    >>> radius.round(4).tolist(), abstain.tolist()
    ([0.0, 0.0, 0.3204], [True, False, False])
    """
    p = _probabilities("lower", lower)
    return positive(sigma) * special.ndtri(np.maximum(p, 0.5)), p < 0.5


def two_sided_radius(lower: ArrayLike, rival: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """σ/2·(Φ⁻¹(p̲) − Φ⁻¹(p̄)), abstaining where p̲ < p̄ (Cohen 2019, theorem 1; Salman 2019 for mean probabilities)."""
    p, q, ahead = contest(lower, rival)
    return positive(sigma) / 2 * (special.ndtri(p) - special.ndtri(q)), ~ahead


def l_bound_between(lower: ArrayLike, rival: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """The L-bound σ√(π/2)·(p̲ − p̄) of the average, abstaining where p̲ < p̄ (paper, theorem 3).

    It holds because the slope of an average of values in [0, 1] is at most 1/(σ√(2π)). For the label to stay among the
    k largest, ``rival`` is the k-th of ``label_bounds(..., rivals=k)``. Never more than ``two_sided_radius``.
    """
    p, q, ahead = contest(lower, rival)
    return positive(sigma) * np.sqrt(np.pi / 2) * (p - q), ~ahead


def l_bound(probabilities: Any, *, sigma: float, k: int = 1) -> Floats:
    """The L-bound σ√(π/2)·(v₍ₖ₎ − v₍ₖ₊₁₎) of the network's own probabilities (paper, theorem 3).

    A smaller perturbation leaves the same k classes on top *if* the network is exactly a Gaussian average. Nothing
    checks this assumption. A row with NaN, the softmax of logits that are not finite, has radius 0.

    ``probabilities``: (…, classes), an array or a tensor on any device; the result has shape (…).
    ``sigma``: the noise level, in [0, 1] pixels.
    ``k``: how many classes stay on top.

    >>> l_bound([[0.7, 0.2, 0.1]], sigma=0.25).round(4).tolist()
    [0.1567]
    """
    values, unknown = without_nan(probabilities)
    v = np.sort(_probabilities("probabilities", values))
    check_rank(k, v.shape[-1])
    return np.where(unknown, 0.0, l_bound_between(v[..., -k], v[..., -k - 1], sigma=sigma)[0])


def without_nan(probabilities: Any) -> tuple[Floats, Flags]:
    """``probabilities`` (…, classes), an array or a tensor on any device, and which rows (…) contain NaN.

    Rows with NaN are replaced by equal probabilities, from which no radius follows.
    """
    array = probabilities.detach().cpu().double().numpy() if hasattr(probabilities, "detach") else probabilities
    values = np.atleast_1d(np.asarray(array, dtype=np.float64))
    unknown = np.asarray(np.isnan(values).any(-1))
    return np.where(unknown[..., None], 1 / max(1, values.shape[-1]), values), unknown


def top_k_radius(lower: ArrayLike, rivals: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """The radius within which the label stays among the k most probable classes (Jia 2020, theorem 1).

    ``lower``: (images,), and ``rivals``: (images, k), from ``label_bounds(..., rivals=k)``.

    To leave the top k, the label must fall behind k rivals. So for every t it must fall behind the mean of the t least
    of them. It does not as long as, for some t, Φ(Φ⁻¹(p̲) − r/σ) > Φ(Φ⁻¹(p̄_t) + r/σ)/t. Here p̄_t is the sum of the t
    smallest of the k rivals, at most 1 − p̲.
    """
    p = _probabilities("lower", lower)[..., None]
    smallest = np.sort(_probabilities("rivals", rivals))
    size = np.arange(1, smallest.shape[-1] + 1)
    together = np.minimum(np.cumsum(smallest, -1), 1 - p)
    label, rival = special.ndtri(p), special.ndtri(together)

    def stays(distance: Floats) -> Flags:
        return np.asarray(special.log_ndtr(label - distance) > special.log_ndtr(rival + distance) - np.log(size))

    furthest = largest_true(stays, np.full_like(together, FURTHEST)).max(-1)
    return positive(sigma) * furthest, np.asarray((p * size < together).all(-1))


def pixeldp_radius(lower: ArrayLike, rival: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """PixelDP's radius (Lecuyer 2019, proposition 1 and Gaussian mechanism), for comparison: smaller than Cohen's.

    The largest, over ε ≤ 1, of σε/√(2 ln(1.25/δ)) with the largest δ allowed, p̲ = e^(2ε) p̄ + (1 + e^ε) δ. Every ε
    gives a valid radius, so a grid suffices.
    """
    p, q, ahead = contest(lower, rival)
    with np.errstate(divide="ignore"):
        most = np.minimum((np.log(p) - np.log(q)) / 2, 1.0)
    best = np.zeros_like(p)
    for fraction in np.linspace(0, 1, 201)[1:]:
        epsilon = fraction * most
        delta = (p - np.exp(2 * epsilon) * q) / (1 + np.exp(epsilon))
        radius = epsilon / np.sqrt(2 * np.log(1.25 / np.where(delta > 0, delta, 1.0)))
        best = np.where(delta > 0, np.maximum(best, radius), best)
    return positive(sigma) * best, ~ahead


def renyi_radius(lower: ArrayLike, rival: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """The radius by Rényi divergence ("second-order", Li 2019), for comparison: smaller than Cohen's.

    The largest, over a > 1, of σ√(−2/a · ln(1 − p̲ − p̄ + 2m)), where m is the power mean of p̲ and p̄ with exponent
    1 − a. Every a gives a valid radius, so a grid suffices.
    """
    p, q, ahead = contest(lower, rival)
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    best = np.zeros_like(p)
    for exponent in np.geomspace(0.01, 30, 200):
        mean = np.exp((np.logaddexp(-exponent * log_p, -exponent * log_q) - np.log(2)) / -exponent)
        apart = np.clip(p + q - 2 * mean - CANCELLATION, 0, 1 - CANCELLATION)
        best = np.maximum(best, np.sqrt(-2 / (1 + exponent) * np.log1p(-apart)))
    return positive(sigma) * best, ~ahead


def round_down(radius: ArrayLike, digits: int) -> Any:
    """The radius rounded down to ``digits`` decimals; a float, or an array of the same shape.

    >>> round_down(0.29999, 3), round_down([1.25, 0.07], 1).tolist()
    (0.299, [1.2, 0.0])

    Rounding is exact for the stored number: the float 0.3 is slightly less than 3/10. So round once, at the end.

    >>> round_down(0.3, 1)
    0.2
    """
    values = checked("radius", radius, lambda r: r >= 0, "radii of 0 or more; certify the image first")
    most = 10.0 ** (15 - digits)
    finite = values[values < np.inf]
    require(
        bool((finite < most).all()),
        f"`digits`: expected radii below {most:g} for {digits}, got more; use fewer digits",
    )
    unit = Decimal(1).scaleb(-digits)
    rounded = [value if value == np.inf else float(Decimal(value).quantize(unit, ROUND_FLOOR)) for value in values.flat]
    return np.array(rounded).reshape(values.shape) if values.ndim else rounded[0]


def positive(sigma: float) -> float:
    """``sigma``, checked to be positive and finite."""
    return float(
        checked("sigma", sigma, lambda s: (s > 0) & (s < np.inf), "a positive number; `sigma` is in [0, 1] pixels")
    )


def _probabilities(name: str, values: ArrayLike) -> Floats:
    within = checked(
        name, values, lambda p: (p >= 0) & (p <= 1 + 1e-6), "numbers from 0 to 1; take the softmax of logits first"
    )
    return np.minimum(within, 1.0)


def contest(lower: ArrayLike, rival: ArrayLike) -> tuple[Floats, Floats, Flags]:
    """p̲, p̄, and where p̲ ≥ p̄; where p̲ ≤ p̄, both probabilities are replaced by ½."""
    p, q = np.broadcast_arrays(_probabilities("lower", lower), _probabilities("rival", rival))
    return np.where(p > q, p, 0.5), np.where(p > q, q, 0.5), p >= q
