"""``heatsmooth estimate``."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.certify import MAIN_SETTINGS
from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import RUNNING, WHICH, Images, Network, Shard
from heatsmooth.commands.options import grouped
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent
from heatsmooth.settings import check_positive

if TYPE_CHECKING:
    from torch import Tensor

    from heatsmooth.certification.sampling import Procedure, Sampler

MEASURED_SECONDS = 2.0
WARM_UP_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What certifying would cost. Without ``adaptive`` the number of samples is exact, and so is its minimum."""

    command: str = "estimate"
    images: int
    samples: int
    """At most."""
    samples_per_second: float
    """Measured here."""
    device: str
    hours: float
    """At most, on this machine."""
    shards: int
    hours_per_shard: float
    least_samples: int | None = None
    """With ``adaptive``: if every image is decided by its first samples."""
    least_hours: float | None = None
    throughput: float | None = None
    """Samples per second of another machine, as given."""
    device_hours_at_throughput: float | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate(Command):
    """Estimate what certifying would cost, from about two seconds of sampling. Nothing is written.

    Example: heatsmooth estimate --data fashion-mini --from runs/smoothed --sigma 0.25 --n 100000
    """

    images: Images
    network: Network
    settings: Settings = field(metadata=grouped("Certificate", main=MAIN_SETTINGS))
    throughput: float | None = None
    """Samples per second of another machine, for its hours."""
    shard: Shard = field(default=Shard(), metadata=WHICH)
    """Any I/N: the hours of one of N parts."""
    sampling: Sampling = field(default=Sampling(), metadata=grouped("Running"))
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def __post_init__(self) -> None:
        check_positive(self, "throughput")
        more = self.sampling.clever
        require(not more, f"`clever`: expected none, got {more}; only samples of certificates are estimated")

    def run(self, progress: Progress = silent) -> Cost:
        """Measure the speed and compute the cost."""
        import torch

        from heatsmooth.certification.certificates import prepared
        from heatsmooth.certification.sampling import CHUNK
        from heatsmooth.device import accelerator

        images = self.images.load(self.network.size, progress=progress)
        model = self.network.load(images).to(accelerator(self.device).device)
        first = images.images(torch.arange(min(4, len(images))))
        sampler = prepared(model, images, self.settings, self.sampling, first)
        _speed(sampler, first[0], WARM_UP_SECONDS)
        speed = _speed(sampler, first[0], MEASURED_SECONDS)
        settings = self.settings
        before_estimation = 1 + (settings.n0 if settings.class_from == "noise" else 0)
        most = before_estimation + settings.n
        least = len(images) * (before_estimation + min(CHUNK, settings.n)) if settings.adaptive else None
        share = -(-len(images) // self.shard.of)
        samples = len(images) * most
        return Cost(
            images=len(images),
            samples=samples,
            samples_per_second=round(speed, 1),
            device=str(sampler.device),
            hours=samples / speed / 3600,
            shards=self.shard.of,
            hours_per_shard=share * most / speed / 3600,
            least_samples=least,
            least_hours=None if least is None else least / speed / 3600,
            throughput=self.throughput,
            device_hours_at_throughput=None if self.throughput is None else samples / self.throughput / 3600,
        )


def _speed(sampler: "Sampler", image: "Tensor", seconds: float) -> float:
    """Samples per second of one image, measured for so long."""
    from heatsmooth.certification.sampling import Job

    before, begin = sampler.samples, time.monotonic()
    list(sampler.run([Job(0, image, _until(begin + seconds, sampler.batch_size))]))
    return (sampler.samples - before) / (time.monotonic() - begin)


def _until(deadline: float, batch: int) -> "Procedure[None]":
    """Sample whole batches until the time is up."""
    from heatsmooth.certification.sampling import Ask

    yield Ask("estimate", batch)
    while time.monotonic() < deadline:
        yield Ask("estimate", batch)
