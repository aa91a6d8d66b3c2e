import copy

import pytest
import torch
from torch import nn

from heatsmooth.training.muon import RELATIVE, VECTOR, Muon, orthogonalised


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5), (1, 9)])
def test_the_directions_of_a_matrix_become_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape) * 1000
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.T @ orthogonalised(matrix) @ vt.T
    assert ((inner.diagonal() > 0.5) & (inner.diagonal() < 1.5)).all()
    assert (inner - inner.diagonal().diag()).abs().max() < 1e-3
    assert not orthogonalised(torch.zeros(shape)).any()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))


def trained(scale: float) -> nn.Sequential:
    """The network after three steps on a loss of this scale."""
    model = network()
    steps = Muon(model.parameters(), lr=0.05)
    for step in range(3):
        images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        steps.zero_grad()
        (scale * model(images).logsumexp(1).mean()).backward()
        steps.step()
    return model


def test_a_step_is_relative_to_the_weights_whatever_the_scale_of_the_loss() -> None:
    before, model = network(), network()
    model(torch.randn(4, 3, 8, 8)).square().mean().backward()
    Muon(model.parameters(), lr=0.05).step()
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        if old.ndim >= 2:
            assert float((new - old).detach().norm() / old.detach().norm()) == pytest.approx(0.05 * RELATIVE, rel=1e-3)
    for a, b in zip(trained(1.0).parameters(), trained(1024.0).parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_vectors_have_the_steps_of_adam() -> None:
    weight = nn.Parameter(torch.randn(20, generator=torch.Generator().manual_seed(0)))
    other = copy.deepcopy(weight)
    muon, adam = Muon([weight], lr=0.05), torch.optim.Adam([other], lr=0.05 * VECTOR, betas=(0.9, 0.99), eps=1e-6)
    for _ in range(4):
        for optimizer, moved in ((muon, weight), (adam, other)):
            optimizer.zero_grad()
            moved.sin().sum().backward()
            optimizer.step()
    torch.testing.assert_close(weight, other)


def test_a_weight_of_zeros_moves_and_one_without_gradient_stays() -> None:
    zeros, still = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.ones(3, 4))
    (zeros * torch.arange(12.0).view(3, 4)).sum().backward()
    Muon([zeros, still], lr=0.05).step()
    assert zeros.any()
    assert (still == 1).all()
