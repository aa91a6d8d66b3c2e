"""Muon: steps that change every direction of a weight matrix alike, in proportion to the size of the weights.

For a weight W with two or more dimensions, as a matrix with one row per output, and its gradient g:

    B ← μB + g,    O = U·Vᵀ  where  g + μB = U·S·Vᵀ,    W ← W − η · ‖W‖ · O/‖O‖          (norms: Frobenius)

So η is the relative change per step, whatever the scale of weights and losses. This suits networks of others, whose
scales are not known. O is computed by Newton–Schulz iterations (Jordan et al. 2024). Biases and the weights of
normalisations are vectors: they have steps of Adam with the rate η/5.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a·s + b·s³ + c·s⁵. Repeated, it takes singular values from (0, 1] to about 0.7 … 1.2."""
RELATIVE, VECTOR = 0.2, 0.04
"""η of a learning rate of 1, and the rate of Adam."""
LEAST_NORM = 0.1
"""Weights with a smaller norm move as if they had this one, so that weights of 0 can move."""
SECOND_MOMENT, TINY = 0.99, 1e-6
"""Of Adam. Gradients below ``TINY`` are mostly rounding errors, and hardly move a weight."""


class Muon(torch.optim.Optimizer):
    """An optimiser for pretrained networks, whose steps are relative to the size of the weights.

    ``params``: the weights to move. ``lr``: each weight matrix changes by ``lr``/5 of its norm per step.
    ``momentum``: that of the gradients. ``weight_decay``: an L2 penalty on the weights.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move all weights that have a gradient. ``closure``: computes the gradients first, and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            momentum = group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                gradient = weight.grad.add(weight, alpha=group["weight_decay"])
                move, share = (self._matrix, RELATIVE) if weight.ndim >= 2 else (self._vector, VECTOR)
                weight.sub_(move(weight, gradient, momentum), alpha=share * group["lr"])
        return loss

    def _matrix(self, weight: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """The step of a matrix for η = 1."""
        state = self.state[weight]
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(weight))
        buffer.mul_(momentum).add_(gradient)
        direction = orthogonalised(gradient.add(buffer, alpha=momentum).flatten(1)).view_as(weight)
        length: Tensor = weight.norm().clamp_min(LEAST_NORM) / direction.norm().clamp_min(1e-12)
        return direction * length

    def _vector(self, weight: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """The step of a vector for a rate of 1: Adam."""
        state = self.state[weight]
        if not state:
            state.update(step=torch.zeros(()), mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - momentum)
        state["square"].lerp_(gradient.square(), 1 - SECOND_MOMENT)
        done = float(state["step"])
        mean: Tensor = state["mean"] / (1 - momentum**done)
        square: Tensor = state["square"] / (1 - SECOND_MOMENT**done)
        return mean / (square.sqrt() + TINY)


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U·Vᵀ of a matrix U·S·Vᵀ, (rows, columns); a matrix of 0 stays 0.

    Singular values end between 0.5 and 1.5, unless they are below 1e-3 of the norm.
    """
    a, b, c = COEFFICIENTS
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x.div(x.norm().clamp_min(1e-12))
    for _ in range(ITERATIONS):
        squared = x.mm(x.T)
        x = a * x + (b * squared + c * squared.mm(squared)).mm(x)
    return x.T if matrix.shape[0] > matrix.shape[1] else x
