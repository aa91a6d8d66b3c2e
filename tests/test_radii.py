"""Closed forms, order of the certificates, and classifiers on a line whose probabilities are known exactly."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from heatsmooth import InputError
from heatsmooth.statistics.bounds import clopper_pearson_lower, label_bounds, label_mean_bounds
from heatsmooth.statistics.radii import (
    l_bound,
    l_bound_between,
    one_sided_radius,
    pixeldp_radius,
    renyi_radius,
    round_down,
    top_k_radius,
    two_sided_radius,
)
from tests.test_bounds import PROBABILITIES, tolerated

steady = settings(derandomize=True, deadline=None, max_examples=150)
PAIRED = (two_sided_radius, l_bound_between, pixeldp_radius, renyi_radius)


@st.composite
def contests(draw: st.DrawFn) -> tuple[float, float]:
    """A label's probability and a smaller one of its rival, together at most 1."""
    p = draw(st.floats(1e-6, 1 - 1e-9))
    return p, draw(st.floats(0, min(p, 1 - p)))


def test_one_sided_radius_and_abstention() -> None:
    radius, abstain = one_sided_radius([0.0, 0.4999, 0.5, 0.841344746068543, 1.0], sigma=0.5)
    np.testing.assert_allclose(radius, [0, 0, 0, 0.5, np.inf], atol=1e-12)
    assert abstain.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("certificate", PAIRED)
def test_paired_radii_abstain_where_the_rival_may_win(certificate: object) -> None:
    assert callable(certificate)
    radius, abstain = certificate([0.3, 0.4, 0.6, 0.0, 1.0, 1.0], [0.5, 0.4, 0.3, 0.0, 1.0, 0.0], sigma=1)
    assert abstain.tolist() == [True, False, False, False, False, False]
    assert (radius[[0, 1, 3, 4]] == 0).all()
    assert 0 < radius[2] < radius[5]
    scalar, silent = certificate(0.9, 0.05, sigma=2)
    assert scalar == pytest.approx(2 * certificate([0.9], [0.05], sigma=1)[0][0])
    assert not silent


@steady
@given(contests(), st.floats(0.01, 3))
def test_the_order_of_the_certificates(contest: tuple[float, float], sigma: float) -> None:
    """L-bound, PixelDP, Rényi ≤ Cohen's with two bounds; Cohen's with one has the largest rival possible."""
    p, q = contest
    two_sided = two_sided_radius(p, q, sigma=sigma)[0]
    for older in (l_bound_between, pixeldp_radius, renyi_radius):
        assert older(p, q, sigma=sigma)[0] <= two_sided * (1 + 1e-9)
    assert one_sided_radius(p, sigma=sigma)[0] <= two_sided + 1e-9
    assert one_sided_radius(p, sigma=sigma)[0] == pytest.approx(two_sided_radius(p, 1 - p, sigma=sigma)[0], abs=1e-6)
    top_1 = top_k_radius([p], [[q]], sigma=sigma)[0][0]
    assert top_1 == pytest.approx(min(two_sided, 100 * sigma), rel=1e-9, abs=1e-12)


@steady
@given(contests(), st.floats(0, 1), st.floats(0, 1))
def test_radii_grow_with_the_label_and_fall_with_the_rival(
    contest: tuple[float, float], up: float, down: float
) -> None:
    p, q = contest
    higher, less = p + up * (1 - p - q) / 2, q * down
    for certificate in PAIRED:
        radius = certificate(p, q, sigma=1)[0]
        assert radius <= certificate(higher, q, sigma=1)[0] + 1e-7
        assert radius <= certificate(p, less, sigma=1)[0] + 1e-7
        assert certificate(p, q, sigma=1.5)[0] == pytest.approx(1.5 * radius)
    assert one_sided_radius(p, sigma=1)[0] <= one_sided_radius(higher, sigma=1)[0]


@steady
@given(st.data(), st.integers(1, 5000), st.floats(1e-5, 0.4))
def test_more_draws_at_the_same_rate_certify_more(data: st.DataObject, n: int, alpha: float) -> None:
    count = data.draw(st.integers(0, n))
    radius = one_sided_radius(clopper_pearson_lower(count, n, alpha), sigma=1)[0]
    assert radius <= one_sided_radius(clopper_pearson_lower(4 * count, 4 * n, alpha), sigma=1)[0] + 1e-9
    assert radius <= one_sided_radius(clopper_pearson_lower(n, n, alpha), sigma=1)[0] + 1e-12


def test_the_l_bound_is_no_more_than_the_mean_probability_radius() -> None:
    x = np.random.default_rng(0).dirichlet([3, 0.5, 0.3, 0.2], (50, 500))
    bounds = label_mean_bounds(x.sum(1), (x**2).sum(1), 500, np.zeros(50, int), alpha=0.001)
    mean_probability, l_bounds = (
        f(bounds[0], bounds[1][:, 0], sigma=0.25)[0] for f in (two_sided_radius, l_bound_between)
    )
    assert (l_bounds > 0).all()
    assert (l_bounds <= mean_probability).all()
    assert (mean_probability <= two_sided_radius(x.mean(1)[:, 0], x.mean(1)[:, 1:].max(1), sigma=0.25)[0]).all()


def test_l_bound_of_arrays_and_tensors() -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    v = logits.softmax(1)
    ordered = v.detach().sort(1, descending=True).values.numpy()
    for k in (1, 2, 4):
        expected = 0.25 * np.sqrt(np.pi / 2) * (ordered[:, k - 1] - ordered[:, k])
        np.testing.assert_allclose(l_bound(v, sigma=0.25, k=k), expected)
        np.testing.assert_allclose(l_bound(v.detach().numpy(), sigma=0.25, k=k), expected)
        np.testing.assert_allclose(l_bound(v.to(torch.bfloat16), sigma=0.25, k=k), expected, atol=2e-3)
    assert l_bound(v, sigma=0.25).dtype == np.float64
    assert l_bound(v[0], sigma=0.25).shape == ()
    with pytest.raises(InputError, match=r"`probabilities`: expected numbers from 0 to 1, got .*; take the softmax"):
        l_bound(logits, sigma=0.25)
    with pytest.raises(InputError, match="`k`: expected 1 to 4 for 5 classes, got 5"):
        l_bound(v, sigma=0.25, k=5)


def line_probabilities(edges: np.ndarray, owners: np.ndarray, classes: int, x: np.ndarray) -> np.ndarray:
    """P(class) at each x on the line, σ = 1: interval i lies between edges i − 1 and i and belongs to owners[i]."""
    cumulative = special.ndtr(np.concatenate([[-np.inf], edges, [np.inf]]) - x[:, None])
    return np.asarray(np.diff(cumulative) @ np.eye(classes)[owners])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_holds_for_random_classifiers_on_a_line(k: int) -> None:
    """Whatever the intervals, a label leaves the top k nowhere inside its radius."""
    random = np.random.default_rng(k)
    certified = 0
    for _ in range(150):
        classes, intervals = int(random.integers(k + 1, 7)), int(random.integers(5, 40))
        edges, owners = np.sort(random.normal(0, 2, intervals - 1)), random.integers(0, classes, intervals)
        p = line_probabilities(edges, owners, classes, np.zeros(1))[0]
        for label in range(classes):
            rivals = np.sort(np.delete(p, label))[::-1][:k]
            radius, abstain = top_k_radius(p[label], rivals, sigma=1)
            if abstain or radius == 0:
                continue
            certified += 1
            moved = line_probabilities(
                edges, owners, classes, np.linspace(-1, 1, 101) * min(float(radius), 20.0) * 0.9999
            )
            ahead = (np.delete(moved, label, 1) > moved[:, [label]] + 1e-15).sum(1)
            assert ahead.max() < k
    assert certified > 100


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_is_exact_in_the_worst_case(k: int) -> None:
    """The label to the left, k rivals in narrow stripes to the right: just beyond the radius all are ahead of it."""
    edges = 0.8 + np.arange(20_000) * 0.0005
    owners = np.concatenate([[0], 1 + np.arange(20_000) % k])
    p = line_probabilities(edges, owners, k + 1, np.zeros(1))[0]
    radius, _ = top_k_radius(p[0], p[1:], sigma=1)
    inside, outside = line_probabilities(edges, owners, k + 1, np.array([0.998, 1.002]) * radius)
    assert (inside[1:] > inside[0]).sum() < k
    assert (outside[1:] > outside[0]).all()


@steady
@given(st.lists(st.floats(0.001, 1), min_size=4, max_size=8), st.floats(0.05, 2))
def test_top_k_grows_with_k(weights: list[float], sigma: float) -> None:
    p = np.array(weights) / sum(weights)
    rivals = np.sort(p[1:])[::-1]
    radii = [float(top_k_radius(p[0], rivals[:k], sigma=sigma)[0]) for k in range(1, len(rivals) + 1)]
    assert (np.diff(radii) >= -1e-9).all()
    assert radii[0] == pytest.approx(float(two_sided_radius(p[0], rivals[0], sigma=sigma)[0]), abs=1e-9)


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_certificates_are_true_except_with_probability_alpha(p: list[float], k: int) -> None:
    alpha, trials = 0.05, 1500
    rivals = np.sort(p[1:])[::-1][:k]
    true, never = top_k_radius(p[0], rivals, sigma=1)
    counts = np.random.default_rng(k).multinomial(300, p, trials)
    radius, abstain = top_k_radius(*label_bounds(counts, np.zeros(trials, int), alpha=alpha, rivals=k), sigma=1)
    assert ((radius > true) | (~abstain & bool(never))).sum() <= tolerated(alpha, trials)


def test_top_k_abstention() -> None:
    lower, rivals = [0.1, 0.25, 0.3, 1.0], [[0.5, 0.3], [0.25, 0.25], [0.6, 0.05], [0.0, 0.0]]
    radius, abstain = top_k_radius(lower, rivals, sigma=2)
    assert abstain.tolist() == [True, False, False, False]
    assert radius[0] == 0
    assert radius[1] == pytest.approx(0, abs=1e-9)
    assert 0 < radius[2] < radius[3] <= 200


@pytest.mark.parametrize(("p", "q"), [(0.6, 0.3), (0.9, 0.05), (0.998, 0.001), (0.52, 0.47), (0.4, 0.1)])
def test_the_older_certificates_are_the_best_of_their_kind(p: float, q: float) -> None:
    def pixeldp(epsilon: float) -> float:
        delta = (p - np.exp(2 * epsilon) * q) / (1 + np.exp(epsilon))
        return epsilon / np.sqrt(2 * np.log(1.25 / delta)) if delta > 0 else 0.0

    def renyi(order: float) -> float:
        """√(2D/order), D the least Rényi divergence from (p, q, rest) to where the first two are equal."""

        def divergence(equal: float) -> float:
            moved, stay = np.array([equal, equal, 1 - 2 * equal]), np.array([p, q, 1 - p - q])
            return float(np.log((moved**order * stay ** (1 - order)).sum()) / (order - 1))

        return float(
            np.sqrt(2 * optimize.minimize_scalar(divergence, bounds=(1e-9, 0.5 - 1e-9), method="bounded").fun / order)
        )

    for found, candidates in (
        (pixeldp_radius(p, q, sigma=1)[0], [pixeldp(e) for e in np.linspace(0.001, 1, 1000)]),
        (renyi_radius(p, q, sigma=1)[0], [renyi(a) for a in 1 + np.geomspace(0.05, 10, 60)]),
    ):
        assert found == pytest.approx(max(candidates), rel=3e-3)


@steady
@given(st.floats(0, 999), st.integers(0, 12))
def test_a_printed_radius_is_no_more_than_the_computed_one(radius: float, digits: int) -> None:
    printed = Decimal(f"{round_down(radius, digits):.{digits}f}")
    assert printed <= Decimal(radius) < printed + Decimal(1).scaleb(-digits)


def test_round_down_of_arrays() -> None:
    assert round_down(np.array([[0.1239, np.inf], [0.0, 5e-324]]), 3).tolist() == [[0.123, np.inf], [0.0, 0.0]]
    with pytest.raises(InputError, match=r"`digits`: expected radii below 1000 for 12, got more; use fewer digits"):
        round_down(1000.0, 12)
    with pytest.raises(InputError, match="`radius`: expected radii of 0 or more, got nan"):
        round_down([0.1, np.nan], 3)


@pytest.mark.parametrize("sigma", [0, -1, np.nan, np.inf])
def test_sigma_must_be_positive(sigma: float) -> None:
    with pytest.raises(InputError, match=r"`sigma`: expected a positive number, got .*; `sigma` is in"):
        one_sided_radius(0.9, sigma=sigma)


def test_bounds_must_be_probabilities() -> None:
    with pytest.raises(InputError, match=r"`lower`: expected numbers from 0 to 1, got 1\.5"):
        one_sided_radius(1.5, sigma=1)
    with pytest.raises(InputError, match="`rival`: expected numbers from 0 to 1, got nan"):
        two_sided_radius(0.5, np.nan, sigma=1)


def test_the_l_bound_of_logits_that_are_not_finite_is_0() -> None:
    """Their softmax is NaN; the other images of the batch keep their radius."""
    rows = [[0.7, 0.2, 0.1], [np.nan] * 3, [np.nan, 0.9, 0.1]]
    assert l_bound(rows, sigma=0.25).round(4).tolist() == [0.1567, 0.0, 0.0]
    assert l_bound([np.nan] * 3, sigma=0.25, k=2) == 0
    with pytest.raises(InputError, match="`probabilities`: expected numbers from 0 to 1, got inf"):
        l_bound([np.inf, 0.0, 0.0], sigma=0.25)
