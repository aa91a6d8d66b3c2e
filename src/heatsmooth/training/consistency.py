"""Consistency regularisation (Jeong and Shin 2020), without labels.

    minimise  E[ 1/m Σᵢ CE(f(x), v(x+ηᵢ)) + λ/m Σᵢ KL(p̄ ‖ pᵢ) + entropy · H(p̄) ]

pᵢ = softmax v(x+ηᵢ), p̄ their mean over m noisy copies. The paper has the label where the teacher f is here.
"""

import torch
from torch import Tensor, nn

from heatsmooth.training.batches import Batch
from heatsmooth.training.field import Consistency
from heatsmooth.training.heat import DISTANCES


def consistency(
    student: nn.Module, batch: Batch, *, teacher: nn.Module, sigma: float, choices: Consistency
) -> dict[str, Tensor]:
    """The terms of the loss, each a mean over the batch. ``batch.labels`` is never read.

    ``student``: the network that is trained. ``batch``: images in [0, 1], (batch, channels, height, width).
    ``teacher``: the frozen network whose probabilities are kept. ``sigma``: the noise, in [0, 1] pixels.
    """
    with torch.no_grad():
        answer = teacher(batch.images)
    copies = choices.consistency_copies
    logits = student(batch.noisy(sigma, copies))
    log_p = logits.log_softmax(1).unflatten(0, (copies, -1))
    log_mean = log_p.logsumexp(0) - torch.tensor(float(copies)).log()
    mean = log_mean.exp()
    divergence = (mean * (log_mean - log_p)).sum(-1)
    return {
        "distance": DISTANCES["cross-entropy"](logits, answer.repeat(copies, 1)).mean(),
        "consistency": choices.consistency * divergence.mean(),
        "entropy": choices.entropy * -(mean * log_mean).sum(-1).mean(),
    }
