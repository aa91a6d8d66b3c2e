"""Against statsmodels and scipy, exact and simulated coverage, monotonicity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from heatsmooth import InputError
from heatsmooth.statistics.bounds import (
    bernstein_lower,
    bernstein_upper,
    clopper_pearson,
    clopper_pearson_lower,
    clopper_pearson_upper,
    fair_coin_p_value,
    label_bounds,
    label_mean_bounds,
    largest_true,
    predict,
)

steady = settings(derandomize=True, deadline=None, max_examples=100)
errors = st.floats(1e-6, 0.4)
ULP = 1e-12


def tolerated(alpha: float, trials: int) -> int:
    """Failures that a bound with error probability ``alpha`` exceeds with probability below 1e-7."""
    return int(stats.binom.isf(1e-7, trials, alpha))


def some_counts(n: int) -> list[int]:
    return sorted({0, 1, n // 3, n // 2, n - n // 10, n - 1, n})


@pytest.mark.parametrize("n", [1, 7, 100, 1000, 100_000])
@pytest.mark.parametrize("alpha", [1e-6, 0.001, 0.05, 0.3])
def test_clopper_pearson_is_that_of_scipy_and_statsmodels(n: int, alpha: float) -> None:
    counts = some_counts(n)
    lower, upper = clopper_pearson_lower(counts, n, alpha), clopper_pearson_upper(counts, n, alpha)
    both = clopper_pearson(counts, n, alpha)
    for i, count in enumerate(counts):
        least = stats.binomtest(count, n, alternative="greater").proportion_ci(1 - alpha, "exact").low
        most = stats.binomtest(count, n, alternative="less").proportion_ci(1 - alpha, "exact").high
        assert lower[i] == pytest.approx(least, abs=1e-10)
        assert upper[i] == pytest.approx(most, abs=1e-10)
        assert (both[0][i], both[1][i]) == pytest.approx(proportion_confint(count, n, alpha, "beta"), abs=1e-10)
        assert lower[i] == pytest.approx(proportion_confint(count, n, 2 * alpha, "beta")[0], abs=1e-10)


@pytest.mark.parametrize("n", [1, 12, 300])
@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_clopper_pearson_is_wrong_with_probability_alpha_at_most(n: int, alpha: float) -> None:
    """Exactly: the probability of all counts whose bound is wrong, for a grid of p."""
    counts = np.arange(n + 1)
    p = np.linspace(0.001, 0.999, 333)[:, None]
    chance = stats.binom.pmf(counts, n, p)
    for wrong in (clopper_pearson_lower(counts, n, alpha) > p, clopper_pearson_upper(counts, n, alpha) < p):
        assert (chance * wrong).sum(1).max() <= alpha + ULP


@steady
@given(st.data(), st.integers(1, 10_000), errors)
def test_clopper_pearson_is_monotone(data: st.DataObject, n: int, alpha: float) -> None:
    count = data.draw(st.integers(0, n - 1))
    lower, upper = clopper_pearson_lower(count, n, alpha), clopper_pearson_upper(count, n, alpha)
    assert 0 <= lower <= count / n <= upper <= 1
    assert lower < clopper_pearson_lower(count + 1, n, alpha)
    assert upper < clopper_pearson_upper(count + 1, n, alpha) + ULP
    assert clopper_pearson_lower(count, n + 1, alpha) <= lower + ULP
    assert clopper_pearson_upper(count, n + 1, alpha) <= upper + ULP
    assert lower <= clopper_pearson_lower(count, n, alpha * 1.5) + ULP
    assert clopper_pearson_upper(count, n, alpha * 1.5) <= upper + ULP


def samples_in_unit_interval(kind: str, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, float]:
    """Independent X in [0, 1] and their mean."""
    random = np.random.default_rng(seed)
    match kind:
        case "coin":
            return (random.random(shape) < 0.9).astype(float), 0.9
        case "softmax":
            return random.beta(0.4, 0.2, shape), 2 / 3
        case "narrow":
            return random.beta(70, 30, shape), 0.7
        case _:
            return np.where(random.random(shape) < 0.02, 0.0, 0.8), 0.784


@pytest.mark.parametrize("kind", ["coin", "softmax", "narrow", "rarely zero"])
@pytest.mark.parametrize("n", [20, 400])
def test_bernstein_covers_the_mean(kind: str, n: int) -> None:
    alpha, trials = 0.05, 4000
    x, mean = samples_in_unit_interval(kind, (trials, n), seed=n)
    sums = x.sum(1), (x**2).sum(1), n
    assert (bernstein_lower(*sums, alpha) > mean).sum() <= tolerated(alpha, trials)
    assert (bernstein_upper(*sums, alpha) < mean).sum() <= tolerated(alpha, trials)


def test_bernstein_is_the_formula() -> None:
    x = np.random.default_rng(0).random(1000)
    information = np.log(2 / 0.01)
    expected = x.mean() - np.sqrt(2 * x.var(ddof=1) * information / 1000) - 7 * information / (3 * 999)
    assert bernstein_lower(x.sum(), (x**2).sum(), 1000, 0.01) == pytest.approx(expected, abs=1e-12)
    assert bernstein_lower(2, 2, 4, 0.01) == 0
    assert bernstein_upper(2, 2, 4, 0.01) == 1


PROBABILITIES = [[0.5, 0.3, 0.1, 0.1], [0.97, 0.01, 0.01, 0.01], [0.3, 0.3, 0.3, 0.1], [0.05, 0.9, 0.03, 0.02]]


@pytest.mark.parametrize("p", PROBABILITIES)
def test_label_bounds_hold_together(p: list[float]) -> None:
    alpha, trials = 0.05, 4000
    counts = np.random.default_rng(1).multinomial(200, p, trials)
    lower, upper = label_bounds(counts, np.zeros(trials, int), alpha=alpha, rivals=3)
    true = np.sort(p[1:])[::-1]
    assert ((lower > p[0]) | (upper < true).any(1)).sum() <= tolerated(alpha, trials)
    assert (upper <= 1 - lower[:, None] + ULP).all()
    assert (np.diff(upper) <= 0).all()


def test_label_bounds_share_alpha_and_pick_the_strongest_rivals() -> None:
    counts = np.array([[10, 600, 350, 40], [5, 0, 990, 5]])
    lower, upper = label_bounds(counts, [1, 2], alpha=0.004, rivals=2)
    np.testing.assert_allclose(lower, clopper_pearson_lower([600, 990], 1000, 0.001))
    np.testing.assert_allclose(upper, clopper_pearson_upper([[350, 40], [5, 5]], 1000, 0.001))
    capped = label_bounds([[99, 1], [0, 100]], [0, 0], alpha=0.01)
    np.testing.assert_allclose(capped[1][0], np.minimum(clopper_pearson_upper(1, 100, 0.005), 1 - capped[0][0]))


@pytest.mark.parametrize("label", [0, 2])
def test_label_mean_bounds_hold_together(label: int) -> None:
    alpha, trials, n = 0.05, 2000, 100
    x = np.random.default_rng(2).dirichlet([1.4, 0.4, 0.2], (trials, n))
    totals, squares = x.sum(1), (x**2).sum(1)
    lower, upper = label_mean_bounds(totals, squares, n, np.full(trials, label), alpha=alpha, rivals=2)
    mean = np.array([0.7, 0.2, 0.1])
    true = np.sort(np.delete(mean, label))[::-1]
    assert ((lower > mean[label]) | (upper < true).any(1)).sum() <= tolerated(alpha, trials)
    np.testing.assert_allclose(lower, bernstein_lower(totals[:, label], squares[:, label], n, alpha / 3))
    one_number_an_image = label_mean_bounds(totals, squares, np.full(trials, n), np.full(trials, label), alpha=alpha)
    np.testing.assert_array_equal(one_number_an_image[1][:, 0], upper[:, 0])


@steady
@given(st.integers(0, 3000), st.integers(0, 3000))
def test_the_p_value_is_that_of_scipy(heads: int, tails: int) -> None:
    expected = stats.binomtest(heads, heads + tails).pvalue if heads + tails else 1.0
    assert fair_coin_p_value(heads, tails) == pytest.approx(expected, rel=1e-10, abs=1e-300)


def test_predict_abstains_where_the_two_top_counts_could_be_equal() -> None:
    classes, abstained = predict([[60, 40, 0], [10, 75, 15], [0, 0, 100], [50, 50, 0], [0, 0, 0]], alpha=0.001)
    assert classes.tolist() == [0, 1, 2, 0, 0]
    assert abstained.tolist() == [True, False, False, True, True]


def test_predict_is_wrong_with_probability_alpha_at_most() -> None:
    alpha, trials = 0.05, 20_000
    for p in ([0.35, 0.34, 0.31], [0.5, 0.5, 0.0], [0.34, 0.33, 0.33]):
        classes, abstained = predict(np.random.default_rng(3).multinomial(100, p, trials), alpha=alpha)
        assert (~abstained & (classes != 0)).sum() <= tolerated(alpha, trials)


def test_bisection_stays_on_the_true_side() -> None:
    ends = np.array([0.0, 0.1, 1 / 3, 0.9999, 2.0])
    found = largest_true(lambda x: x < ends, np.ones(5))
    assert (found <= ends).all()
    np.testing.assert_allclose(found, np.minimum(ends, 1), atol=1e-15)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: clopper_pearson_lower(5, 4, 0.1), "`count`: expected whole numbers from 0 to n, got 5; "),
        (lambda: clopper_pearson_lower(1, [4, 0], 0.1), "`count`: expected whole numbers from 0 to n, got 1; "),
        (lambda: clopper_pearson_lower(2.5, 4, 0.1), "got 2.5; use bernstein_lower"),
        (lambda: clopper_pearson_lower(2, np.nan, 0.1), "`n`: expected a whole number"),
        (lambda: clopper_pearson_lower(2, 4, 0.0), "`alpha`: expected a number above 0 and below 1, got 0; "),
        (lambda: clopper_pearson_lower(2, 4, np.nan), "`alpha`: expected .* got nan; "),
        (lambda: bernstein_lower(5.0, 3.0, 4, 0.1), "`total`: expected .* got 5; sum probabilities, not logits"),
        (lambda: bernstein_lower(2.0, 9.0, 4, 0.1), "`squares`: expected .* got 9; sum probabilities, not logits"),
        (lambda: bernstein_lower(1.0, 1.0, 1, 0.1), "`n`: expected at least 2 samples"),
        (lambda: bernstein_lower(1.0, 1.0, 0, 0.1), "`n`: expected at least one sample, got 0; "),
        (
            lambda: label_bounds([[1, 2]], [0, 1], alpha=0.1),
            r"`labels`: expected one per row of \(1, 2\), got \(2,\); ",
        ),
        (lambda: label_bounds([[1, 2]], [2], alpha=0.1), "`labels`: expected whole numbers from 0 to 1"),
        (lambda: label_bounds([[1, 2]], [0.5], alpha=0.1), "`labels`: expected whole numbers from 0 to 1"),
        (
            lambda: label_bounds([[1, 2]], [0], alpha=0.1, rivals=2),
            "`k`: expected 1 to 1 for 2 classes, got 2; lower `k`",
        ),
        (lambda: predict([1, 2], alpha=0.1), r"`counts`: expected \(images, classes ≥ 2\), got \(2,\)"),
    ],
)
def test_wrong_input_is_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(InputError, match=message):
        wrong()
