"""One capital for several radii, and the randomised bound: exact error probabilities, with any prior."""

import numpy as np
import pytest

from heatsmooth import InputError
from heatsmooth.certification.settings import Sequence, Settings
from heatsmooth.statistics.bounds import clopper_pearson_lower, randomised_lower
from heatsmooth.statistics.mixtures import KNOTS, Mixture, Prior, fitted_prior, mixture_of
from tests.test_sequences import chance_of_ever_being_wrong

LEVELS = (0.6, 0.85)
CERTAIN = tuple((np.exp(-3 * np.abs(KNOTS - 4)) + 1e-4).tolist())
"""The weights of a prior that expects p ≈ 1."""


@pytest.mark.parametrize(("most", "exact"), [(50, False), (130, True)], ids=["mixture", "exact"])
@pytest.mark.parametrize("weights", [Prior().weights[0], CERTAIN], ids=["even", "certain"])
def test_bounds_are_ever_wrong_with_probability_alpha_at_most_for_any_prior(
    weights: tuple[float, ...], most: int, exact: bool
) -> None:
    """At every p around each level, exactly, for a look after every sample: also between the planned looks."""
    alpha = 0.05
    mixture = Mixture(LEVELS, weights, most, exact)
    lower = {n: mixture.lower(np.arange(n + 1), np.full(n + 1, n), alpha) for n in range(1, most + 1)}
    around = [level + step for level in LEVELS for step in (-0.05, -0.001, 0.0, 0.001, 0.05)]
    chances = [
        chance_of_ever_being_wrong({n: bound > p for n, bound in lower.items()}, p) for p in (0.3, *around, 0.97)
    ]
    assert max(chances) <= alpha
    least = 0.6 if exact else 0.2
    assert weights != Prior().weights[0] or max(chances) > least * alpha, "the test can fail"


@pytest.mark.parametrize("sequence", ["exact", "mixture"])
def test_every_asked_radius_that_is_decided_is_certified(sequence: Sequence) -> None:
    settings = Settings(0.25, adaptive=True, radii=(0.5, 0.1, 0.25), sequence=sequence)
    assert list(settings.levels) == sorted(settings.levels)
    mixture = settings.mixture(0.9)
    count, n = np.arange(401), np.full(401, 400)
    reached = mixture.excludes(count, n, settings.alpha)
    above = mixture.log_capitals(count, n) >= np.log(1 / settings.alpha)
    assert (reached >= above).all()
    assert (reached == above).all() == (sequence == "mixture"), "exact thresholds are lower than 1/α"
    lower = mixture.lower(count, n, settings.alpha)
    assert ((lower[:, None] >= np.array(settings.levels)) == reached).all()
    assert reached.any(0).all()
    assert (np.diff(lower) >= 0).all()
    assert (lower <= count / n).all()
    assert mixture.gain(400, 400, settings.alpha) == 0, "nothing is left to decide"
    assert mixture.gain(9000, settings.n, settings.alpha) == 0, "no samples are left"
    promising, doubtful, hopeless = mixture.gain(np.array([100, 90, 40]), np.full(3, 100), settings.alpha)
    assert promising > doubtful > 100 * hopeless


def test_a_prior_of_images_alike_saves_samples() -> None:
    rng = np.random.default_rng(0)
    one_pass = rng.random(400)
    p = np.where(one_pass > 0.5, 0.97, 0.3)
    prior = fitted_prior(rng.binomial(1000, p), 1000, one_pass)
    assert prior.groups([0.01, 0.99]).tolist() == [0, len(prior.weights) - 1]
    fitted = mixture_of(prior, len(prior.weights) - 1, LEVELS, 1000)
    even = mixture_of(Prior(), 0, LEVELS, 1000)
    assert fitted.log_capitals(97, 100)[1] > even.log_capitals(97, 100)[1] + 0.5
    unlike = mixture_of(prior, 0, LEVELS, 1000)
    assert unlike.log_capitals(97, 100)[1] > even.log_capitals(97, 100)[1] - 2.5, "a wrong prior costs little"
    few = fitted_prior([5], [10], [0.5])
    assert few.edges == ()
    with pytest.raises(InputError, match="`prior`: expected positive weights per group"):
        Prior(edges=(0.5,))


@pytest.mark.parametrize("p", [0.05, 0.8, 0.99])
def test_the_randomised_bound_is_wrong_with_probability_alpha_exactly(p: float) -> None:
    n, alpha = 40, 0.05
    count, u = np.arange(n + 1)[:, None], (np.arange(200)[None] + 0.5) / 200
    bound = randomised_lower(count, n, alpha, u)
    fixed = clopper_pearson_lower(count, n, alpha)
    above = np.append(clopper_pearson_lower(count[1:], n, alpha), [[1.0]], 0)
    assert (bound >= fixed - 1e-12).all()
    assert (bound <= above + 1e-12).all()
    np.testing.assert_allclose(randomised_lower(count, n, alpha, 1.0), fixed, atol=1e-12)
    chance = np.ones(1)
    for _ in range(n):
        chance = np.append(chance * (1 - p), 0.0) + np.append(0.0, chance * p)
    wrong = float(chance @ (bound > p).mean(1))
    at_the_end = chance[-1] * 2 * alpha  # where a u below 2α counts as 2α
    assert alpha - at_the_end - 2e-3 <= wrong <= alpha + 2e-3
    assert (bound < 1).all()
    with pytest.raises(InputError, match="`uniform`: expected numbers from 0 to 1, got 2"):
        randomised_lower(1, 2, 0.1, 2)


def test_radii_out_of_reach_are_refused() -> None:
    with pytest.raises(InputError, match=r"`radii`: expected some that noise of σ=0\.25 can reach, got 3"):
        Settings(0.25, adaptive=True, radii=(0.25, 3.0))
