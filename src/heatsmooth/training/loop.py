"""The one training loop: any objective, one process or many, killed at any moment and continued.

Every random number depends on (seed, step) alone, and the state on disk is replaced atomically. So a run that is
killed and repeated ends with the same weights as an undisturbed one.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from heatsmooth.device import exact_float32
from heatsmooth.errors import DivergedError, require
from heatsmooth.models import load_state, serialise
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import Records, write_atomically
from heatsmooth.training.batches import Batch, Feed, Place
from heatsmooth.training.muon import Muon
from heatsmooth.training.settings import Plan, Saving
from heatsmooth.training.tracking import tracking

Objective = Callable[[nn.Module, Batch], dict[str, Tensor]]
"""(student, batch) → the named terms of the loss; their sum is minimised."""


class Follower(Protocol):
    """Something that follows a training, chooses the pace of its steps, and has a state of its own."""

    @property
    def pace(self) -> float:
        """The factor of the learning rate."""

    def after(self, done: int, steps: int) -> None:
        """Called after ``done`` of ``steps`` steps."""

    def tensors(self) -> dict[str, Tensor]:
        """Its state, to save and to write to."""

    def numbers(self) -> dict[str, float]:
        """The rest of its state, which is logged too."""

    def restore(self, numbers: dict[str, float]) -> None:
        """Continue from these numbers."""


STATE_FILE = "state.safetensors"
METRICS_FILE = "metrics.jsonl"


@exact_float32()
def fit(
    student: nn.Module,
    objective: Objective,
    feed: Feed,
    plan: Plan,
    *,
    accelerator: Accelerator,
    seed: int = 0,
    out: Path | None = None,
    stage: int = 0,
    saving: Saving | None = None,
    what: str = "training",
    progress: Progress = silent,
    follower: Follower | None = None,
) -> None:
    """Train ``student`` in place and leave it in evaluation mode.

    ``feed``: the batches. ``stage``: which of several trainings of one run this is. ``what``: its name in the progress.
    ``follower``: follows the steps; its state is saved with that of the training.
    With ``out``: metrics go to ``metrics.jsonl`` and the state to ``state.safetensors``, as often as ``saving`` says,
    and training continues from the state there if it is of the same ``stage``. Weights that are not finite are never
    saved and never returned: they are an error, at the next checkpoint or at the end.
    """
    saving = saving or Saving()
    place = Place(accelerator.device, accelerator.process_index, accelerator.num_processes)
    student.to(place.device)
    _set_modes(student, plan, place)
    optimizer = optimizer_of(student, plan)
    checkpoint = _Checkpoint(None if out is None else out / STATE_FILE, stage, student, optimizer, follower)
    first, recent = checkpoint.restore()
    terms = _Terms(recent)
    trained = accelerator.prepare_model(student) if place.world > 1 else student
    steps = plan.epochs * feed.steps_per_epoch
    progress(what, first, steps, f"continued after step {first}" if first else "")
    saved = started = time.monotonic()
    with _asked_to_stop() as stop_asked, _log(out, saving, plan, (stage, first, steps), accelerator) as log:
        for step, batch in enumerate(feed.batches(stage * steps + first, (stage + 1) * steps, place), start=first):
            torch.manual_seed(mixed_seed(seed, "dropout", stage, step, place.rank))
            rate = _set_rate(optimizer, plan.rate(step, steps) * (follower.pace if follower else 1.0))
            terms.note(step, _descend(trained, objective, batch.parts(plan.accumulate), accelerator), accelerator)
            optimizer.step()
            done = step + 1
            if follower:
                follower.after(done, steps)
            if done % saving.log_every == 0 or done == steps:
                speed = (done - first) * len(batch.images) * place.world / (time.monotonic() - started)
                values = {"epoch": done / feed.steps_per_epoch, "lr": rate, **(follower.numbers() if follower else {})}
                values |= terms.means() | {"images_per_second": round(speed, 1)}
                progress(what, done, steps, log(step, values))
            if (stopping := bool(stop_asked)) or time.monotonic() - saved >= saving.checkpoint_seconds:
                if accelerator.is_main_process:
                    checkpoint.save(stage, done, terms)
                saved = time.monotonic()
            if stopping and done < steps:
                raise KeyboardInterrupt
    checkpoint.require_finite(steps)
    student.eval()
    if accelerator.is_main_process:
        checkpoint.save(stage + 1, 0, _Terms({}))
    accelerator.wait_for_everyone()


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> float:
    """Begin a step with this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    return rate


def optimizer_of(student: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """What moves the weights of ``student``, as the plan says."""
    if plan.optimizer == "muon":
        return Muon(student.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay)
    if plan.optimizer == "adam":
        return torch.optim.Adam(
            student.parameters(), lr=plan.lr, betas=(plan.momentum, 0.999), weight_decay=plan.weight_decay
        )
    return torch.optim.SGD(
        student.parameters(),
        lr=plan.lr,
        momentum=plan.momentum,
        nesterov=plan.momentum > 0,
        weight_decay=plan.weight_decay,
    )


def _descend(
    trained: nn.Module, objective: Objective, parts: list[Batch], accelerator: Accelerator
) -> dict[str, Tensor]:
    """Add the gradient of the mean loss over the parts to the weights; return the mean of each term."""
    total: dict[str, Tensor] = {}
    for number, part in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else accelerator.no_sync(trained):
            terms = {name: term / len(parts) for name, term in objective(trained, part).items()}
            accelerator.backward(torch.stack(list(terms.values())).sum())
        total = {name: total.get(name, 0) + term.detach() for name, term in terms.items()}
    return total


@contextmanager
def _log(
    out: Path | None, saving: Saving, plan: Plan, at: tuple[int, int, int], accelerator: Accelerator
) -> Iterator[Callable[[int, dict[str, float]], str]]:
    """A function that records the values of a step, and returns what the progress says about them.

    They go to the metrics file and to the tracker of ``saving``. ``at``: the stage, its first step, and its steps.
    """
    stage, first, steps = at
    with (
        _metrics(out, stage, first, accelerator) as metrics,
        tracking(saving.track, out, plan, stage * steps + first, accelerator) as tell,
    ):

        def log(step: int, values: dict[str, float]) -> str:
            if metrics:
                metrics.append({"stage": stage, "step": step} | values)
            tell(values, stage * steps + step)
            return f"loss {values['loss']:.4f}  {values['images_per_second']:.0f} images/s"

        yield log


@contextmanager
def _metrics(out: Path | None, stage: int, step: int, accelerator: Accelerator) -> Iterator[Records | None]:
    """The metrics file of the leading process, without records of steps that are still to come."""
    if out is None or not accelerator.is_main_process:
        yield None
        return
    with Records(out / METRICS_FILE) as metrics:
        metrics.keep(lambda record: (record["stage"], record["step"]) < (stage, step))
        yield metrics


def _set_modes(student: nn.Module, plan: Plan, place: Place) -> None:
    student.train()
    norms = [module for module in student.modules() if isinstance(module, _BatchNorm)]
    if plan.batch_norm == "frozen":
        for norm in norms:
            norm.eval()
    elif place.world > 1 and norms:
        require(
            place.device.type != "cpu",
            f"expected `batch_norm` frozen, or one process, on CPUs, got train in {place.world} processes; "
            "torch cannot synchronise it there",
        )
        nn.SyncBatchNorm.convert_sync_batchnorm(student)


class _Terms:
    """The terms of the loss since the last record of the metrics.

    They stay on the device until they are read, so that no step waits for the one before.
    """

    def __init__(self, recent: dict[str, list[float]]) -> None:
        self._recent = recent
        self._waiting: list[tuple[int, list[str], Tensor]] = []

    def note(self, step: int, terms: dict[str, Tensor], accelerator: Accelerator) -> None:
        """Add the terms of a step, averaged over the processes."""
        values = torch.stack([term.detach() for term in terms.values()])
        self._waiting.append((step, list(terms), accelerator.reduce(values, "mean")))

    def recent(self) -> dict[str, list[float]]:
        """By name, the value of each step; an error names the first step where one was not finite."""
        numbers = iter(torch.cat([values for *_, values in self._waiting]).tolist() if self._waiting else [])
        for step, names, _ in self._waiting:
            terms = dict(zip(names, numbers, strict=False))  # as many as there are names
            if not all(map(math.isfinite, terms.values())):
                raise DivergedError(
                    f"expected a finite loss at step {step}, got {terms}; lower `lr`, or check images and weights"
                )
            if "loss" not in terms:
                terms["loss"] = sum(terms.values())
            for name, value in terms.items():
                self._recent.setdefault(name, []).append(value)
        self._waiting.clear()
        return self._recent

    def means(self) -> dict[str, float]:
        """By name, the mean over these steps; they are forgotten afterwards."""
        recent = self.recent()
        means = {name: sum(values) / len(values) for name, values in recent.items()}
        recent.clear()
        return means


@dataclass(frozen=True)
class _Checkpoint:
    """The state of a training, and the file that holds it; without ``path``, nothing is written."""

    path: Path | None
    stage: int
    student: nn.Module
    optimizer: torch.optim.Optimizer
    follower: Follower | None = None

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors of student, follower and optimizer, by name."""
        tensors = self._followed() | {f"student.{name}": tensor for name, tensor in self.student.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            held = {name: value for name, value in state.items() if isinstance(value, Tensor)}
            tensors |= {f"optimizer.{number}.{name}": value for name, value in held.items()}
        return tensors

    def _followed(self) -> dict[str, Tensor]:
        held = self.follower.tensors() if self.follower else {}
        return {f"follower.{name}": tensor for name, tensor in held.items()}

    def save(self, stage: int, step: int, terms: _Terms) -> None:
        """Write everything that later steps depend on; ``terms``: those that are not yet in the metrics."""
        if self.path is None:
            return
        recent = terms.recent()
        self.require_finite(step)
        facts = {"stage": stage, "step": step, "recent": recent}
        facts |= {"follower": self.follower.numbers()} if self.follower else {}
        write_atomically(self.path, serialise(self._tensors(), facts))

    def restore(self) -> tuple[int, dict[str, list[float]]]:
        """Load the state of this stage, if it has begun; the first step to do, and the recent terms of the loss."""
        if self.path is None or not self.path.exists():
            return 0, {}
        tensors, at = load_state(self.path)
        if at["stage"] != self.stage or at["step"] == 0:
            return 0, {}
        restore_student(self.path, self.student)
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                number, _, key = rest.partition(".")
                state.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        if self.follower:
            self.follower.restore(at["follower"])
            for name, tensor in self._followed().items():
                tensor.copy_(tensors[name])
        return int(at["step"]), at.get("recent", {})

    def require_finite(self, done: int) -> None:
        """Refuse weights that are not finite after ``done`` steps; the message names the last good checkpoint."""
        wrong = next((name for name, tensor in self._tensors().items() if not bool(tensor.isfinite().all())), None)
        if wrong is None:
            return
        remedy = "lower `lr`, or check images and weights"
        if self.path is not None and self.path.exists():
            last = load_state(self.path)[1]["step"]
            remedy += f", in another `out`; or repeat the command to continue after step {last}, the last good state"
            remedy += f", in {self.path}"
        raise DivergedError(f"expected finite weights after step {done}, got NaN or infinity in {wrong}; {remedy}")


def finished_stages(out: Path) -> int:
    """How many stages of the run in ``out`` are done."""
    return int(load_state(out / STATE_FILE)[1]["stage"]) if (out / STATE_FILE).exists() else 0


def restore_student(path: Path, student: nn.Module) -> None:
    """Give ``student`` the weights of a state file."""
    tensors, _ = load_state(path)
    prefix = "student."
    student.load_state_dict(
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    )


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that is empty until the user (Ctrl-C) or the system (SIGTERM) asks this process to stop."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
