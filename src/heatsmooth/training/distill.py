"""Distillation without labels into a student that is Lipschitz by construction.

    minimise  E[ D( (r(x) − R·p) / τ,  p ) ],    p = softmax f(x)

f is the teacher, D the cross-entropy, and r(x) the logits of the student in units of radius: with orthogonal rows
of the last layer, r_i − r_j is the distance that the class i withstands from j. The offset R asks for that much radius
beyond what the cross-entropy alone would be content with. τ says from which radius on more radius hardly counts.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.training.batches import Batch
from heatsmooth.training.settings import Distillation


def distillation(student: nn.Module, batch: Batch, *, teacher: nn.Module, choices: Distillation) -> dict[str, Tensor]:
    """The loss, a mean over the batch. ``batch.labels`` is never read.

    ``student``: its logits are r(x) / τ, see ``logit_gain``. ``batch``: images in [0, 1], as both networks see
    them. ``teacher``: the frozen network. ``choices``: R and τ.
    """
    with torch.no_grad():
        target = teacher(batch.images).softmax(1)
    return {"loss": F.cross_entropy(student(batch.images) - choices.radius / choices.softness * target, target)}


def logit_gain(choices: Distillation) -> float:
    """The length of the rows of the student's last layer, with which its logits are r(x) / τ.

    Orthogonal rows of length c are c√2 apart, so logits that differ by m withstand m / (c√2).
    """
    return 1 / (math.sqrt(2) * choices.softness)
