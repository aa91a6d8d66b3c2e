"""The methods HeatSmoothing is compared with, each one objective for the same loop. All of them read labels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.attacks import ddn, pgd
from heatsmooth.errors import InputError
from heatsmooth.models import evaluating
from heatsmooth.training.ascent import FixedAverage
from heatsmooth.training.batches import Batch
from heatsmooth.training.settings import Baseline


def clean(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on the images as they are."""
    return {"loss": F.cross_entropy(student(batch.images), _labels(batch))}


def gaussian(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on noisy images (RandomizedSmoothing, Cohen et al. 2019)."""
    noisy = batch.images + choices.sigma * batch.draw.normal(batch.images.shape)
    return {"loss": F.cross_entropy(student(noisy), _labels(batch))}


def smoothadv(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on adversarial images of the averaged network plus noise (SmoothAdv, Salman et al. 2019).

    The attack increases −log mean_i softmax v(x + η_i) over m noise samples, which stay fixed during the attack, with
    the network in evaluation mode. The student is then trained on the adversarial image plus the *same* noise.
    """
    labels, samples = _labels(batch), choices.noise_draws
    noise = choices.sigma * batch.noise(samples)
    averaged = FixedAverage(student, noise)
    with evaluating(student):
        x = _attacked(averaged, batch, choices)
    return {"loss": F.cross_entropy(student((x + noise).flatten(0, 1)), labels.repeat(samples))}


def adversarial(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on adversarial images (Madry et al. 2018), L2."""
    with evaluating(student):
        x = _attacked(student, batch, choices)
    return {"loss": F.cross_entropy(student(x), _labels(batch))}


METHODS = {"clean": clean, "gaussian": gaussian, "smoothadv": smoothadv, "adversarial": adversarial}
"""(student, batch, choices) → the terms of the loss."""


def _attacked(model: nn.Module, batch: Batch, choices: Baseline) -> Tensor:
    eps = choices.radius(batch.epoch)
    if choices.attack == "ddn":
        return ddn(
            model, batch.images, _labels(batch), steps=choices.steps, eps=eps, init_norm=eps, early_stop=False
        ).images
    return pgd(model, batch.images, _labels(batch), eps=eps, steps=choices.steps, early_stop=False).images


def _labels(batch: Batch) -> Tensor:
    if batch.labels is None:
        raise InputError("expected labelled images for a baseline, got images without labels; only `smooth` needs none")
    return batch.labels.to(torch.int64)
