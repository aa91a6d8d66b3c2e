"""Figures of a whole set of images."""

import numpy as np
import pytest
from scipy import stats

from heatsmooth import InputError
from heatsmooth.statistics.accuracy import (
    average_certified_radius,
    certified_accuracy,
    certified_accuracy_band,
    distribution_band,
    empirical_distribution,
    false_certificates,
)
from heatsmooth.statistics.bounds import clopper_pearson

RADIUS = [0.5, 0.25, 0.9, 0.0, 0.3]
CORRECT = [True, True, False, False, True]


def test_certified_accuracy_is_over_all_images() -> None:
    found = certified_accuracy(RADIUS, CORRECT, at=[0, 0.25, 0.3, 0.5, 0.51])
    assert found.tolist() == [0.6, 0.6, 0.4, 0.2, 0.0]
    assert certified_accuracy(RADIUS, CORRECT, at=0.25) == 0.6
    assert certified_accuracy(RADIUS, [False] * 5, at=0) == 0


def test_average_certified_radius() -> None:
    assert average_certified_radius(RADIUS, CORRECT) == pytest.approx(1.05 / 5)


def test_the_band_is_clopper_pearson_over_the_images() -> None:
    lower, upper = certified_accuracy_band(RADIUS, CORRECT, at=[0, 0.3], alpha=0.05)
    expected = clopper_pearson([3, 2], 5, 0.05)
    np.testing.assert_array_equal((lower, upper), expected)


@pytest.mark.parametrize("images", [1, 50, 500, 10_000, 1_000_000])
@pytest.mark.parametrize("alpha", [0.001, 0.05])
@pytest.mark.parametrize("rho", [0.001, 0.05])
def test_more_false_certificates_than_said_have_probability_rho_at_most(images: int, alpha: float, rho: float) -> None:
    """Exactly, by the binomial distribution; without the 2 under the root it fails at 1,000,000 images."""
    most = false_certificates(images, alpha=alpha, rho=rho)
    assert stats.binom.sf(np.floor(most * images), images, alpha) <= rho
    assert most > alpha


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="`radius`: expected radii of 0 or more, got nan"):
        certified_accuracy([np.nan], [True], at=0)
    with pytest.raises(InputError, match="`radius`: expected one per image"):
        average_certified_radius([], [])
    with pytest.raises(InputError, match=r"`correct`: expected shape \(2,\) as the radii, got \(1,\)"):
        average_certified_radius([1, 2], [True])
    with pytest.raises(InputError, match="`images`: expected at least 1, got 0"):
        false_certificates(0, alpha=0.001, rho=0.001)
    with pytest.raises(InputError, match="`values`: expected one per image"):
        empirical_distribution([], at=0.5)


def test_the_band_of_a_distribution_holds_everywhere_at_once() -> None:
    """Uniform values have the distribution x. It is farthest from the empirical one at a value, or just before it."""
    draw, wrong = np.random.default_rng(0), 0
    for _ in range(2000):
        values = np.sort(draw.random(40))
        low, _ = distribution_band(values, values, alpha=0.1)
        _, high = distribution_band(values, np.nextafter(values, 0), alpha=0.1)
        wrong += bool((low > values).any() or (high < values).any())
    assert stats.binom.sf(wrong - 1, 2000, 0.1) > 0.001, wrong
    assert wrong > 100, "the bound is nearly exact"
