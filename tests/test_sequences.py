"""Optional stopping: exact crossing probabilities of counts, simulated ones of sums."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from heatsmooth import InputError
from heatsmooth.statistics.bounds import (
    Flags,
    clopper_pearson_lower,
    clopper_pearson_upper,
    label_bounds,
)
from heatsmooth.statistics.sequences import (
    anytime_exceeds,
    anytime_lower,
    anytime_upper,
    stopped_lower,
)
from tests.test_bounds import samples_in_unit_interval, tolerated

steady = settings(derandomize=True, deadline=None, max_examples=100)


def chance_of_ever_being_wrong(wrong: Mapping[int, Flags], p: float) -> float:
    """The exact probability that at some n the count of successes is one for which ``wrong[n][count]``."""
    chance, failed = np.ones(1), 0.0
    for n in range(1, max(wrong) + 1):
        chance = np.append(chance * (1 - p), 0.0) + np.append(0.0, chance * p)
        if n in wrong:
            failed += float(chance[wrong[n]].sum())
            chance[wrong[n]] = 0.0
    return failed


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.4])
def test_anytime_bounds_are_ever_wrong_with_probability_alpha_at_most(alpha: float) -> None:
    times = range(1, 301)
    lower = {n: anytime_lower(np.arange(n + 1), n, alpha) for n in times}
    for p in (0.02, 0.3, 0.5, 0.8, 0.9, 0.99):
        ever = chance_of_ever_being_wrong({n: lower[n] > p for n in times}, p)
        print(f"α={alpha} p={p}: wrong at some n ≤ 300 with probability {ever:.5f}")
        assert ever <= alpha


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.4])
def test_a_last_look_fixed_beforehand_keeps_the_bound_at_alpha(alpha: float) -> None:
    most = 300
    lower = {n: stopped_lower(np.arange(n + 1), n, alpha, most=most) for n in range(1, most + 1)}
    for p in (0.02, 0.3, 0.5, 0.8, 0.9, 0.99):
        assert chance_of_ever_being_wrong({n: lower[n] > p for n in lower}, p) <= alpha
    assert (lower[most] >= clopper_pearson_lower(np.arange(most + 1), most, alpha / 2)).all()
    assert (lower[most - 1] == anytime_lower(np.arange(most), most - 1, alpha / 2)).all()


def test_fixed_bounds_are_wrong_at_some_time_too_often() -> None:
    """What the sequences are for."""
    wrong = {n: clopper_pearson_lower(np.arange(n + 1), n, 0.05) > 0.8 for n in range(1, 301)}
    assert chance_of_ever_being_wrong(wrong, 0.8) > 0.2


@pytest.mark.parametrize("p", [0.5, 0.75, 0.97])
def test_the_best_of_all_moments_is_still_a_bound(p: float) -> None:
    """Who stops at the luckiest of 100 moments up to n = 10,000 is wrong with probability alpha at most."""
    alpha, trials = 0.05, 1000
    n = np.arange(1, 101) * 100
    counts = np.random.default_rng(0).binomial(100, p, (trials, 100)).cumsum(1)
    assert (anytime_lower(counts, n, alpha).max(1) > p).sum() <= tolerated(alpha, trials)
    assert (anytime_upper(counts, n, alpha).min(1) < p).sum() <= tolerated(alpha, trials)


@pytest.mark.parametrize("kind", ["coin", "softmax", "narrow", "rarely zero"])
def test_bounds_of_sums_hold_at_all_times(kind: str) -> None:
    alpha, trials = 0.05, 1000
    x, mean = samples_in_unit_interval(kind, (trials, 1000), seed=5)
    n = np.unique(np.geomspace(1, 1000, 25).astype(int))
    totals = x.cumsum(1)[:, n - 1]
    assert (anytime_lower(totals, n, alpha).max(1) > mean).sum() <= tolerated(alpha, trials)
    assert (anytime_upper(totals, n, alpha).min(1) < mean).sum() <= tolerated(alpha, trials)


@steady
@given(st.data(), st.integers(1, 5000), st.floats(1e-6, 0.49))
def test_each_p_below_the_bound_made_the_bettor_rich(data: st.DataObject, n: int, alpha: float) -> None:
    """The capital of the mixture above p, computed by the incomplete beta function, is at least 1/α for all p below."""
    count = data.draw(st.integers(1, n))
    lower = anytime_lower(count, n, alpha)
    p = lower * np.linspace(0.001, 1, 200)
    posterior = count + 0.5, n - count + 0.5
    above = special.betaincc(*posterior, p) / special.betaincc(0.5, 0.5, p)
    capital = special.betaln(*posterior) - np.log(np.pi) - special.xlogy(count, p) - special.xlog1py(n - count, -p)
    assert (capital + np.log(above) >= -np.log(alpha) - 1e-8).all()


@steady
@given(st.data(), st.integers(1, 5000), st.floats(1e-6, 0.4))
def test_anytime_bounds_are_monotone_and_no_tighter_than_the_exact_ones(
    data: st.DataObject, n: int, alpha: float
) -> None:
    count = data.draw(st.integers(0, n - 1))
    lower, upper = anytime_lower(count, n, alpha), anytime_upper(count, n, alpha)
    assert lower <= clopper_pearson_lower(count, n, alpha) + 1e-12
    assert upper >= clopper_pearson_upper(count, n, alpha) - 1e-12
    assert lower <= anytime_lower(count + 1, n, alpha)
    assert lower <= anytime_lower(count, n, alpha * 1.2)
    assert anytime_lower(count, n + 1, alpha) <= lower + 1e-12
    assert upper == pytest.approx(1 - anytime_lower(n - count, n, alpha), abs=1e-15)


@steady
@given(st.data(), st.integers(1, 5000), st.floats(1e-6, 0.4))
def test_exceeding_is_a_lower_bound_above(data: st.DataObject, n: int, alpha: float) -> None:
    count = data.draw(st.integers(0, n))
    lower = float(anytime_lower(count, n, alpha))
    p = np.clip([0, lower - 1e-9, lower + 1e-9, count / n, 1], 0, 1)
    assert anytime_exceeds(count, n, alpha, p).tolist() == [count > 0, lower > 1e-9, False, False, False]


def test_bounds_for_a_label_may_be_anytime_valid() -> None:
    lower, upper = label_bounds([[90, 7, 3]], [0], alpha=0.003, rivals=2, lower=anytime_lower, upper=anytime_upper)
    np.testing.assert_allclose(lower, anytime_lower([90], 100, 0.001))
    np.testing.assert_allclose(upper, np.minimum(anytime_upper([[7, 3]], 100, 0.001), 1 - lower[:, None]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: anytime_lower(5, 4, 0.1), "`total`: expected a sum of n numbers in"),
        (lambda: anytime_lower(1, 4, 0.5), "`alpha`: expected a number above 0 and below 0.5, got 0.5"),
        (lambda: anytime_lower(0, 0, 0.1), "`n`: expected at least one sample"),
        (lambda: anytime_exceeds(1, 4, 0.1, 1.5), "`p`: expected probabilities from 0 to 1, got 1.5"),
    ],
)
def test_wrong_input_is_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(InputError, match=message):
        wrong()
