"""A denoiser in front of a classifier: together one network, saved, loaded and certified like any other.

Its architecture is named DENOISER+CLASSIFIER, for example ``dncnn+resnet20`` or
``package.module:denoiser+package.module:network``. A denoiser is any network from noisy to clean images in [0, 1].
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.errors import require

JOINED = "+"
WIDTH, LAYERS = 32, 6
UNIT = 1 / 16


class DnCnn(nn.Module):
    """A small residual denoiser (Zhang et al. 2017): x minus the noise that ``LAYERS`` convolutions see in it.

    New, it leaves images as they are: the last convolution is 0. Its output is in units of ``UNIT``, so that learning
    rates of classifiers suit it. Images: (batch, channels, height, width) in [0, 1].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = [
            layer
            for _ in range(LAYERS - 2)
            for layer in (nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
        ]
        last = nn.Conv2d(WIDTH, channels, 3, padding=1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]  # it has one
        self.noise = nn.Sequential(nn.Conv2d(channels, WIDTH, 3, padding=1), nn.ReLU(), *inner, last)

    def forward(self, images: Tensor) -> Tensor:
        clean: Tensor = images - UNIT * self.noise(images)
        return clean


BUILT_IN: dict[str, Callable[[int], nn.Module]] = {"dncnn": DnCnn}
"""By name, what makes a denoiser of images with this many channels."""


class Denoised(nn.Module):
    """logits = classifier((denoiser(images) − mean) / std). The classifier stays as it is: nothing trains it.

    ``denoiser``: from images in [0, 1] to images. ``classifier``: takes normalised images.
    ``mean``, ``std``: one number per channel; they are saved with the weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, denoiser: nn.Module, classifier: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.classifier = classifier.eval().requires_grad_(False)
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def train(self, mode: bool = True) -> "Denoised":
        """Set the mode of the denoiser alone: the classifier is always in evaluation mode."""
        super().train(mode)
        self.classifier.eval()
        return self

    def forward(self, images: Tensor) -> Any:
        return self.classifier((self.denoiser(images) - self.mean) / self.std)


class OneStepDiffusion(nn.Module):
    """A diffusion model as a denoiser, in one step at the timestep that has this noise (Carlini et al. 2023).

    Images in [0, 1] with noise σ are images in [−1, 1] with noise 2σ. The timestep t is the first one with
    √((1−ᾱ_t)/ᾱ_t) ≥ 2σ. With x_t = √ᾱ_t · (2x − 1), the clean image is (x_t − √(1−ᾱ_t) · ε(x_t, t)) / √ᾱ_t.

    ``unet``: predicts the noise ε from (x_t, t), in its output or its ``.sample``, as ``UNet2DModel`` of diffusers.
    ``alphas_cumprod``: ᾱ, (timesteps,), decreasing, as ``DDPMScheduler(…).alphas_cumprod`` of diffusers.
    ``sigma``: the noise, in [0, 1] pixels.
    """

    def __init__(self, unet: nn.Module, alphas_cumprod: Tensor, sigma: float) -> None:
        super().__init__()
        self.unet = unet
        ratio = ((1 - alphas_cumprod.double()) / alphas_cumprod.double()).sqrt()
        largest = float(ratio[-1]) / 2
        require(0 < sigma <= largest, f"`sigma`: expected above 0, at most {largest:.3g} of the model, got {sigma}")
        self.timestep = int((ratio >= 2 * sigma).nonzero()[0])
        self.kept = float(alphas_cumprod[self.timestep])

    def forward(self, images: Tensor) -> Tensor:
        x = self.kept**0.5 * (2 * images - 1)
        output = self.unet(x, torch.full((len(x),), self.timestep, device=x.device))
        noise: Tensor = getattr(output, "sample", output)
        clean: Tensor = (x - (1 - self.kept) ** 0.5 * noise) / self.kept**0.5
        return (clean.clamp(-1, 1) + 1) / 2
