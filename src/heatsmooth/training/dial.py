"""The dial: keep a share of the teacher's answers on clean images, and be as robust as that allows.

A constrained problem, solved within one training:

    minimise  (D(v(x), f(x)) + λ · D(v(x̃), f(x))) / (1 + λ) + λ · penalty
    so that   P[argmax v(x) = argmax f(x)] = keep

This is for λ up to 1. Above, λ first makes the ascent step longer instead (``heat.LONGEST``).

- During the training, λ and the length of the steps follow the agreement on images that are not trained on. It is
  measured on the running mean of the weights: that shows now what the weights will be when the learning rate has
  fallen. Steps are shorter where much is to be kept, because they change answers whatever they are for.
- Afterwards, a point on the line from the teacher's weights through the student's is chosen by bisection, so that the
  agreement on the images that steer is the one that was asked for, or at most ``SLACK`` less.

Two thirds of the held-out images steer both. The share that was reached is measured on the other third.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import evaluating
from heatsmooth.noise import mixed_seed
from heatsmooth.statistics.bounds import clopper_pearson
from heatsmooth.training.batches import images_of

MEASUREMENTS = 40
"""The parts of a training. The agreement is measured after each of them that ends after ``UNTOUCHED``."""
MEASURED = 500
"""Images per measurement, in turn from those that steer."""
REMEMBERED = 0.05
"""The running mean of the weights is over about this share of the steps."""
UNTOUCHED = 0.25
"""The control stays as it is for this share of the steps: the first ones move the weights more than it does."""
INTEGRAL, PROPORTIONAL, LARGEST = 4.0, 8.0, 0.08
"""How far the log of the control moves per measurement and unit of agreement, how far it deviates at once, and the
largest difference of agreement that counts."""
RANGE = (1 / 64, 256.0)
"""Of the control, the product of λ and the pace."""
LAG = 0.03
"""At the full learning rate, the running mean keeps about this much less than it will when the rate has fallen."""
FULL_STEPS = 150
"""All steps together are never shortened to less than this many full ones: a short training needs its steps."""
FARTHEST = 1.5
"""How far beyond the student's weights the last correction may go."""
HALVINGS = 7
SLACK = 0.005
"""A student that misses the share by at most this much, and by at most one standard error of the measurement, is not
moved back towards the teacher: it would lose most of its robustness."""
LEAST, MOST = 60, 10_000
"""Held-out images that are needed, and that are used."""
ERROR = 0.05
"""The interval of the share is wrong with at most this probability."""


@dataclass(frozen=True)
class Kept:
    """The share of the teacher's answers that a student keeps."""

    asked: float
    share: float
    """Measured on ``images`` clean images that neither training nor the dial used."""
    low: float
    high: float
    """Clopper–Pearson interval, 95 %."""
    images: int
    factor: float
    """Where the weights are on the line from the teacher (0) to the trained student (1)."""

    @property
    def more(self) -> str | None:
        """Where the network keeps more than was asked for, because it could not be smoothed more: a sentence."""
        if self.factor < FARTHEST or self.low <= self.asked:
            return None
        return f"more than the {self.asked:g} asked for: the smoothing was at its strongest already"


@dataclass(frozen=True)
class HeldOut:
    """Images that are not trained on, and the teacher's classes of them."""

    images: ImageSet
    classes: Tensor
    """(images,), on the CPU."""
    processes: Accelerator

    @classmethod
    def of(cls, images: ImageSet, teacher: nn.Module, processes: Accelerator) -> "HeldOut":
        """With the classes of the teacher, which is on the device already; at most ``MOST`` images."""
        require(len(images) >= LEAST, f"`held_out`: expected at least {LEAST} images, got {len(images)}; name more")
        some = images.without_labels().sampled(MOST)
        return cls(some, _classes(teacher, some, torch.arange(len(some)), processes.device), processes)

    def _shuffled(self) -> Tensor:
        """The positions in a fixed random order: images may be sorted."""
        order = torch.Generator().manual_seed(mixed_seed("held out") % 2**31)
        return torch.randperm(len(self.classes), generator=order)

    @property
    def steering(self) -> Tensor:
        """The positions of the two thirds that steer."""
        return self._shuffled()[len(self.classes) // 3 :]

    @property
    def measuring(self) -> Tensor:
        """The positions of the third that measures, and that nothing else uses."""
        return self._shuffled()[: len(self.classes) // 3]

    def agreement(self, network: nn.Module, positions: Tensor) -> float:
        """The share of these images for which the network gives the teacher's class. The processes share the work."""
        own = positions[self.processes.process_index :: self.processes.num_processes]
        right = (_classes(network, self.images, own, self.processes.device) == self.classes[own]).sum()
        total = self.processes.reduce(right.to(self.processes.device, torch.float64), "sum")
        return float(total) / len(positions)


@exact_float32()
def _classes(network: nn.Module, images: ImageSet, positions: Tensor, device: torch.device) -> Tensor:
    with evaluating(network), torch.inference_mode():
        parts = [network(images.images(some).to(device)).argmax(1).cpu() for some in positions.split(250)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def without_some(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """The images without about every tenth, and those: at most ``MOST``."""
    stride = max(2, min(10, len(images) // LEAST), len(images) // MOST)
    held_out = images.strided(stride)
    kept = torch.arange(len(images)) % stride != 0
    rest = replace(images, indices=images.indices[kept], rule=f"{images.rule}; without every {stride}.")
    return rest, held_out


def as_images(held_out: ImageSet | Tensor | Iterable[Any]) -> ImageSet:
    """Images as a set: a tensor (images, channels, height, width) in [0, 1], or a loader whose images fit in memory."""
    if isinstance(held_out, ImageSet):
        return held_out
    pixels = held_out if isinstance(held_out, Tensor) else torch.cat([images_of(item) for item in held_out])
    return ImageSet.of("held-out images", pixels, None)


class Dial:
    """Chooses λ, the strength of everything but the clean distance, and the pace of the steps during a training.

    Both are 1 where the control is 1. Its log is the sum of an integral and a proportional part of the difference
    between the agreement and the aim: ``keep``, or a little less while the learning rate is high (``LAG``). The state
    is a few numbers and the running mean of the weights, so that a training of ``steps`` steps can be continued.
    """

    def __init__(self, keep: float, student: nn.Module, held_out: HeldOut, steps: int) -> None:
        self.keep, self.student, self.held_out, self.steps = keep, student, held_out, steps
        self.mean = copy.deepcopy(student).eval().requires_grad_(False)
        self.share = 1.0
        self.integral = math.log(_first_guess(keep))
        self.control = math.exp(self.integral)

    @property
    def strength(self) -> float:
        """λ."""
        return self.control / self.pace

    @property
    def pace(self) -> float:
        """The factor of the learning rate: the root of the control below 1, if the training is long enough."""
        return min(1.0, max(math.sqrt(self.control), FULL_STEPS / self.steps))

    def after(self, done: int, steps: int) -> None:
        """Follow the student after ``done`` of ``steps`` steps."""
        self._average(1 / max(1.0, REMEMBERED * steps))
        every = max(1, steps // MEASUREMENTS)
        if done % every or done < UNTOUCHED * steps:
            return
        steering = self.held_out.steering
        first = done // every * MEASURED % len(steering)
        positions = steering.roll(-first)[:MEASURED]
        measured = self.held_out.agreement(self.mean, positions)
        self.share = measured if self.share == 1 else (self.share + measured) / 2
        aim = self.keep - LAG * self.pace * (1 - done / steps)
        surplus = min(max(self.share - aim, -LARGEST), LARGEST)
        low, high = map(math.log, RANGE)
        self.integral = min(max(self.integral + INTEGRAL * surplus, low), high)
        self.control = math.exp(min(max(self.integral + PROPORTIONAL * surplus, low), high))

    def _average(self, rate: float) -> None:
        for mean, now in zip(self.tensors().values(), _numbers(self.student).values(), strict=True):
            mean.lerp_(now, rate)

    def tensors(self) -> dict[str, Tensor]:
        """What must be saved, and may be written to."""
        return _numbers(self.mean)

    def numbers(self) -> dict[str, float]:
        """What must be saved beside; also for the metrics."""
        state = {"control": self.control, "integral": self.integral, "agreement": self.share}
        return state | {"strength": self.strength, "pace": self.pace}

    def restore(self, numbers: dict[str, float]) -> None:
        """Continue from these numbers; earlier versions had no pace, and λ was the control."""
        self.control = numbers.get("control", numbers["strength"])
        self.integral, self.share = numbers["integral"], numbers["agreement"]


def _first_guess(keep: float) -> float:
    """The control before anything is measured: 1 at 0.85."""
    return min(max(((1 - keep) / 0.15) ** 2, RANGE[0]), RANGE[1])


def _numbers(network: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers that are not whole numbers."""
    return {name: tensor.detach() for name, tensor in network.state_dict().items() if tensor.is_floating_point()}


def corrected(student: nn.Module, teacher: nn.Module, held_out: HeldOut, keep: float) -> Kept:
    """Move the student on the line through the teacher's weights so that it keeps this share; what it keeps then.

    Running statistics of batch norm move with the weights. The agreement is 1 at the teacher, and may be flat between
    the two. The farthest point is chosen that bisection finds to keep the share, at most ``FARTHEST``; a student that
    misses it by less than the error of the measurement (``SLACK``) stays where it is.
    """
    start, end = _numbers(teacher), {name: tensor.clone() for name, tensor in _numbers(student).items()}
    own = _numbers(student)

    def agreement(factor: float) -> float:
        for name, tensor in own.items():
            tensor.copy_(torch.lerp(start[name].to(tensor), end[name], factor))
        return held_out.agreement(student, held_out.steering)

    slack = min(SLACK, math.sqrt(keep * (1 - keep) / len(held_out.steering)))
    factor = _farthest(agreement, keep, slack)
    agreement(factor)
    measuring = held_out.measuring
    share = held_out.agreement(student, measuring)
    low, high = clopper_pearson(round(share * len(measuring)), len(measuring), ERROR)
    return Kept(keep, share, float(low), float(high), len(measuring), factor)


def _farthest(agreement: Callable[[float], float], keep: float, slack: float) -> float:
    """The largest number up to ``FARTHEST`` with this agreement, by bisection; 1 if it has it up to ``slack``.

    >>> round(_farthest(lambda factor: 1 - factor, 0.7, 0.01), 2), _farthest(lambda factor: 1.0, 0.7, 0.01)
    (0.3, 1.5)
    >>> _farthest(lambda factor: 0.695, 0.7, 0.01)
    1.0
    """
    if agreement(FARTHEST) >= keep:
        return FARTHEST
    low, high = (1.0, FARTHEST) if agreement(1.0) >= keep - slack else (0.0, 1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if agreement(middle) >= keep else (low, middle)
    return low
