"""Denoised Smoothing (Salman et al. 2020): a denoiser D in front of the classifier f, which stays as it is.

    minimise  E[ ‖D(x+η) − x‖² / (σ²·pixels) + CE(c, f(D(x+η))) ],   c = argmax f(x)

The first term alone is the paper's MSE objective, the second alone its stability objective. Neither needs labels. A
denoiser that does nothing has the value 1 in the first term.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.models import Classifier
from heatsmooth.models.denoisers import Denoised
from heatsmooth.training.batches import Batch
from heatsmooth.training.field import Denoising


def denoising(
    student: nn.Module, batch: Batch, *, teacher: nn.Module, sigma: float, choices: Denoising
) -> dict[str, Tensor]:
    """The terms of the loss, each a mean over the batch. ``batch.labels`` is never read.

    ``student``: a ``Classifier`` of a ``Denoised`` network. ``batch``: images in [0, 1], (batch, channels, height,
    width). ``teacher``: the network without the denoiser. ``sigma``: the noise, in [0, 1] pixels.
    """
    noisy = batch.noisy(sigma, 1)
    seen: list[Tensor] = []
    handle = _denoiser(student).register_forward_hook(lambda _, __, clean: seen.append(clean))
    logits = student(noisy)  # the whole network, as several processes need
    handle.remove()
    terms: dict[str, Tensor] = {}
    if choices.denoiser_loss != "stability":
        terms["mse"] = (seen[0] - batch.images).square().mean() / sigma**2
    if choices.denoiser_loss != "mse":
        with torch.no_grad():
            classes = teacher(batch.images).argmax(1)
        terms["stability"] = F.cross_entropy(logits, classes)
    return terms


def _denoiser(student: nn.Module) -> nn.Module:
    network = getattr(student, "module", student)  # of several processes
    assert isinstance(network, Classifier)
    assert isinstance(network.network, Denoised)
    return network.network.denoiser
