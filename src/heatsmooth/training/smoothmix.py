"""SmoothMix (Jeong et al. 2021), without labels.

    minimise  E[ 1/m Σᵢ CE(f(x), v(x+ηᵢ)) + η/m Σᵢ 1[c̄ = c] · KL(y ‖ v(x̃+ηᵢ)) ],
    x̃ = (1−λ)·x + λ·x′,   y = (1−λ)·p̄(x) + λ/classes,   λ uniform in [0, ½)

p̄ is the mean of softmax v over m noisy copies, c̄ its class, c the teacher's class, and x′ the image after T steps
uphill of −log p̄_c within [0, 1]. All parts use the same noise. The paper has the label where the teacher f is here.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.training.ascent import FixedAverage, uphill
from heatsmooth.training.batches import Batch
from heatsmooth.training.field import SmoothMix
from heatsmooth.training.heat import DISTANCES


def smoothmix(
    student: nn.Module, batch: Batch, *, teacher: nn.Module, sigma: float, choices: SmoothMix
) -> dict[str, Tensor]:
    """The terms of the loss, each a mean over the batch. ``batch.labels`` is never read.

    ``student``: the network that is trained. ``batch``: images in [0, 1], (batch, channels, height, width).
    ``teacher``: the frozen network whose probabilities are kept. ``sigma``: the noise, in [0, 1] pixels.
    """
    with torch.no_grad():
        answer = teacher(batch.images)
    classes, copies, x = answer.argmax(1), choices.mix_copies, batch.images
    noise = sigma * batch.noise(copies)
    logits = student((x + noise).flatten(0, 1))
    mean = logits.softmax(1).unflatten(0, (copies, -1)).mean(0)
    share = batch.draw.uniform((len(x), 1)) / 2
    far = _attacked(FixedAverage(student, noise), x, classes, choices, sigma)
    mixed = torch.lerp(x, far, share[:, :, None, None])
    target = torch.lerp(mean, torch.full_like(mean, 1 / mean.shape[1]), share)
    log_p = student((mixed + noise).flatten(0, 1)).log_softmax(1).unflatten(0, (copies, -1))
    divergence = (target * (target.clamp_min(1e-20).log() - log_p)).sum(-1)
    agreed = (mean.argmax(1) == classes).float()
    return {
        "distance": DISTANCES["cross-entropy"](logits, answer.repeat(copies, 1)).mean(),
        "mixed": choices.mix_weight * (agreed * divergence).mean(),
    }


def _attacked(average: nn.Module, x: Tensor, classes: Tensor, choices: SmoothMix, sigma: float) -> Tensor:
    """``x`` after some steps uphill of −log p̄ of its class, each of the same length (L2), within [0, 1]."""
    length = choices.mix_step * sigma
    for _ in range(choices.mix_steps):
        x = uphill(average, x, lambda log_p: F.nll_loss(log_p, classes, reduction="none"), length).clamp(0, 1)
    return x
