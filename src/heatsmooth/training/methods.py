"""The two doors to training: ``smooth`` without labels, ``train`` with them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from heatsmooth.data import ImageSet, ImageStream
from heatsmooth.device import accelerator
from heatsmooth.errors import InputError, require
from heatsmooth.models import copy_of, for_inference, normalising_deviation, serialise
from heatsmooth.models.checkpoint import load_state, load_strictly
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import write_atomically
from heatsmooth.training.baselines import METHODS, Baseline
from heatsmooth.training.batches import LoaderFeed, SetFeed, StreamFeed
from heatsmooth.training.heat import Heat, heat_smoothing
from heatsmooth.training.loop import STATE_FILE, Plan, finished_stages, fit, restore_student

PRESETS: dict[str, Callable[[float, float], tuple[Heat, Plan]]] = {
    "bootcamp": lambda sigma, deviation: (Heat(sigma), Plan(lr=0.1)),
    "paper-cifar10": lambda sigma, deviation: (
        Heat(
            sigma,
            distance="squared-logits",
            penalty="logits",
            estimator="projection",
            projections=10,
            delta=0.1,
            scaling="paper",
            noise="none",
            timesteps=5,
        ),
        Plan(epochs=200, batch_size=100, lr=0.1, schedule="steps"),
    ),
    "paper-imagenet": lambda sigma, deviation: (
        Heat(
            sigma,
            distance="squared-probabilities",
            penalty="logits",
            estimator="projection",
            projections=6,
            delta=0.1,
            scaling="paper",
            weight=deviation**2,
            noise="fraction",
        ),
        Plan(lr=0.01, schedule="constant"),
    ),
}
"""Settings by name, for a given σ and deviation of the network's normalisation: what is minimised, and how.

``paper-imagenet`` weighs its penalty as the public code does. The sum over κ = 6 projections has mean
6/classes · ‖∇v‖²_F (``scaling="paper"``). The gradient is taken in normalised coordinates, where it is ``deviation``
times as long."""


def preset(name: str, sigma: float, *, deviation: float = 1.0, **changes: Any) -> tuple[Heat, Plan]:
    """The settings of a preset, with changes to fields of ``Heat`` or ``Plan`` by their names.

    ``deviation``: by how much the network divides its input, see ``normalising_deviation``.
    """
    require(name in PRESETS, f"--preset: expected {', '.join(PRESETS)}, got {name!r}")
    heat, plan = PRESETS[name](sigma, deviation)
    known_heat, known_plan = set(Heat.__dataclass_fields__), set(Plan.__dataclass_fields__)
    unknown = sorted(changes.keys() - known_heat - known_plan)
    require(
        not unknown, f"expected settings among {', '.join(sorted(known_heat | known_plan))}, got {', '.join(unknown)}"
    )
    heat = replace(heat, **{name: value for name, value in changes.items() if name in known_heat})
    plan = replace(plan, **{name: value for name, value in changes.items() if name in known_plan})
    return heat, plan


def smooth(
    model: nn.Module,
    images: ImageSet | ImageStream | Iterable[Any],
    *,
    sigma: float,
    preset: str = "bootcamp",
    seed: int = 0,
    device: str | None = None,
    out: Path | str | None = None,
    progress: Progress = silent,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
    **changes: Any,
) -> nn.Module:
    """A smoothed copy of ``model``, in evaluation mode, after one label-free epoch; ``model`` itself never changes.

    ``images``: an ``ImageSet``, an ``ImageStream``, or any loader of batches (batch, channels, height, width) in
    [0, 1]; labels, if it yields them, are never read. ``sigma``: the L2 noise, in [0, 1] pixels, that the result shall
    withstand.
    ``changes``: fields of ``Heat`` and ``Plan`` that differ from the preset, as ``epochs=2`` or ``lr=0.01``.
    With ``out``, the run can be killed and repeated.
    """
    heat, plan = _preset(preset, sigma, deviation=normalising_deviation(model), **changes)
    out = _directory(out)
    processes = accelerator(device)
    if isinstance(images, ImageSet):
        feed: SetFeed | StreamFeed | LoaderFeed = SetFeed(images.without_labels(), plan.batch_size, seed, plan.augment)
    elif isinstance(images, ImageStream):
        feed = StreamFeed(images, plan.batch_size, seed, plan.augment)
    else:
        feed = LoaderFeed(images, seed)
    student = copy_of(model)
    for stage in range(finished_stages(out) if out else 0, heat.timesteps):
        teacher = _teacher(student, stage, out, leader=processes.is_main_process)
        processes.wait_for_everyone()
        teacher.to(processes.device)
        fit(
            student,
            partial(heat_smoothing, teacher=teacher, heat=heat),
            feed,
            plan,
            accelerator=processes,
            seed=seed,
            out=out,
            stage=stage,
            what="smoothing" if heat.timesteps == 1 else f"smoothing, timestep {stage + 1} of {heat.timesteps}",
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            log_every=log_every,
        )
    return _result(student, out)


_preset = preset


class Teacher(nn.Module):
    """A network as it is, frozen; in its faster form from the first images on."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy_of(network).eval().requires_grad_(False)
        self._faster: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._faster is None:
            self._faster = for_inference(self.network, x)
        logits: Tensor = self._faster(x)
        return logits


def _teacher(student: nn.Module, stage: int, out: Path | None, *, leader: bool) -> Teacher:
    """The frozen teacher of a stage: the student as the stage before left it. Both have its weights afterwards."""
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
    progress: Progress = silent,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
) -> nn.Module:
    """A copy of ``model`` trained with labels by one of the baselines, in evaluation mode."""
    if images.labels is None:
        raise InputError(f"{images.name}: expected labels to train with, got none; only `smooth` needs none")
    out = _directory(out)
    student = copy_of(model)
    if out is None or finished_stages(out) == 0:
        fit(
            student,
            partial(METHODS[choices.method], choices=choices),
            SetFeed(images, plan.batch_size, seed, plan.augment),
            plan,
            accelerator=accelerator(device),
            seed=seed,
            out=out,
            what="training",
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            log_every=log_every,
        )
    return _result(student, out)


def _directory(out: Path | str | None) -> Path | None:
    """The directory of a run, made if it is not there."""
    if out is None:
        return None
    Path(out).mkdir(parents=True, exist_ok=True)
    return Path(out)


def _result(student: nn.Module, out: Path | None) -> nn.Module:
    if out is not None:
        restore_student(out / STATE_FILE, student)
    return student.eval()
