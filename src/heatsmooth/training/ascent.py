"""Steps of images along gradients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heatsmooth.models import evaluating


def unit(gradient: Tensor) -> Tensor:
    """Each image's gradient at length 1; 0 where it is 0."""
    norm: Tensor = gradient.flatten(1).norm(dim=1).clamp_min(torch.finfo(gradient.dtype).tiny)
    return gradient / norm.view(-1, 1, 1, 1)


def uphill(network: nn.Module, x: Tensor, height: Callable[[Tensor], Tensor], length: float) -> Tensor:
    """x, each image moved by ``length`` (L2) along the gradient of ``height(network(x))``, one number an image.

    The network answers in evaluation mode: the step must not pull batch norm's running statistics towards x.
    """
    x = x.detach().requires_grad_(True)
    with evaluating(network):
        total = height(network(x)).sum()
    (gradient,) = torch.autograd.grad(total, x)
    return x.detach() + length * unit(gradient)
