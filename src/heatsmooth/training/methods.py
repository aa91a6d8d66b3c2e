"""The two ways to train a network: ``smooth`` without labels, ``train`` with them."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from heatsmooth.data import ImageSet
from heatsmooth.device import accelerator, exact_float32
from heatsmooth.errors import InputError
from heatsmooth.models import copy_of, denoised, normalising_deviation, serialise
from heatsmooth.models.checkpoint import load_state, load_strictly
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import write_atomically
from heatsmooth.training.baselines import METHODS
from heatsmooth.training.batches import Place, SetFeed
from heatsmooth.training.consistency import consistency
from heatsmooth.training.denoising import denoising
from heatsmooth.training.dial import Dial, HeldOut, as_images, corrected, without_some
from heatsmooth.training.execution import Execution, Source, Teacher, execution_in, restarted, unlabelled_feed
from heatsmooth.training.field import Consistency, Denoising, Macer, Rival, SmoothMix, Task, task
from heatsmooth.training.heat import heat_smoothing, temperature_of
from heatsmooth.training.loop import STATE_FILE, Objective, restore_student
from heatsmooth.training.macer import macer
from heatsmooth.training.settings import Baseline, Changes, Heat, Plan, Saving
from heatsmooth.training.smoothmix import smoothmix

OBJECTIVES: dict[type[Rival], Callable[..., Any]] = {
    Consistency: consistency,
    Macer: macer,
    SmoothMix: smoothmix,
    Denoising: denoising,
}
"""By its settings, (student, batch, teacher, sigma, choices) → the terms of the loss."""


def smooth(
    model: nn.Module,
    images: Source,
    *,
    sigma: float,
    preset: str | None = None,
    method: Rival | None = None,
    keep: float | None = None,
    held_out: ImageSet | Tensor | Iterable[Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    out: Path | str | None = None,
    saving: Saving | None = None,
    progress: Progress = silent,
    **changes: Unpack[Changes],
) -> nn.Module:
    """A smoothed copy of ``model``, in evaluation mode, after one label-free epoch; ``model`` itself never changes.

    ``model``: takes images in [0, 1] to logits.
    ``images``: an ``ImageSet``, an ``ImageStream``, or any loader of batches (batch, channels, height, width) in
    [0, 1]. Labels, if it yields them, are never read. The first batches are also read before the training, unless
    ``temperature`` is given.
    ``sigma``: standard deviation of the Gaussian noise, in [0, 1] pixels.
    ``preset``: ``bootcamp`` (the default), ``bootcamp-strong``, ``paper-cifar10`` or ``paper-imagenet``.
    ``method``: instead of HeatSmoothing, a method of others: ``Consistency()``, ``Macer()``, ``SmoothMix()`` or
    ``Denoising()``.
    ``keep``: the share of the answers of ``model`` on clean images to keep, such as 0.9: the student becomes as robust
    as that allows. What was reached is the attribute ``kept`` of the result, see ``dial.Kept``.
    ``held_out``: images for ``keep`` that neither network has seen, without labels: a set, a tensor, or a loader.
    Without it, every tenth of ``images`` is left out, with a warning: a network trained on them agrees too easily.
    ``seed``: determines every random number. ``device``: ``cpu``, ``cuda``, …; None: the accelerator if there is one.
    ``out``: a directory; a call that is killed and repeated continues there. ``saving``: how often it is written.
    ``progress``: is told what is done; ``heatsmooth.progress.bar`` shows it.
    ``changes``: fields of ``Heat`` and ``Plan`` that differ from the preset, such as ``epochs=2`` or ``lr=0.01``.
    """
    deviation = normalising_deviation(model)
    chosen = task(sigma, preset=preset, method=method, keep=keep, deviation=deviation, **changes)
    execution = execution_in(out, saving, seed=seed, device=device, progress=progress)
    if keep is not None and held_out is None:
        warnings.warn(TOO_EASY, stacklevel=2)
    chosen = fitted(chosen, model, images, seed=seed, device=device)
    return smoothed(model, images, chosen, execution, None if held_out is None else as_images(held_out))


TOO_EASY = (
    "`keep`: without `held_out`, images left out of the epoch are used; a network trained on them agrees too easily"
)


LOOKED_AT = 250
"""At most this many images tell how sure a teacher is."""


@exact_float32()
def fitted(chosen: Task, model: nn.Module, images: Source, *, seed: int, device: str | None = None) -> Task:
    """The task with the temperature of its objective, which depends on how sure ``model`` is of the first batches."""
    if not isinstance(chosen.objective, Heat) or chosen.objective.temperature is not None:
        return chosen
    place = Place(accelerator(device).device)
    teacher, logits = Teacher(model).to(place.device), list[Tensor]()
    feed = unlabelled_feed(images, chosen.plan, seed)
    with torch.no_grad():
        for batch in feed.batches(0, feed.steps_per_epoch, place):
            logits.append(teacher(batch.images[: LOOKED_AT - sum(map(len, logits))]))
            if sum(map(len, logits)) >= LOOKED_AT:
                break
    temperature = temperature_of(torch.cat(logits))
    return replace(chosen, objective=replace(chosen.objective, temperature=temperature))


def smoothed(
    model: nn.Module, images: Source, chosen: Task, execution: Execution, held_out: ImageSet | None = None
) -> nn.Module:
    """``smooth`` with its settings resolved."""
    if chosen.keep is not None:
        return _kept(model, images, chosen, execution, held_out)
    if isinstance(chosen.objective, Heat):
        return _heat_smoothed(model, images, chosen.objective, chosen.plan, execution)
    student = _student(model, chosen, execution.seed)
    if execution.finished() == 0:
        objective = _objective(chosen, Teacher(model).to(execution.processes.device))
        feed = unlabelled_feed(images, chosen.plan, execution.seed)
        execution.fit(student, objective, feed, chosen.plan, what=chosen.method)
    return execution.result(student)


def _heat_smoothed(model: nn.Module, images: Source, heat: Heat, plan: Plan, execution: Execution) -> nn.Module:
    """In one or more timesteps."""
    processes, feed = execution.processes, unlabelled_feed(images, plan, execution.seed)
    student = copy_of(model)
    for stage in range(execution.finished(), heat.timesteps):
        teacher = _teacher(student, stage, execution.out, leader=processes.is_main_process)
        processes.wait_for_everyone()
        teacher.to(processes.device)
        if heat.restart:
            restarted(student, mixed_seed(execution.seed, "weights", stage))
        what = "smoothing" if heat.timesteps == 1 else f"smoothing, timestep {stage + 1} of {heat.timesteps}"
        execution.fit(student, partial(heat_smoothing, teacher=teacher, heat=heat), feed, plan, stage=stage, what=what)
    return execution.result(student)


def _kept(model: nn.Module, images: Source, chosen: Task, execution: Execution, held_out: ImageSet | None) -> nn.Module:
    """Trained with the dial, and corrected to keep the share that was asked for; ``Kept`` is its attribute ``kept``."""
    assert chosen.keep is not None
    if held_out is None:
        if not isinstance(images, ImageSet):
            raise InputError("`keep`: expected `held_out` images beside a stream or loader, got none; name some")
        images, held_out = without_some(images)
    processes = execution.processes
    student, teacher = copy_of(model).to(processes.device), Teacher(model).to(processes.device)
    unseen = HeldOut.of(held_out, teacher, processes)
    if execution.finished() == 0:
        feed = unlabelled_feed(images, chosen.plan, execution.seed)
        dial = Dial(chosen.keep, student, unseen, chosen.plan.epochs * feed.steps_per_epoch)
        objective = _objective(chosen, teacher, dial)
        execution.fit(student, objective, feed, chosen.plan, what="smoothing", follower=dial)
    result = execution.result(student)
    result.kept = corrected(result, model, unseen, chosen.keep)  # type: ignore[assignment]  # any attribute
    return result


def _objective(chosen: Task, teacher: nn.Module, dial: Dial | None = None) -> Objective:
    """The loss of a task; with a dial, that of HeatSmoothing has its strength at each step."""
    if not isinstance(chosen.objective, Heat):
        rival = chosen.objective
        return partial(OBJECTIVES[type(rival)], teacher=teacher, sigma=chosen.sigma, choices=rival)
    heat = chosen.objective
    return lambda student, batch: heat_smoothing(
        student, batch, teacher=teacher, heat=heat, strength=dial.strength if dial else 1.0
    )


def _student(model: nn.Module, chosen: Task, seed: int) -> nn.Module:
    """What is trained: a copy, or the network behind a new denoiser."""
    if not isinstance(chosen.objective, Denoising):
        return copy_of(model)
    with torch.random.fork_rng():
        torch.manual_seed(mixed_seed(seed, "weights"))
        return denoised(chosen.objective.denoiser, model)


def _teacher(student: nn.Module, stage: int, out: Path | None, *, leader: bool) -> Teacher:
    """The frozen teacher of a stage: the student at the end of the stage before. Both have its weights afterwards."""
    if out is not None and stage > 0:
        file = out / f"timestep-{stage}.safetensors"
        if file.exists():
            load_strictly(student, load_state(file)[0], file)
        else:
            restore_student(out / STATE_FILE, student)
            if leader:
                write_atomically(file, serialise(student.state_dict(), {}))
    return Teacher(student)


def train(
    model: nn.Module,
    images: ImageSet,
    *,
    choices: Baseline,
    plan: Plan,
    seed: int = 0,
    device: str | None = None,
    out: Path | str | None = None,
    saving: Saving | None = None,
    progress: Progress = silent,
) -> nn.Module:
    """A copy of ``model`` trained with labels by one of the baselines, in evaluation mode.

    ``images``: with labels. ``choices``: the method. ``plan``: how the weights are optimised. The other parameters are
    those of ``smooth``.
    """
    if images.labels is None:
        raise InputError(f"{images.name}: expected labels to train with, got none; only `smooth` needs none")
    execution = execution_in(out, saving, seed=seed, device=device, progress=progress)
    student = copy_of(model)
    if execution.finished() == 0:
        feed = SetFeed(images, plan.batch_size, seed, plan.augment, plan.shifts)
        execution.fit(student, partial(METHODS[choices.method], choices=choices), feed, plan, what="training")
    return execution.result(student)
