"""MACER (Zhai et al. 2020), without labels.

    minimise  E[ −log p̄_c + λ·σ/2 · (γ − (Φ⁻¹(q̄₁) − Φ⁻¹(q̄₂)))₊ ]

c is the teacher's class of the clean image, p̄ the mean of softmax v(x+η) over m noisy copies, and q̄ that of
softmax β·v(x+η), with its two largest entries q̄₁ and q̄₂. The second term counts only where q̄₁ is that of c, and where
the margin is at most γ. The paper has the label for c.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.training.batches import Batch
from heatsmooth.training.field import Macer

SMALLEST = 1e-10
"""Smallest probability whose logarithm is taken."""


def macer(student: nn.Module, batch: Batch, *, teacher: nn.Module, sigma: float, choices: Macer) -> dict[str, Tensor]:
    """The terms of the loss, each a mean over the batch. ``batch.labels`` is never read.

    ``student``: the network that is trained. ``batch``: images in [0, 1], (batch, channels, height, width).
    ``teacher``: the frozen network whose class is kept. ``sigma``: the noise, in [0, 1] pixels.
    """
    with torch.no_grad():
        classes = teacher(batch.images).argmax(1)
    copies = choices.radius_copies
    logits = student(batch.noisy(sigma, copies)).unflatten(0, (copies, -1))
    mean = logits.softmax(-1).mean(0)
    margin = _margin((choices.sharpness * logits).softmax(-1).mean(0), classes)
    counted = margin.isfinite() & (margin.abs() <= choices.largest_margin)
    lacking = torch.where(counted, choices.largest_margin - margin.where(counted, 0.0), 0.0)
    return {
        "distance": F.nll_loss((mean + SMALLEST).log(), classes),
        "radius": choices.radius_weight * sigma / 2 * lacking.mean(),
    }


def _margin(q: Tensor, classes: Tensor) -> Tensor:
    """Φ⁻¹(q₁) − Φ⁻¹(q₂), (batch,); infinity where q₁ is not that of ``classes`` or a probability is 0 or 1.

    Where it is infinite, it has no gradient: ``where`` comes before Φ⁻¹, so that none is NaN.
    """
    (first, second), best = q.topk(2).values.T, q.argmax(1)
    usable = (best == classes) & (first < 1) & (second > 0)
    first, second = (torch.where(usable, side, 0.5) for side in (first, second))
    return torch.where(usable, torch.special.ndtri(first) - torch.special.ndtri(second), torch.inf)
