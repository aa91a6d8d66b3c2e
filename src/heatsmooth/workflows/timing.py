"""How long a prediction takes: one pass, against the noisy passes of a stochastic model."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.certification.sampling import CHUNK, Job, Sampler, drawing
from heatsmooth.device import exact_float32
from heatsmooth.models import count_classes, device_of, for_inference
from heatsmooth.runs import provenance
from heatsmooth.statistics.bounds import predict


@exact_float32()
def inference_times(
    model: nn.Module,
    images: Tensor,
    *,
    sigma: float,
    samples: int,
    seed: int = 0,
    rounds: int = 5,
    others: Mapping[str, Callable[[Tensor], object]] | None = None,
) -> dict[str, Any]:
    """Seconds an image, one image at a time, all ways taking turns; medians over ``rounds`` of the images.

    ``one_pass_seconds``: one pass of the optimised network. ``stochastic_seconds``: Cohen's PREDICT from ``samples``
    draws with the same optimised network. ``plain_seconds``: PREDICT as its pseudo-code reads, network and memory
    layout as they are. ``plain_one_pass_seconds``: one pass of the network as it is. ``agreement``: how often the class
    of one pass is that of PREDICT, which may abstain. ``others``: more ways by name, each given one image (1, channels,
    height, width).
    """
    images = images.to(device_of(model))
    classes = count_classes(model, images[:1])
    examples = images.repeat(-(-CHUNK // len(images)), 1, 1, 1)[:CHUNK]
    fast = for_inference(model, examples)
    sampler = Sampler(fast, sigma=sigma, classes=classes, seed=seed, batch_size=samples)
    once, often = dict[int, int](), dict[int, int]()

    @torch.inference_mode()
    def one_pass(i: int) -> None:
        once[i] = int(fast(images[i : i + 1]).argmax(1))

    def stochastic(i: int) -> None:
        ((_, tally),) = sampler.run([Job(i, images[i], drawing("prediction", samples))])
        found, abstains = predict(tally.counts[None], alpha=0.001)
        often[i] = -1 if abstains[0] else int(found[0])

    @torch.inference_mode()
    def plain(i: int) -> None:
        copies = images[i].repeat(samples, 1, 1, 1)
        counts = model(copies + sigma * torch.randn_like(copies)).argmax(1).bincount(minlength=classes)
        predict(counts.cpu().numpy()[None], alpha=0.001)

    @torch.inference_mode()
    def plain_one_pass(i: int) -> None:
        int(model(images[i : i + 1]).argmax(1))

    ways: dict[str, Callable[[int], None]] = {
        "one_pass_seconds": one_pass,
        "stochastic_seconds": stochastic,
        "plain_seconds": plain,
        "plain_one_pass_seconds": plain_one_pass,
        **{name: partial(_on_one, way, images) for name, way in (others or {}).items()},
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            seconds = _seconds(way, len(images))
            if turn > 0:
                spent[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    agreeing = sum(once[i] == often[i] for i in once) / len(once)
    made = {name: fact for name, fact in provenance().items() if name in ("commit", "hardware")}
    size = {"samples": samples, "images": len(images), "threads": torch.get_num_threads()}
    return {**medians, **size, "agreement": agreeing, **made}


def _on_one(way: Callable[[Tensor], object], images: Tensor, i: int) -> None:
    way(images[i : i + 1])


def _seconds(way: Callable[[int], None], images: int) -> float:
    """Of one image, on average over the images."""
    begin = time.perf_counter()
    for i in range(images):
        way(i)
    return (time.perf_counter() - begin) / images
