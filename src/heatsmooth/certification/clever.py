"""CLEVER (Weng et al. 2018): an estimate of how far the network itself keeps its class. It guarantees nothing."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import device_of, evaluating
from heatsmooth.noise import mixed_seed
from heatsmooth.settings import Norm
from heatsmooth.statistics.extremes import largest_value, most_value

BALLS: dict[Norm, float] = {"l2": 2.0, "l1": 40.0, "linf": 0.1}
"""By norm, the radius of the ball in which gradients are sampled, unless another is asked for."""
DUAL_ORDER: dict[Norm, float] = {"l2": 2, "l1": float("inf"), "linf": 1}
"""A perturbation of length r changes a function by at most r times this norm of its gradient."""


@exact_float32()
def clever(
    model: nn.Module,
    images: Tensor,
    *,
    norm: Norm = "l2",
    ball: float | None = None,
    batches: int = 50,
    samples: int = 128,
    rivals: int = 9,
    seed: int = 0,
) -> NDArray[np.float64]:
    """CLEVER scores of the network in one pass, (images,): an *estimate* of the radius, not a certificate.

    For each rival j the margin g_j = z_c − z_j of the logits is divided by an estimate of the largest gradient of g_j
    in a ball around the image: min over j of g_j(x) / max‖∇g_j‖, at most the radius of the ball. The maximum is
    extrapolated from the maxima of batches by ``statistics.extremes.largest_value``. The true maximum may be larger.
    Then the score is too large. For a linear network it is the exact distance.

    ``model``: takes images in [0, 1] to logits. ``images``: (images, channels, height, width).
    ``norm``: of the perturbation; gradients are measured in its dual norm.
    ``ball``: its radius, in that norm; by default 2 (l2), 40 (l1) or 0.1 (linf). No score is larger.
    ``batches``, ``samples``: maxima to fit, and gradients per maximum. The paper has 500 and 1,024.
    ``rivals``: how many classes besides the one of the image are looked at: those of the largest logits.
    ``seed``: determines the samples.
    """
    radius = BALLS[norm] if ball is None else ball
    require(radius > 0, f"`ball`: expected a positive number, got {radius}")
    require(batches > 1, f"`batches`: expected at least 2, got {batches}")
    require(min(samples, rivals) > 0, f"`samples`, `rivals`: expected at least 1, got {samples}, {rivals}")
    with evaluating(model):
        scores = [
            _score(model, image.to(device_of(model)), (norm, radius), (batches, samples, rivals), mixed_seed(seed, i))
            for i, image in enumerate(images)
        ]
    return np.array(scores)


def _score(model: nn.Module, image: Tensor, ball: tuple[Norm, float], sizes: tuple[int, int, int], seed: int) -> float:
    """The score of one image; ``ball``: its norm and radius. ``sizes``: batches, samples, rivals."""
    (norm, radius), (batches, samples, rivals) = ball, sizes
    with torch.no_grad():
        logits = model(image[None])[0]
    if not bool(logits.isfinite().all()):
        return 0.0
    order = logits.argsort(descending=True)[: rivals + 1]
    margins = (logits[order[0]] - logits[order[1:]]).double().cpu().numpy()
    generator = torch.Generator().manual_seed(seed)
    maxima = np.stack(
        [
            _largest_slopes(model, image + _in_ball(image, samples, norm, radius, generator), order, norm)
            for _ in range(batches)
        ]
    )
    score = radius
    for margin, slopes in zip(margins.tolist(), maxima.T, strict=True):
        if margin < score * most_value(slopes):
            score = min(score, margin / largest_value(slopes))
    return score


def _largest_slopes(model: nn.Module, points: Tensor, order: Tensor, norm: Norm) -> NDArray[np.float64]:
    """For each rival, the largest dual norm of the gradient of its margin over the points."""
    points = points.detach().requires_grad_(True)
    with torch.enable_grad():
        logits = model(points).sum(0)
    first, *others = (torch.autograd.grad(logits[c], points, retain_graph=True)[0].flatten(1) for c in order)
    slopes = [torch.linalg.vector_norm(first - other, DUAL_ORDER[norm], dim=1).max() for other in others]
    return torch.stack(slopes).double().cpu().numpy()


def _in_ball(image: Tensor, samples: int, norm: Norm, radius: float, generator: torch.Generator) -> Tensor:
    """Points spread evenly over the ball of this norm and radius around 0, (samples, channels, height, width)."""
    shape, size = (samples, *image.shape), image.numel()
    if norm == "linf":
        points = torch.rand(shape, generator=generator) * 2 - 1
    elif norm == "l2":
        points = torch.randn(shape, generator=generator)
        length = torch.rand(samples, generator=generator) ** (1 / size)
        points = points * (length / points.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
    else:
        parts = torch.empty(samples, size + 1).exponential_(generator=generator)
        signs = torch.randint(0, 2, (samples, size), generator=generator) * 2 - 1
        points = (signs * parts[:, 1:] / parts.sum(1, keepdim=True)).view(shape)
    return (radius * points).to(image.device)
