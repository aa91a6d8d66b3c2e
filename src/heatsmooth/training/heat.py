"""HeatSmoothing: one epoch, no labels, and the network behaves more like its average over Gaussian noise.

    minimise  T² · E[ D(v(x̃)/T, f(x)/T) + weight · h·σ²/2 · ‖∇ₓu(v(x̃)/T)‖²_F ]          (paper, eq. 3; appendix A)

f is the frozen teacher, v the student, x̃ the image with or without noise, D the distance, T the temperature (1 in the
paper), u the penalised output (logits, probabilities, …), h = 1/n_T the timestep. The factor T² keeps the scale of the
gradient. First the objective, then each of its choices by name. What the choices mean is in ``settings.Heat``.
"""

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor, nn

from heatsmooth.noise import Draw
from heatsmooth.training.ascent import unit, uphill
from heatsmooth.training.batches import Batch
from heatsmooth.training.settings import Heat

SURE = 0.9
"""Largest mean confidence of a teacher whose temperature is chosen."""
HOTTEST = 100.0
"""The largest temperature that is chosen."""
LONGEST = 2.0
"""Where the strength of smoothing is above 1, it first makes the ascent step longer, up to this many times: that brings
larger radii for the clean accuracy that it costs than a larger penalty does."""


def heat_smoothing(
    student: nn.Module, batch: Batch, *, teacher: nn.Module, heat: Heat, strength: float = 1.0
) -> dict[str, Tensor]:
    """The terms of the loss, each a mean over the batch. Their sum is minimised. ``batch.labels`` is never read.

    ``student``: the network that is trained. ``batch``: images in [0, 1], (batch, channels, height, width).
    ``teacher``: the frozen network whose answers are kept. ``heat``: the choices of the objective; without a
    ``temperature``, it is 1 (see ``temperature_of``).
    ``strength``: of smoothing, see ``dial``. From 1 to ``LONGEST`` it multiplies the ascent step, if there is one. What
    is left of it multiplies the penalty and the weight of noisy images beside clean ones.
    """
    temperature = heat.temperature or 1.0
    student = Softened(student, temperature)
    with torch.no_grad():
        answer = teacher(batch.images) / temperature
    x, target, distance = batch.images, answer, DISTANCES[heat.distance]
    is_noisy = torch.zeros((len(x), 1, 1, 1), dtype=torch.bool, device=x.device)
    if heat.noisy_images != "none":
        noisy = x + heat.sigma * batch.draw.noise(heat.noise, x.shape)
        if heat.noisy_images == "copy":
            if heat.ascent:
                longer = min(max(1.0, strength), LONGEST)
                strength, length = strength / longer, longer * heat.ascent * heat.sigma
                noisy = uphill(student, noisy, lambda v: distance(v, answer), length, heat.radius_norm)
            x, target, is_noisy = torch.cat([x, noisy]), torch.cat([answer, answer]), torch.cat([is_noisy, ~is_noisy])
        else:
            is_noisy = batch.draw.uniform((len(x), 1, 1, 1)) < heat.noise_fraction
            x = torch.where(is_noisy, noisy, x)
    logits, squared_gradient = ESTIMATORS[heat.estimator](student, x, batch.draw, heat)
    time = strength * heat.weight * heat.sigma**2 / (2 * heat.timesteps)
    return {
        "distance": temperature**2 * _weighted_mean(distance(logits, target), is_noisy.flatten(), strength),
        "penalty": temperature**2 * time * squared_gradient.mean(),
    }


class Softened(nn.Module):
    """A network with its logits divided by a temperature: the classes stay the same, and are less sure."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits / self.temperature


def temperature_of(logits: Tensor) -> float:
    """The temperature with which a teacher of these logits, (images, classes), is not too sure.

    It is the smallest number from 1 to ``HOTTEST``, in steps of 0.1, for which the mean of the largest probability is
    at most ``SURE``. So a network that is sure of every image also says how probable it finds the other classes.

    >>> temperature_of(torch.tensor([[8.0, 0.0]])), temperature_of(torch.tensor([[2.0, 0.0]]))
    (3.7, 1.0)
    """
    exact = logits.cpu().double()

    def is_unsure(tenths: int) -> bool:
        return bool((10 * exact / tenths).softmax(1).amax(1).mean() <= SURE)

    tenths = range(10, round(10 * HOTTEST))
    return (10 + bisect_left(tenths, True, key=is_unsure)) / 10


def _weighted_mean(values: Tensor, is_noisy: Tensor, weight: float) -> Tensor:
    """The mean over images, where noisy ones have this weight and clean ones 1."""
    if weight == 1:
        return values.mean()
    weights = torch.where(is_noisy, weight, 1.0)
    return (weights * values).sum() / weights.sum()


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

    One clean pass serves all j. Only ĝ is detached: both ends of each difference carry gradients to the weights. ĝ is 0
    where the gradient is 0.
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
    """Mean over κ of ‖u(x + δη) − u(x)‖² / δ², η ~ N(0, I). All noisy copies are computed in one pass."""
    copies = [x + heat.step * draw.normal(x.shape) for _ in range(heat.projections)]
    logits, *moved = student(torch.cat([x, *copies])).chunk(1 + heat.projections)
    u = PENALISED[heat.penalty](logits)
    squares = [(PENALISED[heat.penalty](v) - u).square().sum(1) for v in moved]
    return logits, torch.stack(squares).mean(0) / heat.step**2


def _pair(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """‖u(x + ση) − u(x)‖² / σ², where x + ση is the noisy copy in the batch. It needs no further pass.

    Its mean is ‖∇u‖² to first order in σ for every noise η of independent values with variance 1.
    """
    logits = student(x)
    clean, noisy = PENALISED[heat.penalty](logits).chunk(2)
    return logits, (noisy - clean).square().sum(1) / heat.sigma**2


def _exact(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """‖∇u‖²_F from the whole Jacobian: one backward pass per class."""
    x = x.detach().requires_grad_(True)
    logits = student(x)
    u = PENALISED[heat.penalty](logits)
    rows = [torch.autograd.grad(u[:, c].sum(), x, create_graph=True)[0] for c in range(u.shape[1])]
    return logits, torch.stack([row.flatten(1).square().sum(1) for row in rows]).sum(0)


def _none(student: nn.Module, x: Tensor, draw: Draw, heat: Heat) -> tuple[Tensor, Tensor]:
    """No penalty."""
    return student(x), torch.zeros(len(x), device=x.device)


ESTIMATORS = {"projection": _projection, "direction": _direction, "pair": _pair, "exact": _exact, "none": _none}
"""(student, x, draw, heat) → logits v(x) and an estimate of ‖∇ₓu(v(x))‖²_F per image."""
