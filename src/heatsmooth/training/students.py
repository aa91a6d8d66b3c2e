"""``distill``: a student that is Lipschitz by construction, without labels."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from heatsmooth.data import ImageSet, ImageStream, as_unit_interval
from heatsmooth.errors import require
from heatsmooth.models import Classifier, NetworkSpec, build, count_classes, device_of
from heatsmooth.models.lipschitz import LIPSCHITZ, LipschitzNetwork
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.training import settings
from heatsmooth.training.batches import images_of
from heatsmooth.training.distill import distillation, logit_gain
from heatsmooth.training.execution import Execution, Source, Teacher, execution_in, unlabelled_feed
from heatsmooth.training.settings import Distillation, Plan, PlanChanges, Saving


def distill(
    model: nn.Module,
    images: Source,
    *,
    student: str = "lipschitz-small",
    radius: float = Distillation.radius,
    temperature: float | None = None,
    seed: int = 0,
    device: str | None = None,
    out: Path | str | None = None,
    saving: Saving | None = None,
    progress: Progress = silent,
    **changes: Unpack[PlanChanges],
) -> Classifier:
    """A student of ``model`` that is Lipschitz by construction, in evaluation mode; ``model`` itself never changes.

    ``certify`` proves, from one pass and without noise, the radius within which the student keeps its class.

    ``model``: the teacher; takes images in [0, 1] to logits. ``images``: as for ``smooth``; labels are never read.
    ``student``: a built-in architecture: ``lipschitz-tiny``, ``lipschitz-small`` or ``lipschitz-large``.
    ``radius``: L2 radius to aim for, in [0, 1] pixels. ``temperature``: in units of radius; None: half of ``radius``.
    ``changes``: fields of ``Plan`` that differ from ``DISTILLING``, such as ``epochs=2``.
    The other parameters are those of ``smooth``.
    """
    choices, plan = Distillation(radius, temperature), replace(settings.DISTILLING, **changes)
    first = first_images(images)
    execution = execution_in(out, saving, seed=seed, device=device, progress=progress)
    new = new_student(student, count_classes(model, first.to(device_of(model))), tuple(first.shape[1:]), choices, seed)
    return distilled(model, new, images, Lesson(choices, plan), execution)


def new_student(name: str, classes: int, shape: tuple[int, ...], choices: Distillation, seed: int) -> Classifier:
    """A student of random weights for images of ``shape`` (channels, height, width)."""
    require(name in LIPSCHITZ, f"`student`: expected {', '.join(LIPSCHITZ)}, got {name!r}; name one of these")
    channels, height, width = shape
    torch.manual_seed(mixed_seed(seed, "weights"))
    size = height if height == width else (height, width)
    student = build(NetworkSpec(name, classes, channels, (0.5,), (1.0,), size))
    assert isinstance(student.network, LipschitzNetwork)
    student.network.last.gain.fill_(logit_gain(choices))
    return student


class Lesson(NamedTuple):
    """What a student is taught, and how."""

    choices: Distillation
    plan: Plan


def distilled(
    model: nn.Module, student: Classifier, images: Source, lesson: Lesson, execution: Execution
) -> Classifier:
    """``distill`` with its settings resolved; trains ``student`` in place."""
    if execution.finished() == 0:
        teacher = Teacher(model).to(execution.processes.device)
        objective = partial(distillation, teacher=teacher, choices=lesson.choices)
        feed = unlabelled_feed(images, lesson.plan, execution.seed)
        execution.fit(student, objective, feed, lesson.plan, what="distilling")
    execution.result(student)
    return student


def first_images(images: Source) -> Tensor:
    """An image or a few, (some, channels, height, width), in [0, 1]."""
    if isinstance(images, ImageSet):
        return images.images(torch.arange(1))
    if isinstance(images, ImageStream):
        return images.images(1)
    first = next(iter(images), None)
    require(first is not None, "expected a loader with at least one batch, got none")
    return as_unit_interval(images_of(first)[:1])
