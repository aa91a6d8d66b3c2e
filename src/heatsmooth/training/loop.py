"""The one training loop: any objective, one process or many, killed at any moment and continued.

Every random number depends on (seed, step) alone and the state on disk is replaced atomically, so a run that is
killed and repeated ends with the same weights as an undisturbed one.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from heatsmooth.device import exact_float32
from heatsmooth.errors import InputError, require
from heatsmooth.models import load_state, serialise
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import Records, write_atomically
from heatsmooth.training.batches import Batch, Feed, Place

Objective = Callable[[nn.Module, Batch], dict[str, Tensor]]
"""(student, batch) → the named terms of the loss; their sum is minimised."""

STATE_FILE = "state.safetensors"
METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Plan:
    """How the weights move: SGD with momentum over ``epochs`` epochs."""

    epochs: int = 1
    batch_size: int = 128
    """Images a step, over all processes together."""
    lr: float = 0.05
    schedule: Literal["constant", "linear", "cosine", "steps"] = "linear"
    """After the warm-up: lr as it is, to 0 in a line or a cosine, or ×1/5 after 30 %, 60 % and 80 %."""
    warmup: float = 0.0
    """The share of the steps over which lr rises from 0."""
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_norm: Literal["train", "frozen"] = "train"
    """Batch norm by each batch's statistics, which also update the running ones; or all statistics as they are."""
    augment: bool = True
    """Shift and mirror the images."""
    accumulate: int = 1
    """Parts of a process's batch that are computed one after another, to save memory. The gradient is that of the whole
    batch, unless batch norm trains: it sees the parts."""

    def __post_init__(self) -> None:
        require(self.epochs > 0, f"--epochs: expected at least 1, got {self.epochs}")
        require(self.batch_size > 0, f"--batch-size: expected at least 1, got {self.batch_size}")
        require(self.accumulate > 0, f"--accumulate: expected at least 1, got {self.accumulate}")
        require(self.lr > 0, f"--lr: expected a positive number, got {self.lr}")
        require(self.schedule in _SCHEDULES, f"--schedule: expected {', '.join(_SCHEDULES)}, got {self.schedule!r}")
        require(0 <= self.weight_decay < math.inf, f"--weight-decay: expected 0 or more, got {self.weight_decay}")
        require(0 <= self.warmup < 1, f"--warmup: expected a share from 0 to below 1, got {self.warmup}")
        require(
            self.batch_norm in ("train", "frozen"), f"--batch-norm: expected train or frozen, got {self.batch_norm!r}"
        )

    def describe(self) -> dict[str, Any]:
        """What a run records; ``accumulate`` only where it is used, as runs did before it was there."""
        return {name: value for name, value in asdict(self).items() if name != "accumulate" or value > 1}

    def rate(self, done: float) -> float:
        """The learning rate when this share of the steps is done.

        >>> Plan(lr=0.4, schedule="linear", warmup=0.5).rate(0.25), Plan(lr=0.4, schedule="linear").rate(0.75)
        (0.2, 0.1)
        """
        if done < self.warmup:
            return self.lr * done / self.warmup
        return self.lr * _SCHEDULES[self.schedule]((done - self.warmup) / (1 - self.warmup))


_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "steps": lambda done: 0.2 ** sum(done >= drop for drop in (0.3, 0.6, 0.8)),
}


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
    what: str = "training",
    progress: Progress = silent,
    checkpoint_seconds: float = 30.0,
    log_every: int = 10,
) -> None:
    """Train ``student`` in place and leave it in evaluation mode.

    With ``out``: metrics go to ``metrics.jsonl``, the state to ``state.safetensors`` every ``checkpoint_seconds``,
    and training continues from the state there if it is of the same ``stage``. Weights that are not finite are never
    saved nor left in ``student`` as a result: they are an error, at the next checkpoint or at the end.
    """
    place = Place(accelerator.device, accelerator.process_index, accelerator.num_processes)
    student.to(place.device)
    _set_modes(student, plan, place)
    optimizer = torch.optim.SGD(
        student.parameters(),
        lr=plan.lr,
        momentum=plan.momentum,
        nesterov=plan.momentum > 0,
        weight_decay=plan.weight_decay,
    )
    first, recent = (0, {}) if out is None else _continue_from(out / STATE_FILE, stage, student, optimizer)
    terms = _Terms(recent)
    trained = accelerator.prepare_model(student) if place.world > 1 else student
    steps = plan.epochs * feed.steps_per_epoch
    if first > 0:
        progress(what, first, steps, f"continued after step {first}")
    saved = started = time.monotonic()
    with _asked_to_stop() as stop_asked, _metrics(out, stage, first, accelerator) as metrics:
        before = stage * steps
        for step, batch in enumerate(feed.batches(before + first, before + steps, place), start=first):
            torch.manual_seed(mixed_seed(seed, "dropout", stage, step, place.rank))
            rate = plan.rate(step / steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            terms.note(step, _descend(trained, objective, batch.parts(plan.accumulate), accelerator), accelerator)
            optimizer.step()
            done = step + 1
            logged = terms.recent() if done % log_every == 0 or done == steps else {}
            now = time.monotonic()
            if logged:
                means = {name: sum(values) / len(values) for name, values in logged.items()}
                logged.clear()
                speed = (done - first) * len(batch.images) * place.world / (now - started)
                progress(what, done, steps, f"loss {means['loss']:.4f}  {speed:.0f} images/s")
                if metrics:
                    facts = {"stage": stage, "step": step, "epoch": done / feed.steps_per_epoch, "lr": rate}
                    metrics.append(facts | means | {"images_per_second": round(speed, 1)})
            stopping = bool(stop_asked)
            if out is not None and accelerator.is_main_process and (stopping or now - saved >= checkpoint_seconds):
                unlogged = terms.recent()
                _require_finite(student, optimizer, done, out)
                _save_state(out / STATE_FILE, stage, done, student, optimizer, unlogged)
                saved = time.monotonic()
            if stopping and done < steps:
                raise KeyboardInterrupt
    _require_finite(student, optimizer, steps, out)
    if out is not None and accelerator.is_main_process:
        _save_state(out / STATE_FILE, stage + 1, 0, student, optimizer, {})
    accelerator.wait_for_everyone()
    student.eval()


def _descend(
    trained: nn.Module, objective: Objective, parts: list[Batch], accelerator: Accelerator
) -> dict[str, Tensor]:
    """Add the gradient of the mean loss over the parts to the weights'; the mean of each term."""
    total: dict[str, Tensor] = {}
    for number, part in enumerate(parts, start=1):
        with nullcontext() if number == len(parts) else accelerator.no_sync(trained):
            terms = {name: term / len(parts) for name, term in objective(trained, part).items()}
            accelerator.backward(torch.stack(list(terms.values())).sum())
        total = {name: total.get(name, 0) + term.detach() for name, term in terms.items()}
    return total


@contextmanager
def _metrics(out: Path | None, stage: int, step: int, accelerator: Accelerator) -> Iterator[Records | None]:
    """The records of the leading process's metrics, without those of steps that are still to come."""
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
            f"expected --batch-norm frozen, or one process, on CPUs, got train in {place.world} processes; "
            "torch cannot synchronise it there",
        )
        nn.SyncBatchNorm.convert_sync_batchnorm(student)


class _Terms:
    """The terms of the loss since the last record of the metrics.

    They stay on the device until they are asked for, so that no step waits for the one before.
    """

    def __init__(self, recent: dict[str, list[float]]) -> None:
        self._recent = recent
        self._waiting: list[tuple[int, list[str], Tensor]] = []

    def note(self, step: int, terms: dict[str, Tensor], accelerator: Accelerator) -> None:
        """Add the terms of a step, averaged over the processes."""
        values = torch.stack([term.detach() for term in terms.values()])
        self._waiting.append((step, list(terms), accelerator.reduce(values, "mean")))

    def recent(self) -> dict[str, list[float]]:
        """By name, each step's; an error that names the first step where one was not finite, in all processes."""
        numbers = iter(torch.cat([values for *_, values in self._waiting]).tolist() if self._waiting else [])
        for step, names, _ in self._waiting:
            found = dict(zip(names, numbers, strict=False))  # as many as there are names
            if not all(map(math.isfinite, found.values())):
                raise InputError(
                    f"expected a finite loss at step {step}, got {found}; lower --lr, or check images and weights"
                )
            if len(found) > 1:
                found["loss"] = sum(found.values())
            for name, value in found.items():
                self._recent.setdefault(name, []).append(value)
        self._waiting.clear()
        return self._recent


def _save_state(
    path: Path,
    stage: int,
    step: int,
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    recent: dict[str, list[float]],
) -> None:
    """Write all that the steps from ``step`` on depend on; ``recent``: the terms not yet in the metrics."""
    facts = {"stage": stage, "step": step, "recent": recent}
    write_atomically(path, serialise(_state_of(student, optimizer), facts))


def _state_of(student: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors of both, by name."""
    tensors = {f"student.{name}": tensor for name, tensor in student.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors


def _require_finite(student: nn.Module, optimizer: torch.optim.Optimizer, done: int, out: Path | None) -> None:
    """Refuse weights that are not finite after ``done`` steps; the message names the last good checkpoint."""
    state = _state_of(student, optimizer)
    wrong = next((name for name, tensor in state.items() if not bool(tensor.isfinite().all())), None)
    if wrong is None:
        return
    remedy = "lower --lr, or check images and weights"
    if out is not None and (out / STATE_FILE).exists():
        last = load_state(out / STATE_FILE)[1]["step"]
        remedy = f"{remedy}, in another --out; or repeat the command to continue after step {last}, the last good state"
        remedy = f"{remedy}, in {out / STATE_FILE}"
    raise InputError(f"expected finite weights after step {done}, got NaN or infinity in {wrong}; {remedy}")


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


def _continue_from(
    path: Path, stage: int, student: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, list[float]]]:
    """Restore student and optimizer from the state of this stage, if any; the first step to do, the recent terms."""
    if not path.exists():
        return 0, {}
    tensors, at = load_state(path)
    if at["stage"] != stage:
        return 0, {}
    restore_student(path, student)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            number, _, key = rest.partition(".")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return int(at["step"]), at.get("recent", {})


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
