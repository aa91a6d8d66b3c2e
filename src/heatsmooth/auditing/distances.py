"""How far one pass of a network is from an average over noise, in probabilities."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.certification.sampling import Job, Sampler, drawing
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.models import count_classes, device_of, for_inference
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.results.audit import Distances

Floats = NDArray[np.float64]
AT_ONCE = 100
"""Samples of one pass."""


def mean_probabilities(
    model: nn.Module,
    images: ImageSet,
    *,
    sigma: float,
    n: int,
    seed: int = 0,
    positions: Tensor | None = None,
    progress: Progress = silent,
) -> Floats:
    """Monte Carlo mean of softmax model(x + η) over ``n`` samples of η ~ N(0, σ²I), (images, classes).

    ``positions``: of the images that are averaged; all, if None. The noise of an image does not depend on the others.
    """
    every = torch.arange(len(images)) if positions is None else positions
    examples = images.images(every[:4]).to(device_of(model))
    classes = count_classes(model, examples)
    sampler = Sampler(for_inference(model, examples), sigma=sigma, classes=classes, seed=seed)
    jobs = (Job(int(i), images.images(i.view(1))[0], drawing("teacher", n)) for i in every)
    means, before = dict[int, Floats](), 0 if positions is None else int(positions[0])
    for number, (job, tally) in enumerate(sampler.run(jobs), start=1):
        means[job.index] = tally.sums / tally.n
        progress("averaging the teacher", before + number, len(images))
    return np.stack([means[i] for i in every.tolist()])


@exact_float32()
@torch.inference_mode()
def probabilities_of_mean_logits(
    model: nn.Module, images: ImageSet, *, sigma: float, n: int, seed: int = 0, progress: Progress = silent
) -> Floats:
    """Softmax of the Monte Carlo mean of model(x + η) over ``n`` samples of η ~ N(0, σ²I), (images, classes)."""
    device, every = device_of(model), torch.arange(len(images))
    fast = for_inference(model, images.images(every[:4]).to(device))
    rows = []
    for i in every.tolist():
        image = images.images(every[i : i + 1])
        generator = torch.Generator().manual_seed(mixed_seed(seed, "teacher logits", i) % 2**32)
        sums = [
            fast((image + sigma * torch.randn(len(some), *image.shape[1:], generator=generator)).to(device))
            .double()
            .sum(0)
            for some in torch.arange(n).split(AT_ONCE)
        ]
        rows.append((torch.stack(sums).sum(0) / n).softmax(0).cpu())
        progress("averaging the teacher's logits", i + 1, len(images))
    return torch.stack(rows).numpy()


def distances_of(one_pass: Floats, average: Floats) -> Distances:
    """L2 distances of probabilities over images."""
    distances = np.linalg.norm(one_pass - average, axis=1)
    return Distances(
        mean=float(distances.mean()),
        interval=mean_interval(distances),
        median=float(np.median(distances)),
        largest=float(distances.max()),
    )


def mean_interval(values: Floats) -> tuple[float, float] | None:
    """A 95 % interval of the mean over images; None for one image."""
    if len(values) < 2:
        return None
    mean, error = float(values.mean()), 1.96 * float(values.std(ddof=1)) / float(np.sqrt(len(values)))
    return mean - error, mean + error
