"""How long a prediction takes: one pass, against the noisy passes of a stochastic model."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from heatsmooth.certification.sampling import CHUNK, Job, Sampler, drawing
from heatsmooth.device import exact_float32
from heatsmooth.models import count_classes, device_of, for_inference
from heatsmooth.results.comparison import Timing
from heatsmooth.runs import provenance
from heatsmooth.statistics.bounds import predict

ALPHA = 0.001
"""PREDICT abstains unless it is surer than this."""


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
) -> Timing:
    """Seconds per image, one image at a time. All ways take turns; medians over ``rounds`` of the images.

    - ``model``: the network.
    - ``images``: (images, channels, height, width), in [0, 1].
    - ``sigma``: noise level of the stochastic model.
    - ``samples``: noisy samples per prediction of the stochastic model.
    - ``seed``: of the noise.
    - ``rounds``: how often each way passes over all images, after one round that is not counted.
    - ``others``: more ways by name, each called with one image (1, channels, height, width).
    """
    ways = _Ways(model, images.to(device_of(model)), sigma, samples, seed)
    timed: dict[str, Callable[[int], None]] = {
        "one_pass_seconds": ways.one_pass,
        "stochastic_seconds": ways.stochastic,
        "plain_seconds": ways.plain,
        "plain_one_pass_seconds": ways.plain_one_pass,
        **{name: partial(_on_one, way, ways.images) for name, way in (others or {}).items()},
    }
    spent: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(rounds + 1):
        for name, way in timed.items():
            seconds = _seconds(way, len(images))
            if turn > 0:
                spent[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    made = provenance()
    return Timing(
        one_pass_seconds=medians.pop("one_pass_seconds"),
        stochastic_seconds=medians.pop("stochastic_seconds"),
        plain_seconds=medians.pop("plain_seconds"),
        plain_one_pass_seconds=medians.pop("plain_one_pass_seconds"),
        samples=samples,
        images=len(images),
        threads=torch.get_num_threads(),
        agreement=ways.agreement,
        commit=made["commit"],
        hardware=made["hardware"],
        other_seconds=medians,
    )


class _Ways:
    """Ways to classify image ``i``, which remember the classes of one pass and of PREDICT."""

    def __init__(self, model: nn.Module, images: Tensor, sigma: float, samples: int, seed: int) -> None:
        self.model, self.images, self.sigma, self.samples = model, images, sigma, samples
        self.number_of_classes = count_classes(model, images[:1])
        self.fast = for_inference(model, images.repeat(-(-CHUNK // len(images)), 1, 1, 1)[:CHUNK])
        self.sampler = Sampler(self.fast, sigma=sigma, classes=self.number_of_classes, seed=seed, batch_size=samples)
        self.one_pass_classes, self.stochastic_classes = dict[int, int](), dict[int, int]()

    @property
    def agreement(self) -> float:
        """How often one pass has the class of PREDICT."""
        same = sum(self.one_pass_classes[i] == self.stochastic_classes[i] for i in self.one_pass_classes)
        return same / len(self.one_pass_classes)

    @torch.inference_mode()
    def one_pass(self, i: int) -> None:
        self.one_pass_classes[i] = int(self.fast(self.images[i : i + 1]).argmax(1))

    def stochastic(self, i: int) -> None:
        ((_, tally),) = self.sampler.run([Job(i, self.images[i], drawing("prediction", self.samples))])
        classes, abstains = predict(tally.counts[None], alpha=ALPHA)
        self.stochastic_classes[i] = -1 if abstains[0] else int(classes[0])

    @torch.inference_mode()
    def plain(self, i: int) -> None:
        copies = self.images[i].repeat(self.samples, 1, 1, 1)
        classes = self.model(copies + self.sigma * torch.randn_like(copies)).argmax(1)
        predict(classes.bincount(minlength=self.number_of_classes).cpu().numpy()[None], alpha=ALPHA)

    @torch.inference_mode()
    def plain_one_pass(self, i: int) -> None:
        int(self.model(self.images[i : i + 1]).argmax(1))


def _on_one(way: Callable[[Tensor], object], images: Tensor, i: int) -> None:
    way(images[i : i + 1])


def _seconds(way: Callable[[int], None], images: int) -> float:
    """Per image, averaged over the images."""
    begin = time.perf_counter()
    for i in range(images):
        way(i)
    return (time.perf_counter() - begin) / images
