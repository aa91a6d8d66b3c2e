"""A step of images along a gradient, and the average that such steps attack."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heatsmooth.attacks import log_mean_probability, unit
from heatsmooth.models import evaluating

__all__ = ["unit", "uphill"]


def uphill(network: nn.Module, x: Tensor, height: Callable[[Tensor], Tensor], length: float) -> Tensor:
    """Each image of ``x`` moved by ``length`` (L2) along the gradient of ``height(network(x))``.

    ``x``: (batch, channels, height, width). ``height``: logits → one number per image. The network is in evaluation
    mode during the step, so that the step does not change the running statistics of batch norm.
    """
    x = x.detach().requires_grad_(True)
    with evaluating(network):
        total = height(network(x)).sum()
    (gradient,) = torch.autograd.grad(total, x)
    return x.detach() + length * unit(gradient)


class FixedAverage(nn.Module):
    """log mean_i softmax network(x + noise_i), (batch, classes), for noise that stays the same.

    ``noise``: (copies, batch, channels, height, width).
    """

    def __init__(self, network: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.network, self.noise = network, noise

    def forward(self, x: Tensor) -> Tensor:
        return log_mean_probability(self.network, x, self.noise)
