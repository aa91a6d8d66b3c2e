"""Confidence bounds on class probabilities, from counts or sums of a fixed number of noise samples.

Arrays in, arrays out, one entry per image; no model and no torch. ``alpha`` is the probability with which a result may
be wrong. A function that needs several bounds at once divides its ``alpha`` among them. ``sequences`` has bounds for a
number of samples that depends on the samples themselves, ``radii`` has radii.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from heatsmooth.errors import require

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

ROUNDING = 1e-6
"""Relative error allowed in sums of probabilities, because those may be float32."""
SUMMED = "sum probabilities, not logits, over the n samples, in float64"


def clopper_pearson_lower(count: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p with P(success) ≥ p, except with probability ``alpha``: exact and one-sided (Clopper and Pearson 1934).

    Beta⁻¹(α; k, n−k+1), and 0 for k = 0. The arguments broadcast.

    ``count``: successes k.
    ``n``: samples.
    ``alpha``: the probability that the bound is wrong, above 0 and below 1.

    >>> float(clopper_pearson_lower(1000, 1000, 0.001).round(6))
    0.993116
    """
    successes, samples = _counted(count, n)
    bound = special.betaincinv(np.maximum(successes, 1), samples - successes + 1, error_probability(alpha))
    return np.where(successes > 0, bound, 0.0)


def randomised_lower(count: ArrayLike, n: ArrayLike, alpha: float, uniform: ArrayLike) -> Floats:
    """The randomised Clopper–Pearson bound: P(success) ≥ p, except with probability exactly ``alpha`` (Voráček 2024).

    The largest p with P[Bin(n, p) > k] + u·P[Bin(n, p) = k] ≤ α, where u is uniform on [0, 1] and independent of the
    samples. u = 1 gives ``clopper_pearson_lower``, a smaller u a larger bound. For the true p the left side is uniform,
    so the bound exceeds p with probability α; Clopper and Pearson's does so less often.

    ``count``: successes k.
    ``n``: samples.
    ``alpha``: the probability that the bound is wrong, above 0 and below ½.
    ``uniform``: u, drawn once per image. Where all samples succeed, a u below 2α counts as 2α, so that no bound is 1.

    >>> randomised_lower(1000, 1000, 0.001, [1.0, 0.5]).round(6).tolist()
    [0.993116, 0.993805]
    """
    successes, samples, u = np.broadcast_arrays(*_counted(count, n), np.asarray(uniform, dtype=np.float64))
    checked("uniform", u, lambda x: (x >= 0) & (x <= 1), "numbers from 0 to 1; draw one per image")
    share = np.where(successes < samples, u, np.maximum(u, 2 * float(error_probability(alpha, most=0.5))))

    def small_enough(p: Floats) -> Flags:
        at_least = np.where(successes > 0, special.betainc(np.maximum(successes, 1), samples - successes + 1, p), 1.0)
        more = np.where(successes < samples, special.betainc(successes + 1, np.maximum(samples - successes, 1), p), 0.0)
        return np.asarray(share * at_least + (1 - share) * more <= alpha)

    return largest_true(small_enough, np.ones_like(samples))


def clopper_pearson_upper(count: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The p with P(success) ≤ p, except with probability ``alpha``: 1 − the lower bound of the failures."""
    successes, samples = _counted(count, n)
    return 1 - clopper_pearson_lower(samples - successes, samples, alpha)


def clopper_pearson(count: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> tuple[Floats, Floats]:
    """Lower and upper bound that hold together, except with probability ``alpha``; half of it for each."""
    half = error_probability(alpha) / 2
    return clopper_pearson_lower(count, n, half), clopper_pearson_upper(count, n, half)


def bernstein_lower(total: ArrayLike, squares: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The m with E[X] ≥ m, except with probability ``alpha``, for independent X in [0, 1].

    Empirical Bernstein bound (Maurer and Pontil 2009, theorem 4): mean − √(2V ln(2/α)/n) − 7 ln(2/α)/(3(n−1)), where V
    is the sample variance.

    ``total``: ΣX, summed in float64.
    ``squares``: ΣX², summed in float64.
    ``n``: samples, at least 2.
    ``alpha``: the probability that the bound is wrong.
    """
    sums, squared, samples = sums_of_probabilities(total, squares, n)
    require(bool((samples >= 2).all()), "`n`: expected at least 2 samples for a variance, got fewer; take more samples")
    variance = np.maximum(squared - sums**2 / samples, 0) / (samples - 1)
    information = np.log(2 / error_probability(alpha))
    slack = np.sqrt(2 * variance * information / samples) + 7 * information / (3 * (samples - 1))
    return np.maximum(sums / samples - slack, 0.0)


def bernstein_upper(total: ArrayLike, squares: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> Floats:
    """The m with E[X] ≤ m, except with probability ``alpha``: 1 − ``bernstein_lower`` of 1 − X."""
    sums, squared, samples = sums_of_probabilities(total, squares, n)
    return 1 - bernstein_lower(samples - sums, samples - 2 * sums + squared, samples, alpha)


def label_bounds(
    counts: ArrayLike,
    labels: ArrayLike,
    *,
    alpha: float,
    rivals: int = 1,
    lower: Callable[..., Floats] = clopper_pearson_lower,
    upper: Callable[..., Floats] = clopper_pearson_upper,
) -> tuple[Floats, Floats]:
    """Lower bound of each label's probability (images,), upper bounds of its strongest rivals (images, rivals).

    These bounds, and those of every weaker class, hold together except with probability ``alpha``: each class has
    alpha/classes (Jia 2020). The largest rival comes first. No rival gets more than 1 − the label's bound.

    ``counts``: (images, classes), how often each class occurred.
    ``labels``: (images,), selected without looking at these counts.
    ``alpha``: the probability that any bound of an image is wrong.
    ``rivals``: how many rivals to bound.
    ``lower``, ``upper``: bounds that take (count, n, alpha) and grow with the count, such as those of ``sequences``.

    >>> lower, upper = label_bounds([[980, 15, 5]], [0], alpha=0.001, rivals=2)
    >>> lower.round(4).tolist(), upper.round(4).tolist()
    ([0.9602], [[0.0329, 0.0178]])
    """
    counted, classes, label = _by_class(counts, labels, rivals)
    n = counted.sum(-1)
    share = float(error_probability(alpha)) / classes
    own = lower(np.take_along_axis(counted, label, -1)[:, 0], n, share)
    others = upper(_strongest(counted, label, rivals), n[:, None], share)
    return own, np.minimum(others, 1 - own[:, None])


def label_mean_bounds(
    totals: ArrayLike, squares: ArrayLike, n: ArrayLike, labels: ArrayLike, *, alpha: float, rivals: int = 1
) -> tuple[Floats, Floats]:
    """As ``label_bounds``, for the mean probabilities of the average; Bernstein bounds.

    ``totals``, ``squares``: (images, classes), sums of the probabilities and of their squares.
    ``n``: samples per image; one number or (images,).
    """
    sums, classes, label = _by_class(totals, labels, rivals)
    squared = np.asarray(squares, dtype=np.float64)
    samples = np.broadcast_to(np.asarray(n, dtype=np.float64), sums.shape[:1])[:, None]
    share = float(error_probability(alpha)) / classes
    own = bernstein_lower(np.take_along_axis(sums, label, -1), np.take_along_axis(squared, label, -1), samples, share)
    others = _strongest(bernstein_upper(sums, squared, samples, share), label, rivals)
    return own[:, 0], np.minimum(others, 1 - own)


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
    """Cohen's PREDICT: the most frequent class per image, and where to abstain (Cohen 2019, proposition 1).

    Except with probability ``alpha``, an image has the class of the average or abstains. It abstains where the two
    largest counts are compatible with a fair coin: p-value > ``alpha``.

    ``counts``: (images, classes), how often each class occurred.
    ``alpha``: the probability of a wrong class, above 0 and below 1.
    """
    counted, _ = _counted(counts, np.inf)
    require(
        counted.ndim == 2 and counted.shape[1] >= 2,
        f"`counts`: expected (images, classes ≥ 2), got {counted.shape}; give one row per image",
    )
    second, first = np.sort(counted)[:, -2:].T
    return counted.argmax(1), fair_coin_p_value(first, second) > error_probability(alpha)


def largest_true(holds: Callable[[Floats], Flags], most: Floats) -> Floats:
    """The largest point in [0, ``most``] where ``holds`` is True, by bisection; 0 if there is none.

    ``holds`` must be True below some point and False above it. The result is the lower end of the last interval, so it
    never lies above that point.
    """
    low, high = np.zeros_like(most), most
    for _ in range(60):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = np.where(true, middle, low), np.where(true, high, middle)
    return low


def checked(name: str, values: ArrayLike, fits: Callable[[Floats], Flags], expected: str) -> Floats:
    """``values`` as floats; an ``InputError`` unless all fit.

    ``name``: the argument that the error names.
    ``fits``: which entries of an array are valid.
    ``expected``: what is valid, then a semicolon and the remedy.
    """
    array = np.asarray(values, dtype=np.float64)
    wrong = ~np.asarray(fits(array))
    if wrong.any():
        what, _, remedy = expected.partition("; ")
        require(False, f"`{name}`: expected {what}, got {array[wrong][0]:g}; {remedy}")
    return array


def error_probability(alpha: ArrayLike, most: float = 1.0) -> Floats:
    """``alpha``, checked to be above 0 and below ``most``."""
    return checked(
        "alpha", alpha, lambda a: (a > 0) & (a < most), f"a number above 0 and below {most:g}; 0.001 is usual"
    )


def sum_of_probabilities(total: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats]:
    """ΣX and n for X in [0, 1], checked: 0 ≤ ΣX ≤ n; an excess within rounding is cut off."""
    samples = checked("n", n, lambda x: (x >= 1) & (x < np.inf), "at least one sample; take some first")
    sums, samples = np.broadcast_arrays(np.asarray(total, dtype=np.float64), samples)
    slack = ROUNDING * samples
    checked("total", sums, lambda x: (x >= -slack) & (x <= samples + slack), f"a sum of n numbers in [0, 1]; {SUMMED}")
    return np.clip(sums, 0, samples), samples


def sums_of_probabilities(total: ArrayLike, squares: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """ΣX, ΣX² and n for X in [0, 1], checked: 0 ≤ ΣX² ≤ ΣX ≤ n; an excess within rounding is cut off."""
    squared, sums, samples = np.broadcast_arrays(np.asarray(squares, dtype=np.float64), *sum_of_probabilities(total, n))
    slack = ROUNDING * samples
    checked(
        "squares", squared, lambda x: (x >= -slack) & (x <= sums + slack), f"squares of numbers in [0, 1]; {SUMMED}"
    )
    return sums, np.clip(squared, 0, sums), samples


def _counted(count: ArrayLike, n: ArrayLike) -> tuple[Floats, Floats]:
    """Counts and numbers of samples, of one shape: whole numbers, 0 ≤ count ≤ n."""
    successes, samples = np.broadcast_arrays(np.asarray(count, dtype=np.float64), np.asarray(n, dtype=np.float64))
    checked("n", samples, lambda k: (k >= 0) & (k == np.floor(k)), "a whole number of samples; count each sample once")
    fits = (successes >= 0) & (successes <= samples) & (successes == np.floor(successes))
    remedy = "use bernstein_lower for sums"
    return checked("count", successes, lambda _: fits, f"whole numbers from 0 to n; {remedy}"), samples


def _by_class(values: ArrayLike, labels: ArrayLike, rivals: int) -> tuple[Floats, int, Integers]:
    """Values (images, classes), the number of classes, and labels (images, 1)."""
    array, label = np.asarray(values, dtype=np.float64), np.asarray(labels)
    require(
        array.ndim == 2 and label.shape == array.shape[:1],
        f"`labels`: expected one per row of {array.shape}, got {label.shape}; give one row per image",
    )
    images, classes = array.shape
    check_rank(rivals, classes)
    require(
        label.dtype.kind in "iu" and bool(((label >= 0) & (label < classes)).all()),
        f"`labels`: expected whole numbers from 0 to {classes - 1}, got others; use the classes of the network",
    )
    return array, classes, label.astype(np.int64).reshape(images, 1)


def check_rank(k: int, classes: int) -> None:
    """Refuse a ``k`` for which there are not k + 1 classes."""
    require(1 <= k < classes, f"`k`: expected 1 to {classes - 1} for {classes} classes, got {k}; lower `k`")


def _strongest(values: Floats, label: Integers, rivals: int) -> Floats:
    """The largest values of each row except the label's, largest first, (images, rivals)."""
    others = values.copy()
    np.put_along_axis(others, label, -1, -1)
    return -np.sort(-others)[:, :rivals]
