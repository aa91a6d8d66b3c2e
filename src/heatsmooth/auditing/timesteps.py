"""Whether timesteps of HeatSmoothing lead to the Gaussian average of the teacher, on a real network.

In theory, n_T timesteps tend to it as n_T grows. The form that is trained, ½‖v − f‖² + h·σ²/2·‖∇v‖², tends to the
average of variance 2σ². With half that weight, it tends to the one of variance σ² (appendix A of the paper). What is
averaged is what was smoothed: the logits or the probabilities of the teacher. Distances are of probabilities.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from heatsmooth.auditing.distances import (
    Floats,
    distances_of,
    mean_interval,
    mean_probabilities,
    probabilities_of_mean_logits,
)
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.models import device_of
from heatsmooth.progress import Progress, silent
from heatsmooth.results.timesteps import Approach, TimestepsResult

SAMPLES = 1000
"""Noise samples per image of each average. A distance of 0 is measured as about 0.01."""


@exact_float32()
def timestep_distances(
    teacher: nn.Module,
    students: Sequence[nn.Module],
    images: ImageSet,
    *,
    sigma: float,
    logits: bool = False,
    n: int = SAMPLES,
    seed: int = 0,
    progress: Progress = silent,
) -> TimestepsResult:
    """The distance of each network in one pass to the averages of ``teacher`` over noise of variance σ² and 2σ².

    - ``teacher``: the network f that was smoothed.
    - ``students``: the network after each timestep, in order.
    - ``images``: on which distances are measured; labels are not read.
    - ``logits``: average the logits of the teacher, not its probabilities: for students that were trained on logits.
    - ``sigma``: that the network was smoothed for. ``n``: noise samples per image. ``seed``: of the noise.
    - ``progress``: is told what is done.
    """
    passes = [_one_pass(network, images) for network in (teacher, *students)]
    average_of = probabilities_of_mean_logits if logits else mean_probabilities
    averages = [
        average_of(teacher, images, sigma=factor**0.5 * sigma, n=n, seed=seed, progress=progress) for factor in (1, 2)
    ]
    near, wide = (
        _approach(passes, average, factor * sigma**2) for factor, average in zip((1, 2), averages, strict=True)
    )
    return TimestepsResult(
        sigma=sigma,
        images=len(images),
        n=n,
        seed=seed,
        average=near,
        wider=wide,
        averaged="logits" if logits else "probabilities",
    )


def _approach(passes: list[Floats], average: Floats, variance: float) -> Approach:
    first, last = (np.linalg.norm(one_pass - average, axis=1) for one_pass in (passes[0], passes[-1]))
    return Approach(
        variance=variance,
        distances={str(step): distances_of(one_pass, average) for step, one_pass in enumerate(passes)},
        closer=float((first - last).mean()),
        closer_interval=mean_interval(first - last),
    )


@torch.inference_mode()
def _one_pass(network: nn.Module, images: ImageSet) -> Floats:
    """Probabilities (images, classes)."""
    network.eval()
    batches = torch.arange(len(images)).split(100)
    rows = [network(images.images(batch).to(device_of(network))).softmax(1).cpu() for batch in batches]
    return torch.cat(rows).double().numpy()
