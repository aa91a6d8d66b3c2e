"""``certify --estimate``: what a run will cost, from a second or two of it."""

import time
from typing import Any

import torch

from heatsmooth.certification.certificates import prepared
from heatsmooth.certification.sampling import CHUNK, Ask, Job, Procedure
from heatsmooth.certification.settings import Settings
from heatsmooth.device import accelerator
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent
from heatsmooth.workflows.inputs import Images, Network

MEASURED_SECONDS = 2.0
WARM_UP_SECONDS = 0.5


def estimate_run(
    *,
    network: Network,
    images: Images,
    settings: Settings,
    shards: int = 1,
    throughput: float | None = None,
    compiled: bool = False,
    seed: int = 0,
    device: str | None = None,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Samples, and hours here and at another ``throughput`` (samples a second), of a certification; nothing is kept.

    ``shards`` share the images; the largest share decides the duration. Adaptive sampling ends between ``least`` and
    most: the least is one chunk of draws for each image.
    """
    require(throughput is None or throughput > 0, f"--throughput: expected a positive number, got {throughput}")
    chosen = images.load(network.side, progress=progress)
    model = network.load(chosen).to(accelerator(device).device)
    first = chosen.images(torch.arange(min(4, len(chosen))))
    sampler = prepared(model, chosen, settings, first, seed=seed, batch_size=batch_size, compiled=compiled)
    image = first[0]
    list(sampler.run([Job(0, image, _until(time.monotonic() + WARM_UP_SECONDS, sampler.batch_size))]))
    before, begin = sampler.samples, time.monotonic()
    list(sampler.run([Job(0, image, _until(begin + MEASURED_SECONDS, sampler.batch_size))]))
    speed = (sampler.samples - before) / (time.monotonic() - begin)
    selection = settings.n0 if settings.class_from == "noise" else 0
    most = 1 + selection + settings.n
    least = 1 + selection + min(CHUNK, settings.n) if settings.adaptive else most
    share = -(-len(chosen) // shards)
    facts: dict[str, Any] = {
        "command": "certify --estimate",
        "images": len(chosen),
        "samples": len(chosen) * most,
        "samples_per_second": round(speed, 1),
        "device": str(sampler.device),
        "hours": len(chosen) * most / speed / 3600,
        "shards": shards,
        "hours_a_shard": share * most / speed / 3600,
    }
    if settings.adaptive:
        facts |= {"least_samples": len(chosen) * least, "least_hours": len(chosen) * least / speed / 3600}
    if throughput is not None:
        facts |= {"throughput": throughput, "device_hours_at_throughput": len(chosen) * most / throughput / 3600}
    return facts


def _until(deadline: float, batch: int) -> Procedure[None]:
    """Draw whole batches until the time is up."""
    yield Ask("estimate", batch)
    while time.monotonic() < deadline:
        yield Ask("estimate", batch)
