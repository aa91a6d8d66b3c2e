"""HeatSmoothing: one epoch, no labels, and the network behaves as if averaged over Gaussian noise.

    minimise  E[ D(v(x̃), f(x)) + weight · h·σ²/2 · ‖∇ₓu(v(x̃))‖²_F ]          (paper, eq. 3; appendix A)

f is the frozen teacher, v the student, x̃ the image with or without noise, D the distance, u what is penalised
(logits, probabilities, …), h = 1/n_T the timestep. Below, the objective; then each of its choices by name.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heatsmooth.errors import require
from heatsmooth.noise import Draw
from heatsmooth.training.ascent import unit, uphill
from heatsmooth.training.batches import Batch


def heat_smoothing(student: nn.Module, batch: Batch, *, teacher: nn.Module, heat: "Heat") -> dict[str, Tensor]:
    """The terms of the loss, each a mean over the batch; their sum is minimised. ``batch.labels`` is never read."""
    with torch.no_grad():
        answer = teacher(batch.images)
    x, target, distance = batch.images, answer, DISTANCES[heat.distance]
    if heat.noise != "none":
        noisy = x + heat.sigma * batch.draw.normal(x.shape)
        if heat.noise == "copy":
            if heat.ascent:
                noisy = uphill(student, noisy, lambda v: distance(v, answer), heat.ascent * heat.sigma)
            x, target = torch.cat([x, noisy]), torch.cat([answer, answer])
        else:
            chosen = batch.draw.uniform((len(x), 1, 1, 1)) < heat.noise_fraction
            x = torch.where(chosen, noisy, x)
    logits, squared_gradient = ESTIMATORS[heat.estimator](student, x, batch.draw, heat)
    time = heat.weight * heat.sigma**2 / (2 * heat.timesteps)
    return {"distance": distance(logits, target).mean(), "penalty": time * squared_gradient.mean()}


@dataclass(frozen=True)
class Heat:
    """The choices of HeatSmoothing. The defaults are the preset ``bootcamp``."""

    sigma: float
    """Standard deviation of the Gaussian, in [0, 1] pixels."""
    distance: Literal["squared-logits", "squared-probabilities", "cross-entropy"] = "cross-entropy"
    """Between student and teacher: ½‖v − f‖², ½‖softmax v − softmax f‖², or −Σ softmax f · log softmax v."""
    penalty: Literal["logits", "probabilities", "fisher"] = "fisher"
    """Whose gradient is penalised: the logits', the probabilities', or the probabilities' in the Fisher metric."""
    estimator: Literal["projection", "direction", "pair", "exact", "none"] = "pair"
    """Of ‖∇u‖²_F: κ random projections, κ random input directions, the direction of each image's noisy copy, or the
    whole Jacobian; or no penalty."""
    projections: int = 1
    """κ, of ``projection`` and ``direction``."""
    delta: float | None = None
    """Finite difference: length of the step (``projection``) or its deviation a pixel (``direction``); None is σ."""
    scaling: Literal["paper", "unbiased"] = "unbiased"
    """Of ``projection``: the paper's sum has mean κ/classes · ‖∇u‖²_F; ``unbiased`` has mean ‖∇u‖²_F."""
    weight: float = 1.0
    """Multiplies the penalty. 1 is the paper's vector form, which heats for twice the time of eq. 2; ½ is the
    heat equation's own time (appendix A, scalar form)."""
    noise: Literal["none", "fraction", "copy"] = "copy"
    """Clean images, noise on each image with probability ``noise_fraction``, or a clean and a noisy copy of each."""
    noise_fraction: float = 0.5
    ascent: float = 1.0
    """How far, in multiples of σ (L2 of the whole image), noisy copies step up the gradient of their distance D."""
    timesteps: int = 1
    """n_T: after each, the student becomes the teacher of the next."""

    def __post_init__(self) -> None:
        require(self.sigma > 0, f"--sigma: expected a positive number, got {self.sigma}")
        require(self.delta is None or self.delta > 0, f"--delta: expected a positive number, got {self.delta}")
        require(self.projections > 0, f"--projections: expected at least 1, got {self.projections}")
        require(self.timesteps > 0, f"--timesteps: expected at least 1, got {self.timesteps}")
        require(self.weight >= 0, f"--penalty-weight: expected 0 or more, got {self.weight}")
        require(self.ascent >= 0, f"--ascent: expected 0 or more, got {self.ascent}")
        require(
            self.noise == "copy" or self.estimator != "pair",
            f"--noise: expected copy with --estimator pair, got {self.noise}; or choose --estimator direction",
        )
        require(
            0 <= self.noise_fraction <= 1, f"--noise-fraction: expected a number from 0 to 1, got {self.noise_fraction}"
        )
        for name, known in (("distance", DISTANCES), ("penalty", PENALISED), ("estimator", ESTIMATORS)):
            require(getattr(self, name) in known, f"--{name}: expected {', '.join(known)}, got {getattr(self, name)!r}")

    def describe(self) -> dict[str, Any]:
        """What a run records; ``ascent`` only where there are noisy copies to move."""
        return {name: value for name, value in asdict(self).items() if name != "ascent" or self.noise == "copy"}

    @property
    def step(self) -> float:
        """δ."""
        return self.sigma if self.delta is None else self.delta


def _half_squared(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum(1) / 2


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared-logits": _half_squared,
    "squared-probabilities": lambda v, f: _half_squared(v.softmax(1), f.softmax(1)),
    "cross-entropy": lambda v, f: -(f.softmax(1) * v.log_softmax(1)).sum(1),
}
"""D(student logits, teacher logits), (batch, classes) → (batch,)."""

PENALISED: dict[str, Callable[[Tensor], Tensor]] = {
    "logits": lambda v: v,
    "probabilities": lambda v: v.softmax(1),
    "fisher": lambda v: 2 * (v.log_softmax(1) / 2).exp(),
}
"""u(logits). The Fisher metric of the probabilities p is the Euclidean one of 2√p."""


def _projection(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """Appendix B: Σ_j ((w_j·u(x + δĝ_j) − w_j·u(x)) / δ)², ĝ_j the normalised gradient of w_j·u.

    One clean pass serves all j.
    Only ĝ is detached: both ends of each difference carry gradients to the weights. Where the gradient is 0, so is ĝ.
    """
    x = x.detach().requires_grad_(True)
    logits = student(x)
    u = PENALISED[heat.penalty](logits)
    classes = u.shape[1]
    total = torch.zeros(len(x), device=x.device)
    for _ in range(heat.projections):
        w = draw.normal(u.shape) / classes**0.5
        (gradient,) = torch.autograd.grad(u, x, w, retain_graph=True)
        moved = PENALISED[heat.penalty](student(x.detach() + heat.step * unit(gradient)))
        total = total + ((w * (moved - u)).sum(1) / heat.step).square()
    return logits, total if heat.scaling == "paper" else total * classes / heat.projections


def _direction(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """Mean over κ of ‖u(x + δη) − u(x)‖² / δ², η ~ N(0, I): the same mean, all copies in one pass."""
    copies = [x + heat.step * draw.normal(x.shape) for _ in range(heat.projections)]
    logits, *moved = student(torch.cat([x, *copies])).chunk(1 + heat.projections)
    u = PENALISED[heat.penalty](logits)
    squares = [(PENALISED[heat.penalty](v) - u).square().sum(1) for v in moved]
    return logits, torch.stack(squares).mean(0) / heat.step**2


def _pair(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """‖u(x + ση) − u(x)‖² / σ², x + ση the noisy copy that is in the batch already, uphill or not: no further pass."""
    logits = student(x)
    clean, noisy = PENALISED[heat.penalty](logits).chunk(2)
    return logits, (noisy - clean).square().sum(1) / heat.sigma**2


def _exact(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """‖∇u‖²_F from the whole Jacobian, one backward pass a class."""
    x = x.detach().requires_grad_(True)
    logits = student(x)
    u = PENALISED[heat.penalty](logits)
    rows = [torch.autograd.grad(u[:, c].sum(), x, create_graph=True)[0] for c in range(u.shape[1])]
    return logits, torch.stack([row.flatten(1).square().sum(1) for row in rows]).sum(0)


def _none(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """No penalty."""
    return student(x), torch.zeros(len(x), device=x.device)


ESTIMATORS = {"projection": _projection, "direction": _direction, "pair": _pair, "exact": _exact, "none": _none}
"""(student, x, draw, heat) → logits v(x) and an estimate of ‖∇ₓu(v(x))‖²_F, one an image."""
