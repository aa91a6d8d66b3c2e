"""Smoothed and averaged networks in foolbox and ART: the same functions, the same images, the same answers."""

import sys
import warnings

import numpy as np
import pytest
import torch

from heatsmooth import GaussianAverage, InputError
from heatsmooth.attacks import is_wrong
from heatsmooth.peers import art_classifier, art_smoothing, foolbox_model
from tests.conftest import Linear

with warnings.catch_warnings(action="ignore"):  # of their own imports
    import foolbox
    from art.attacks.evasion import ProjectedGradientDescent


@pytest.fixture
def images() -> torch.Tensor:
    """Away from the walls of the box, so that distances to a linear boundary are known."""
    return 0.5 + 0.05 * torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def distance_to_boundary(linear: Linear, images: torch.Tensor) -> torch.Tensor:
    """To the nearest other class, in closed form."""
    logits = linear(images)
    own = logits.argmax(1)
    gaps = logits.gather(1, own[:, None]) - logits
    norms = (linear.weight[own][:, None] - linear.weight).norm(dim=2)
    return torch.where(norms > 0, gaps / norms, torch.inf).min(1).values.detach()


def test_a_foolbox_attack_finds_the_boundary_of_a_linear_network(linear: Linear, images: torch.Tensor) -> None:
    linear.eval()
    labels = linear(images).argmax(1)
    attack = foolbox.attacks.L2DeepFoolAttack(overshoot=1e-4)
    _, found, success = attack(foolbox_model(linear), images, labels, epsilons=None)
    assert bool(success.all())
    torch.testing.assert_close(
        (found - images).flatten(1).norm(dim=1), distance_to_boundary(linear, images), rtol=1e-2, atol=0
    )


def test_an_average_drops_into_foolbox_and_art(linear: Linear, images: torch.Tensor) -> None:
    average = GaussianAverage(linear, sigma=0.25, samples=10).eval()
    labels = average(images).argmax(1)
    peer = foolbox_model(average)
    torch.testing.assert_close(peer(images), average(images).detach())
    _, found, success = foolbox.attacks.L2PGD(steps=10)(peer, images, labels, epsilons=2.0)
    assert torch.equal(success, is_wrong(average(found), labels))
    assert bool(success.any())
    np.testing.assert_allclose(
        art_classifier(average, images).predict(images.numpy()), average(images).detach().numpy(), rtol=1e-5
    )


def test_an_art_attack_stays_in_the_box_and_breaks_the_network(linear: Linear, images: torch.Tensor) -> None:
    linear.eval()
    peer = art_classifier(linear, images)
    assert peer.nb_classes == 5
    labels = linear(images).argmax(1)
    radius = float(1.5 * distance_to_boundary(linear, images).max())
    attack = ProjectedGradientDescent(peer, norm=2, eps=radius, eps_step=radius / 10, max_iter=30, verbose=False)
    found = torch.from_numpy(attack.generate(images.numpy(), labels.numpy()))
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert float((found - images).flatten(1).norm(dim=1).max()) <= radius * 1.001
    assert bool(is_wrong(linear(found), labels).any())


def test_art_certifies_what_we_certify(linear: Linear, images: torch.Tensor) -> None:
    from heatsmooth import certify

    linear.eval()
    np.random.seed(0)
    classes, radii = art_smoothing(linear, images, sigma=0.25).certify(images.numpy(), n=2000, batch_size=500)
    ours = certify(linear, images, sigma=0.25, n=2000)
    for i in range(len(images)):
        if not ours.abstained[i] and radii[i] > 0:
            assert classes[i] == ours.classes[i]
            assert abs(radii[i] - ours.radii[i]) < 0.1
    assert not ours.abstained.all()


def test_what_would_mislead_is_refused(linear: Linear, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (foolbox_model, lambda model: art_classifier(model, images)):
        with pytest.raises(InputError, match="evaluation mode"):
            make(linear.train())
    linear.eval()
    with pytest.raises(InputError, match="`sigma`: expected"):
        art_smoothing(linear, images, sigma=0)
    with pytest.raises(InputError, match="takes images of 1×5×5"):
        art_classifier(linear, torch.rand(1, 1, 5, 5))
    monkeypatch.setitem(sys.modules, "foolbox", None)
    monkeypatch.setitem(sys.modules, "art.estimators.classification", None)
    for use in (foolbox_model, lambda model: art_classifier(model, images)):
        with pytest.raises(InputError, match=r"pip install 'heatsmooth\[peers\]'"):
            use(linear)
