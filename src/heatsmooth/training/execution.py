"""Where a training runs, what it reads, and the frozen teacher beside it."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from heatsmooth.data import ImageSet, ImageStream
from heatsmooth.device import accelerator
from heatsmooth.errors import require
from heatsmooth.models import for_inference
from heatsmooth.progress import Progress, silent
from heatsmooth.training.batches import Feed, LoaderFeed, SetFeed, StreamFeed
from heatsmooth.training.loop import STATE_FILE, Follower, Objective, finished_stages, fit, restore_student
from heatsmooth.training.settings import Plan, Saving

Source = ImageSet | ImageStream | Iterable[Any]
"""Training images: a data set, a stream, or any loader of batches (batch, channels, height, width) in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where a training runs, and where it leaves its state."""

    seed: int = 0
    """Determines every random number."""
    device: str | None = None
    """``cpu``, ``cuda``, …; None: the accelerator if there is one."""
    out: Path | None = None
    """Directory of the state: a training that is killed and repeated continues there."""
    saving: Saving = field(default=Saving())
    progress: Progress = silent

    @property
    def processes(self) -> Accelerator:
        """The processes that train together."""
        return accelerator(self.device)

    def fit(
        self,
        student: nn.Module,
        objective: Objective,
        feed: Feed,
        plan: Plan,
        *,
        stage: int = 0,
        what: str,
        follower: Follower | None = None,
    ) -> None:
        """Train ``student`` in place, as ``loop.fit`` says."""
        fit(
            student,
            objective,
            feed,
            plan,
            accelerator=self.processes,
            seed=self.seed,
            out=self.out,
            stage=stage,
            saving=self.saving,
            what=what,
            progress=self.progress,
            follower=follower,
        )

    def finished(self) -> int:
        """How many stages of this training are done."""
        return 0 if self.out is None else finished_stages(self.out)

    def result(self, student: nn.Module) -> nn.Module:
        """The trained student, in evaluation mode."""
        if self.out is not None:
            restore_student(self.out / STATE_FILE, student)
        return student.eval()


def execution_in(out: Path | str | None, saving: Saving | None, **how: Any) -> Execution:
    """With its directory, made if it does not exist."""
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    return Execution(out=None if out is None else Path(out), saving=saving or Saving(), **how)


def unlabelled_feed(images: Source, plan: Plan, seed: int) -> Feed:
    """The batches of these images, without labels."""
    if isinstance(images, ImageSet):
        return SetFeed(images.without_labels(), plan.batch_size, seed, plan.augment, plan.shifts)
    if isinstance(images, ImageStream):
        return StreamFeed(images, plan.batch_size, seed, plan.augment, plan.shifts)
    return LoaderFeed(images, seed)


def few_steps(
    plan: Plan, per_epoch: int, *, aim: str = "a more robust network", option: str = "--epochs"
) -> str | None:
    """What to tell a person whose training hardly gets beyond its warm-up; None if it does.

    ``per_epoch``: steps per epoch. ``aim``: what more steps bring. ``option``: where the epochs are chosen.

    >>> few_steps(Plan(warmup_steps=100), per_epoch=12)
    '12 steps are few, and the first 100 are small ones: for a more robust network, use more images or --epochs 17'
    """
    steps, warmup = plan.epochs * per_epoch, plan.warmup_steps
    if steps >= 2 * warmup:
        return None
    return (
        f"{steps} steps are few, and the first {warmup} are small ones: for {aim}, use more images or "
        f"{option} {math.ceil(2 * warmup / per_epoch)}"
    )


def restarted(student: nn.Module, seed: int) -> None:
    """Give ``student`` new random weights, drawn by each of its layers; ``seed`` determines them."""
    layers = [module for module in student.modules() if hasattr(module, "reset_parameters")]
    drawn = {id(weight) for layer in layers for weight in layer.parameters()}
    kept = next((name for name, weight in student.named_parameters() if id(weight) not in drawn), None)
    require(
        kept is None, f"`restart`: expected layers that can draw new weights, got none for {kept}; leave `restart` out"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for layer in layers:
            layer.reset_parameters()  # type: ignore[operator]  # a method


class Teacher(nn.Module):
    """A frozen network, in its faster form from the first images on."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self._faster: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._faster is None:
            self._faster = for_inference(self.network, x)
        logits: Tensor = self._faster(x)
        return logits
