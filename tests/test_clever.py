"""CLEVER: exact for linear networks, as ART's on another, and never called a certificate."""

import numpy as np
import pytest
import torch
from torch import nn

import heatsmooth as hs
from heatsmooth.certification.clever import BALLS, clever
from heatsmooth.settings import Norm
from heatsmooth.statistics.extremes import largest_value, most_value
from tests.conftest import Linear

DUAL = {"l2": 2, "l1": np.inf, "linf": 1}


@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_a_linear_network_has_its_exact_distance(norm: Norm, linear: Linear) -> None:
    """margin / ‖w_c − w_j‖ in the dual norm, for the nearest class; at most the radius of the ball."""
    images = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, weight = linear(images).double().numpy(), linear.weight.double().numpy()
    expected = []
    for row in logits:
        best = int(row.argmax())
        others = [j for j in range(5) if j != best]
        distances = [(row[best] - row[j]) / np.linalg.norm(weight[best] - weight[j], DUAL[norm]) for j in others]
        expected.append(min(*distances, BALLS[norm]))
    np.testing.assert_allclose(clever(linear, images, norm=norm, batches=3, samples=4), expected, rtol=1e-4)


def test_the_score_is_within_the_spread_of_arts_on_the_same_network() -> None:
    pytest.importorskip("art", reason="adversarial-robustness-toolbox is not installed")
    from art.estimators.classification import PyTorchClassifier
    from art.metrics import clever_u

    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    image, ball = torch.rand(1, 1, 4, 4), 0.5
    theirs = PyTorchClassifier(network, nn.CrossEntropyLoss(), (1, 4, 4), 2)
    scores = []
    for seed in range(2):
        np.random.seed(seed)  # it uses the global generator
        scores.append(clever_u(theirs, image[0].numpy(), 10, 50, ball, 2, pool_factor=10, verbose=False))
    own = [clever(network, image, ball=ball, batches=10, samples=50, seed=seed)[0] for seed in range(3)]
    assert min(scores) * 0.97 <= min(own)
    assert max(own) <= max(scores) * 1.03


def test_the_largest_value_is_extrapolated_from_maxima() -> None:
    """Maxima of 100 uniform numbers: the end of the distribution is 1, which no sample reaches."""
    maxima = np.random.default_rng(0).random((60, 100)).max(1)
    estimate = largest_value(maxima)
    assert maxima.max() < estimate <= most_value(maxima)
    assert estimate == pytest.approx(1, abs=2e-3)
    assert largest_value([2.0, 2.0, 2.0]) == 2.0
    with pytest.raises(hs.InputError, match="at least 2"):
        largest_value([1.0])


def test_bad_use_and_logits_that_are_not_finite(linear: Linear) -> None:
    image = torch.rand(1, 1, 4, 4)
    with pytest.raises(hs.InputError, match="`batches`: expected at least 2, got 1"):
        clever(linear, image, batches=1)
    with pytest.raises(hs.InputError, match="`ball`"):
        clever(linear, image, ball=0.0)
    broken = Linear(torch.full((3, 16), float("nan")))
    assert clever(broken, image, batches=2, samples=2).tolist() == [0.0]
