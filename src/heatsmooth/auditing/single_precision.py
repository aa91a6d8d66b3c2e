"""A fast pass of a network that is Lipschitz by construction, for attacks: float32, frozen weights. It proves nothing.

On a CPU, convolutions are faster when the channels are last in memory.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.models import Classifier
from heatsmooth.models.lipschitz import SLL, LipschitzNetwork, Projection

LAST = torch.channels_last


class SinglePrecision(nn.Module):
    """Logits (batch, classes) in float32 with the stored numbers of ``model``, which are copied.

    Only the images get gradients. ``model``: a network that is Lipschitz by construction, in evaluation mode.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        network = model.network if isinstance(model, Classifier) else model
        assert isinstance(network, LipschitzNetwork)
        self.layers = [_frozen(layer) for layer in network.layers]
        self.rows, self.bias = network.last.rows(torch.float32).detach(), network.last.bias.detach()

    def forward(self, images: Tensor) -> Tensor:
        model = self.model
        x = (images - model.mean) / model.std if isinstance(model, Classifier) else images
        for layer in self.layers:
            x = layer(x)
        return F.linear(x.flatten(1), self.rows, self.bias)


def _frozen(layer: nn.Module) -> nn.Module:
    """``layer`` in evaluation mode, in float32."""
    if isinstance(layer, SLL):
        return _Residual(layer)
    if isinstance(layer, Projection):
        return _Mixing(layer)
    return layer


class _Residual(nn.Module):
    """``SLL``: y = x + A relu(W x + b) with A = −Wᵀ diag(scale)."""

    def __init__(self, layer: SLL) -> None:
        super().__init__()
        weight = layer.weight.detach()
        back = -(layer.scale[:, None, None, None] * weight).transpose(0, 1).flip(2, 3)
        self.weight, self.back = weight.contiguous(memory_format=LAST), back.contiguous(memory_format=LAST)
        self.bias = layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=LAST)
        passed: Tensor = _ResidualPass.apply(x, self.weight, self.bias, self.back)  # type: ignore[no-untyped-call]
        return passed


class _ResidualPass(torch.autograd.Function):
    """The derivative of an ``SLL``, I + A Λ W, is symmetric. So the same two convolutions pass the gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, back: Tensor) -> Tensor:
        half = weight.shape[-1] // 2
        hidden = F.conv2d(x, weight, bias, padding=half).relu_()
        ctx.save_for_backward(hidden, weight, back)
        return F.conv2d(hidden, back, padding=half).add_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        hidden, weight, back = ctx.saved_tensors
        half, gradient = weight.shape[-1] // 2, gradients[0].contiguous(memory_format=LAST)
        through = torch.ops.aten.threshold_backward(F.conv2d(gradient, weight, padding=half), hidden, 0)
        return F.conv2d(through, back, padding=half).add_(gradient), None, None, None


class _Mixing(nn.Module):
    """``Projection``."""

    def __init__(self, layer: Projection) -> None:
        super().__init__()
        self.rows = layer.rows.detach()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] == (1, 1):
            return F.linear(x.flatten(1), self.rows)[:, :, None, None]
        return F.conv2d(x, self.rows[:, :, None, None])
