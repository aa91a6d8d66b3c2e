"""A step of images along a gradient, and the average that such steps attack."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heatsmooth.attacks import log_mean_probability, unit
from heatsmooth.models import evaluating
from heatsmooth.settings import Norm

__all__ = ["unit", "uphill"]


def uphill(
    network: nn.Module, x: Tensor, height: Callable[[Tensor], Tensor], length: float, norm: Norm = "l2"
) -> Tensor:
    """Each image of ``x`` moved by ``length`` (L2) in the direction in which ``height(network(x))`` grows most.

    ``norm``: which directions are equally long. l2: along the gradient. l1: the value of the largest gradient alone.
    linf: every value by the same amount, in the direction of the sign of the gradient.

    ``x``: (batch, channels, height, width). ``height``: logits → one number per image. The network is in evaluation
    mode during the step, so that the step does not change the running statistics of batch norm.
    """
    x = x.detach().requires_grad_(True)
    with evaluating(network):
        total = height(network(x)).sum()
    (gradient,) = torch.autograd.grad(total, x)
    return x.detach() + length * unit(_steepest(gradient, norm))


def _steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """The direction of steepest ascent among perturbations of the same length in this norm; of any length."""
    if norm == "l2":
        return gradient
    if norm == "linf":
        return gradient.sign()
    flat = gradient.flatten(1)
    strongest = flat.abs().argmax(1, keepdim=True)
    return torch.zeros_like(flat).scatter_(1, strongest, flat.gather(1, strongest)).view_as(gradient)


class FixedAverage(nn.Module):
    """log mean_i softmax network(x + noise_i), (batch, classes), for noise that stays the same.

    ``noise``: (copies, batch, channels, height, width).
    """

    def __init__(self, network: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.network, self.noise = network, noise

    def forward(self, x: Tensor) -> Tensor:
        return log_mean_probability(self.network, x, self.noise)
