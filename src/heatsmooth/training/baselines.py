"""The methods HeatSmoothing is compared with, each one objective for the same loop. All of them read labels."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.attacks import ddn, log_mean_probability, pgd
from heatsmooth.errors import InputError, require
from heatsmooth.models import evaluating
from heatsmooth.training.batches import Batch


@dataclass(frozen=True)
class Baseline:
    """The choices of a baseline; which ones matter depends on the method."""

    method: Literal["clean", "gaussian", "smoothadv", "adversarial"] = "clean"
    sigma: float = 0.0
    """Noise, for ``gaussian`` and ``smoothadv``, in [0, 1] pixels."""
    eps: float = 0.5
    """L2 radius of the attacks."""
    warmup_epochs: float = 10.0
    """The radius grows linearly over these epochs."""
    steps: int = 4
    attack: Literal["pgd", "ddn"] = "pgd"
    noise_draws: int = 1
    """m: noisy copies of each image in ``smoothadv``."""

    def __post_init__(self) -> None:
        require(self.method in METHODS, f"--method: expected {', '.join(METHODS)}, got {self.method!r}")
        require(self.attack in ("pgd", "ddn"), f"--attack: expected pgd or ddn, got {self.attack!r}")
        noisy = self.method in ("gaussian", "smoothadv")
        require(not noisy or self.sigma > 0, f"--sigma: expected a positive number for {self.method}, got {self.sigma}")
        require(noisy or self.sigma >= 0, f"--sigma: expected 0 or more, got {self.sigma}")
        require(self.eps > 0, f"--eps: expected a positive radius, got {self.eps}")
        require(self.steps > 0, f"--steps: expected at least 1, got {self.steps}")
        require(self.noise_draws > 0, f"--noise-draws: expected at least 1, got {self.noise_draws}")
        require(self.warmup_epochs >= 0, f"--warmup-epochs: expected 0 or more, got {self.warmup_epochs}")

    def radius(self, epoch: float) -> float:
        """ε after this many epochs: linear to ``eps``, and never 0."""
        share = 1.0 if self.warmup_epochs == 0 else min(1.0, epoch / self.warmup_epochs)
        return max(share, 1e-3) * self.eps


def clean(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on the images as they are."""
    return {"loss": F.cross_entropy(student(batch.images), _labels(batch))}


def gaussian(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on noisy images (RandomizedSmoothing, Cohen et al. 2019)."""
    noisy = batch.images + choices.sigma * batch.draw.normal(batch.images.shape)
    return {"loss": F.cross_entropy(student(noisy), _labels(batch))}


def smoothadv(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on adversarial images of the averaged network plus noise (SmoothAdv, Salman et al. 2019).

    The attack climbs −log mean_i softmax v(x + η_i) over m draws, fixed through the attack, with the network in
    evaluation mode; the student is then trained on the adversarial image plus the *same* draws.
    """
    labels, draws = _labels(batch), choices.noise_draws
    noise = choices.sigma * batch.draw.normal((len(batch.images), draws, *batch.images.shape[1:])).transpose(0, 1)
    averaged = _Averaged(student, noise)
    with evaluating(student):
        x = _attacked(averaged, batch, choices)
    return {"loss": F.cross_entropy(student((x + noise).flatten(0, 1)), labels.repeat(draws))}


def adversarial(student: nn.Module, batch: Batch, choices: Baseline) -> dict[str, Tensor]:
    """Cross-entropy on adversarial images (Madry et al. 2018), L2."""
    with evaluating(student):
        x = _attacked(student, batch, choices)
    return {"loss": F.cross_entropy(student(x), _labels(batch))}


METHODS = {"clean": clean, "gaussian": gaussian, "smoothadv": smoothadv, "adversarial": adversarial}
"""(student, batch, choices) → the terms of the loss."""


class _Averaged(nn.Module):
    def __init__(self, model: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.model, self.noise = model, noise

    def forward(self, x: Tensor) -> Tensor:
        return log_mean_probability(self.model, x, self.noise)


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
