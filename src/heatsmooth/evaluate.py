"""Accuracy in one pass, clean and under noise."""

import torch
from torch import nn

from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.models import device_of, evaluating, for_inference, images_of_a_pass
from heatsmooth.noise import Draw
from heatsmooth.progress import Progress, silent
from heatsmooth.settings import Noise

TOGETHER = 250
"""Images evaluated together, at most."""


@exact_float32()
def accuracy(
    model: nn.Module,
    images: ImageSet,
    *,
    sigma: float = 0.0,
    noise: Noise = "gaussian",
    seed: int = 0,
    progress: Progress = silent,
) -> float:
    """The share of images classified correctly in one pass.

    ``sigma``: if above 0, noise of this standard deviation is added to each image. ``noise``: its distribution.
    ``seed``: determines that noise.
    """
    labels = images.known_labels()
    device = device_of(model)
    right = 0
    with evaluating(model), torch.inference_mode():
        fast = for_inference(model, images.images(torch.arange(min(50, len(images)))).to(device))
        for first in range(0, len(images), TOGETHER):
            positions = torch.arange(first, min(first + TOGETHER, len(images)))
            x = images.images(positions).to(device)
            if sigma > 0:
                x = x + sigma * Draw(seed, "accuracy", first, device=device).noise(noise, x.shape)
            passes = x.split(images_of_a_pass(device, x[0].numel()) or TOGETHER)
            right += int((torch.cat([fast(some).argmax(1) for some in passes]).cpu() == labels[positions]).sum())
            progress("testing", int(positions[-1]) + 1, len(images))
    return right / len(images)
