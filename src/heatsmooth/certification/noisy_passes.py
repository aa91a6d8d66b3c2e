"""Single noisy passes of images: to calibrate radii that hold under attack, and to predict with them."""

import math
import secrets

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.certification.sampling import CHUNK
from heatsmooth.data import ImageSet, as_unit_interval
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import checked_classes, device_of, for_inference, images_of_a_pass, probabilities_of
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.results.noisy_passes import NoisyPasses
from heatsmooth.statistics.bounds import Floats, Integers

KEY_BITS = 128
"""Of the secret key of one image: too many to be guessed, or to be drawn twice."""


def noisy_passes(
    model: nn.Module,
    images: ImageSet | Tensor,
    *,
    noise: float,
    count: int = 1000,
    seed: int = 0,
    progress: Progress = silent,
) -> NoisyPasses:
    """Class and doubt of ``count`` noisy passes per image.

    ``model``: returns logits (batch, classes) for images in [0, 1].
    ``images``: (images, channels, height, width) in [0, 1].
    ``noise``: standard deviation τ, in [0, 1] pixels.
    ``seed``: determines the noise, by image and chunk. It need not be secret: these are calibration images.
    """
    require(0 < noise < math.inf, f"`noise`: expected a positive number, got {noise}; that of the average is usual")
    require(count > 0, f"`noise_samples`: expected at least 1, got {count}; 1000 is usual")
    source = images if isinstance(images, ImageSet) else ImageSet.of("images", as_unit_interval(images), None)
    number, device = checked_classes(model, source.shape), device_of(model)
    examples = 0.5 + noise * torch.randn(CHUNK, *source.shape, generator=torch.Generator().manual_seed(0))
    fast = for_inference(model, examples[: images_of_a_pass(device, math.prod(source.shape)) or CHUNK].to(device))
    classes, doubts = np.empty((len(source), count), np.int64), np.empty((len(source), count))
    with exact_float32(), torch.inference_mode():
        for position in range(len(source)):
            image = source.images(torch.tensor([position]))
            for first in range(0, count, CHUNK):
                chunk = slice(first, min(first + CHUNK, count))
                seeded = mixed_seed(seed, "noisy passes", int(source.indices[position]), first)
                rows = _noisy(image, noise, CHUNK, seeded)[: chunk.stop - first]
                probabilities = probabilities_of(fast(rows.to(device)))
                classes[position, chunk], doubts[position, chunk] = _class_and_doubt(probabilities)
            progress("noisy passes", position + 1, len(source))
    return NoisyPasses(classes=classes, doubts=doubts, number_of_classes=number, noise=noise)


def secret_passes(model: nn.Module, images: Tensor, *, noise: float, count: int) -> tuple[Tensor, list[str]]:
    """Probabilities of ``count`` passes per image with fresh secret noise, (images, count, classes), and the keys.

    Each image gets a new key from the operating system's source of randomness, after the image is known. A key, in
    hexadecimal digits, may be told with the answer: it is never used again. It reproduces the answer with
    ``keyed_passes``.

    ``model``: in evaluation mode. ``images``: (images, channels, height, width) in [0, 1].
    """
    keys = [secrets.token_hex(KEY_BITS // 8) for _ in range(len(images))]
    return keyed_passes(model, images, keys, noise=noise, count=count), keys


def keyed_passes(model: nn.Module, images: Tensor, keys: list[str], *, noise: float, count: int) -> Tensor:
    """As ``secret_passes``, with known keys: to check an answer that was given, never to give one."""
    answers = []
    with torch.inference_mode():
        for image, key in zip(images, keys, strict=True):
            generator = np.random.Generator(np.random.Philox(key=int(key, 16)))
            drawn = torch.from_numpy(generator.standard_normal((count, *image.shape), dtype=np.float32))
            rows = (image.cpu() + noise * drawn).to(device_of(model))
            together = images_of_a_pass(device_of(model), rows[0].numel()) or CHUNK
            answers.append(torch.cat([probabilities_of(model(some)) for some in rows.split(together)]))
    return torch.stack(answers)


def _noisy(image: Tensor, noise: float, count: int, seed: int) -> Tensor:
    """``count`` noisy copies of the image (1, channels, height, width)."""
    return image + noise * torch.randn(count, *image.shape[1:], generator=torch.Generator().manual_seed(seed))


def _class_and_doubt(probabilities: Tensor) -> tuple[Integers, Floats]:
    """Of each row of ``probabilities`` (passes, classes)."""
    known = probabilities.isfinite().all(1)
    best = probabilities.argmax(1)
    others = torch.arange(probabilities.shape[1]) != best[:, None]
    doubt = (probabilities * others).sum(1)
    return torch.where(known, best, -1).numpy(), torch.where(known, doubt, 1.0).numpy()
