"""Exact error probabilities of tests with several looks, against closed forms and enumeration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from heatsmooth.certification.sampling import CHUNK
from heatsmooth.certification.settings import Settings
from heatsmooth.statistics import looks
from heatsmooth.statistics.looks import looks_until, reaching_probability, until_next_look


def test_looks_come_after_whole_chunks_and_end_with_the_last_sample() -> None:
    assert looks.FIRST == CHUNK, "a look in the middle of a chunk would waste noise"
    assert looks_until(120) == (50, 100, 120)
    assert looks_until(30) == (30,)
    planned = np.array(looks_until(10_000))
    assert planned[-1] == 10_000
    assert (np.diff(planned) == [until_next_look(done, 10_000) for done in planned[:-1].tolist()]).all()
    assert [until_next_look(done, 120) for done in (0, 30, 50, 119, 120)] == [50, 20, 50, 1, 0]
    assert (np.diff(planned) <= np.maximum(50, planned[:-1] / 50)).all()


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9772, 1 - 1e-9])
def test_one_look_is_a_binomial_tail(p: float) -> None:
    for least in (0, 1, 30, 99, 100, 101):
        own = reaching_probability((100,), np.array([least]), p)
        tail = stats.binom.sf(least - 1, 100, p)
        assert tail * (1 - 1e-10) - 1e-15 <= own <= tail * (1 + 1e-10) + 1e-11


@settings(max_examples=20, deadline=None)
@given(p=st.floats(0.05, 0.95), least=st.tuples(st.integers(0, 4), st.integers(0, 8), st.integers(0, 11)))
def test_several_looks_are_all_paths_that_reach_the_bound(p: float, least: tuple[int, int, int]) -> None:
    planned = (3, 7, 10)
    paths = np.array(list(product((0, 1), repeat=10)))
    counts = paths.cumsum(1)[:, np.array(planned) - 1]
    weights = p ** paths.sum(1) * (1 - p) ** (10 - paths.sum(1))
    expected = weights[(counts >= np.array(least)).any(1)].sum()
    assert reaching_probability(planned, np.array(least), p) == pytest.approx(expected, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("alpha", [0.05, 0.001, 1e-6])
def test_the_threshold_uses_up_alpha_and_no_more(alpha: float) -> None:
    mixture = Settings(0.25, n=2000, adaptive=True, radii=(0.1, 0.25), alpha=alpha).mixture(1.0)
    planned, share = looks_until(2000), 0.9
    for column, level in enumerate(mixture.levels):
        threshold = mixture.thresholds(alpha)[column]

        def chance(threshold: float, column: int = column, level: float = level) -> float:
            reaches = [mixture.log_capitals(np.arange(n + 1), n)[:, column] >= threshold for n in planned]
            return reaching_probability(
                planned, np.array([n + 1 - int(row.sum()) for n, row in zip(planned, reaches, strict=True)]), level
            )

        assert chance(threshold) <= share * alpha < chance(threshold - 0.3)
        assert threshold < np.log(1 / alpha)


def test_what_a_look_excluded_stays_excluded_until_the_next_look() -> None:
    mixture = Settings(0.25, adaptive=True, radii=(0.1, 0.25, 0.5)).mixture(1.0)
    for count, n in ((84, 100), (45, 50), (350, 350)):
        at_look = mixture.excludes(count, n, 0.001)
        assert at_look.any()
        assert (mixture.excludes(count + np.arange(50), n + np.arange(50), 0.001) >= at_look).all(), "only successes"


def test_more_samples_than_planned_exclude_nothing() -> None:
    mixture = Settings(0.25, adaptive=True, radii=(0.1, 0.25)).mixture(1.0)
    assert not mixture.excludes([9900, 20_000], [20_000, 20_000], 0.001).any()
    assert mixture.excludes(10_000, 10_000, 0.001).all()


def test_very_many_samples_need_no_exact_threshold() -> None:
    many = Settings(0.25, n=10**9, adaptive=True, radii=(0.1,)).mixture(1.0)
    assert many.thresholds(0.001)[0] == pytest.approx(np.log(1 / 0.0009))
    assert many.lower(900, 1000, 0.001) > 0.65
    assert len(looks_until(10**9)) < 1000


def test_nothing_is_spent_on_a_radius_that_all_samples_cannot_prove() -> None:
    within = Settings(0.25, n=1000, adaptive=True, radii=(0.25,))
    beyond = Settings(0.25, n=1000, adaptive=True, radii=(0.25, 0.65))
    assert within.mixture(1.0).gain(100, 100, 0.001) == beyond.mixture(1.0).gain(100, 100, 0.001) == 0
