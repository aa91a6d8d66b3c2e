"""Confidence bounds on class probabilities, from counts or sums of a fixed number of noisy draws.

Arrays in, arrays out, one entry an image; no model and no torch. ``alpha`` is the probability with which a result may
be wrong; a function that needs several bounds at once divides its ``alpha`` among them. Bounds for a number of draws
that depends on the draws themselves are in ``sequences``, radii in ``radii``.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from heatsmooth.errors import require

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

ROUNDING = 1e-6
"""Relative error allowed to sums of probabilities: what float32 probabilities bring with them."""
SUMMED = "sum probabilities, not logits, over the n draws, in float64"


def clopper_pearson_lower(count: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p with P(success) ≥ p except with probability ``alpha``, from ``count`` successes in ``n`` draws.

    Beta⁻¹(α; k, n−k+1), and 0 for k = 0: exact (Clopper and Pearson 1934), one-sided; broadcasts.

    >>> float(clopper_pearson_lower(1000, 1000, 0.001).round(6))
    0.993116
    """
    successes, draws = _counted(count, n)
    found = special.betaincinv(np.maximum(successes, 1), draws - successes + 1, error_probability(alpha))
    return np.where(successes > 0, found, 0.0)


def clopper_pearson_upper(count: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p with P(success) ≤ p except with probability ``alpha``: the lower bound of the failures, turned round."""
    successes, draws = _counted(count, n)
    return 1 - clopper_pearson_lower(draws - successes, draws, alpha)


def clopper_pearson(count: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> tuple[Floats, Floats]:
    """Lower and upper bound that hold together except with probability ``alpha``, half of it for each."""
    half = error_probability(alpha) / 2
    return clopper_pearson_lower(count, n, half), clopper_pearson_upper(count, n, half)


def bernstein_lower(total: ArrayLike, squares: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The m with E[X] ≥ m except with probability ``alpha``, from ΣX and ΣX² of ``n`` ≥ 2 independent X in [0, 1].

    Empirical Bernstein (Maurer and Pontil 2009, theorem 4): mean − √(2V ln(2/α)/n) − 7 ln(2/α)/(3(n−1)), V the sample
    variance. Sum in float64.
    """
    sums, squared, draws = sums_of_probabilities(total, squares, n)
    require(bool((draws >= 2).all()), "n: expected at least 2 draws for a variance, got fewer; draw more")
    variance = np.maximum(squared - sums**2 / draws, 0) / (draws - 1)
    information = np.log(2 / error_probability(alpha))
    slack = np.sqrt(2 * variance * information / draws) + 7 * information / (3 * (draws - 1))
    return np.maximum(sums / draws - slack, 0.0)


def bernstein_upper(total: ArrayLike, squares: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The m with E[X] ≤ m except with probability ``alpha``: ``bernstein_lower`` of 1 − X, turned round."""
    return 1 - bernstein_lower(*complement(total, squares, n), alpha)


def label_bounds(
    counts: ArrayLike,
    labels: ArrayLike,
    *,
    alpha: float,
    rivals: int = 1,
    lower: Callable[..., Floats] = clopper_pearson_lower,
    upper: Callable[..., Floats] = clopper_pearson_upper,
) -> tuple[Floats, Floats]:
    """Lower bound of each label's probability and upper bounds of its strongest rivals, from class counts.

    ``counts`` (images, classes), ``labels`` (images,) chosen without looking at these counts → (images,) and
    (images, rivals), the largest rival first. All of them, and those of every weaker class, hold together except with
    probability ``alpha``: each class has alpha/classes (Jia 2020). A rival never gets more than the label
    leaves over. ``lower`` and ``upper`` take (count, n, alpha) and grow with count: those of ``sequences`` fit too.

    >>> lower, upper = label_bounds([[980, 15, 5]], [0], alpha=0.001, rivals=2)
    >>> lower.round(4).tolist(), upper.round(4).tolist()
    ([0.9602], [[0.0329, 0.0178]])
    """
    counted, classes, label = _by_class(counts, labels, rivals)
    n = counted.sum(-1)
    share = float(error_probability(alpha)) / classes
    least = lower(np.take_along_axis(counted, label, -1)[:, 0], n, share)
    most = upper(_strongest(counted, label, rivals), n[:, None], share)
    return least, np.minimum(most, 1 - least[:, None])


def label_mean_bounds(
    totals: ArrayLike,
    squares: ArrayLike,
    n: ArrayLike,
    labels: ArrayLike,
    *,
    alpha: float,
    rivals: int = 1,
    lower: Callable[..., Floats] = bernstein_lower,
    upper: Callable[..., Floats] = bernstein_upper,
) -> tuple[Floats, Floats]:
    """As ``label_bounds``, of the mean probabilities of the averaged network, from their sums and sums of squares.

    ``totals`` and ``squares`` (images, classes), ``n`` draws an image, one number or (images,). ``lower`` and ``upper``
    take (total, squares, n, alpha); ``sequences.betting_lower`` and its pair are mostly tighter than the default.
    """
    sums, classes, label = _by_class(totals, labels, rivals)
    squared = np.asarray(squares, dtype=np.float64)
    draws = np.broadcast_to(np.asarray(n, dtype=np.float64), sums.shape[:1])[:, None]
    share = float(error_probability(alpha)) / classes
    least = lower(np.take_along_axis(sums, label, -1), np.take_along_axis(squared, label, -1), draws, share)
    most = _strongest(upper(sums, squared, draws, share), label, rivals)
    return least[:, 0], np.minimum(most, 1 - least)


def fair_coin_p_value(heads: ArrayLike, tails: ArrayLike) -> Floats:
    """Two-sided p-value of a fair coin, as ``scipy.stats.binomtest(heads, heads + tails).pvalue``, for whole arrays.

    >>> fair_coin_p_value([5, 9, 10], [5, 1, 0]).round(6).tolist()
    [1.0, 0.021484, 0.001953]
    """
    first, _ = _counted(heads, np.inf)
    second, _ = _counted(tails, np.inf)
    more, less = np.maximum(first, second), np.minimum(first, second)
    tail = np.where(more > 0, special.betainc(np.maximum(more, 1), less + 1, 0.5), 1.0)
    return np.asarray(np.minimum(2 * tail, 1.0))


def predict(counts: ArrayLike, *, alpha: float) -> tuple[Integers, Flags]:
    """Cohen's PREDICT: the most frequent class of ``counts`` (images, classes), and where to abstain from it.

    Except with probability ``alpha``, an image has the class of the averaged classifier or abstains (Cohen 2019,
    proposition 1): abstain where the two top counts could come from a fair coin, p-value > ``alpha``.
    """
    counted, _ = _counted(counts, np.inf)
    require(
        counted.ndim == 2 and counted.shape[1] >= 2,
        f"counts: expected (images, classes ≥ 2), got {counted.shape}; one row an image",
    )
    second, first = np.sort(counted)[:, -2:].T
    return counted.argmax(1), fair_coin_p_value(first, second) > error_probability(alpha)


def least_certifying_count(n: int, alpha: float) -> int:
    """The fewest of ``n`` draws that must agree for a lower bound of at least ½; n + 1 if not even all of them suffice.

    >>> [least_certifying_count(n, 0.001) for n in (9, 10, 100, 1000)]
    [10, 10, 66, 550]
    """
    return bisect_left(range(n + 1), True, key=lambda count: bool(clopper_pearson_lower(count, n, alpha) >= 0.5))


def largest_true(holds: Callable[[Floats], Flags], most: Floats) -> Floats:
    """The point in [0, ``most``] up to which ``holds`` is true, and beyond which it is false; 0 if it is so nowhere.

    By bisection, and the lower end of the last interval: never beyond the point sought.
    """
    low, high = np.zeros_like(most), most
    for _ in range(60):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = np.where(true, middle, low), np.where(true, high, middle)
    return low


def checked(name: str, values: ArrayLike, fits: Callable[[Floats], Flags], expected: str) -> Floats:
    """``values`` as floats, all of which must fit; ``expected`` says how and names the remedy, after a semicolon."""
    array = np.asarray(values, dtype=np.float64)
    wrong = ~np.asarray(fits(array))
    if wrong.any():
        what, _, remedy = expected.partition("; ")
        require(False, f"{name}: expected {what}, got {array[wrong][0]:g}; {remedy}")
    return array


def error_probability(alpha: ArrayLike, most: float = 1.0) -> Floats:
    """``alpha``, above 0 and below ``most``."""
    return checked(
        "alpha", alpha, lambda a: (a > 0) & (a < most), f"a number above 0 and below {most:g}; 0.001 is usual"
    )


def sum_of_probabilities(total: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats]:
    """ΣX and n of X in [0, 1], 0 ≤ ΣX ≤ n; an excess of rounding is cut off."""
    draws = checked("n", n, lambda x: (x >= 1) & (x < np.inf), "at least one draw; draw some first")
    sums, draws = np.broadcast_arrays(np.asarray(total, dtype=np.float64), draws)
    slack = ROUNDING * draws
    checked("total", sums, lambda x: (x >= -slack) & (x <= draws + slack), f"a sum of n numbers in [0, 1]; {SUMMED}")
    return np.clip(sums, 0, draws), draws


def sums_of_probabilities(total: ArrayLike, squares: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """ΣX, ΣX² and n of X in [0, 1], 0 ≤ ΣX² ≤ ΣX ≤ n; an excess of rounding is cut off."""
    squared, sums, draws = np.broadcast_arrays(np.asarray(squares, dtype=np.float64), *sum_of_probabilities(total, n))
    slack = ROUNDING * draws
    checked(
        "squares", squared, lambda x: (x >= -slack) & (x <= sums + slack), f"squares of numbers in [0, 1]; {SUMMED}"
    )
    return sums, np.clip(squared, 0, sums), draws


def complement(total: ArrayLike, squares: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Σ(1−X), Σ(1−X)² and n from ΣX, ΣX² and n."""
    sums, squared, draws = sums_of_probabilities(total, squares, n)
    return draws - sums, draws - 2 * sums + squared, draws


def _counted(count: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats]:
    """Counts and numbers of draws, of one shape: whole numbers, 0 ≤ count ≤ n."""
    successes, draws = np.broadcast_arrays(np.asarray(count, dtype=np.float64), np.asarray(n, dtype=np.float64))
    checked("n", draws, lambda k: (k >= 0) & (k == np.floor(k)), "a whole number of draws; count each draw once")
    fits = (successes >= 0) & (successes <= draws) & (successes == np.floor(successes))
    return checked("count", successes, lambda _: fits, "whole numbers from 0 to n; bernstein_lower is for sums"), draws


def _by_class(values: ArrayLike, labels: ArrayLike, rivals: int) -> tuple[Floats, int, Integers]:
    """Values (images, classes), the number of classes, and labels (images, 1)."""
    array, label = np.asarray(values, dtype=np.float64), np.asarray(labels)
    require(
        array.ndim == 2 and label.shape == array.shape[:1],
        f"labels: expected one a row of {array.shape}, got {label.shape}; one row an image",
    )
    images, classes = array.shape
    require(1 <= rivals < classes, f"k: expected 1 to {classes - 1} for {classes} classes, got {rivals}; lower k")
    known = label.dtype.kind in "iu" and bool(((label >= 0) & (label < classes)).all())
    require(
        known, f"labels: expected whole numbers from 0 to {classes - 1}, got others; use the classes of the network"
    )
    return array, classes, label.astype(np.int64).reshape(images, 1)


def _strongest(values: Floats, label: Integers, rivals: int) -> Floats:
    """The largest values of each row but the label's, largest first, (images, rivals)."""
    others = values.copy()
    np.put_along_axis(others, label, -1, -1)
    return -np.sort(-others)[:, :rivals]
