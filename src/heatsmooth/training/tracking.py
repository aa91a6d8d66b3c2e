"""Training metrics to TensorBoard, Weights & Biases, MLflow or Trackio, through the trackers of accelerate."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.training.settings import Plan, Tracker

PROJECT = "heatsmooth"
"""The project, or experiment, of runs on a server."""

Tell = Callable[[Mapping[str, float], int], None]
"""(values by name, step) → nothing."""


@contextmanager
def tracking(name: Tracker | None, out: Path | None, plan: Plan, step: int, processes: Accelerator) -> Iterator[Tell]:
    """Where the leading process tells its metrics; without ``name``, nowhere.

    ``out``: the run directory. Its name is that of the run, and TensorBoard writes to its folder ``tensorboard``.
    ``step``: the first step. What TensorBoard has from there on is replaced.
    """
    if name is None or not processes.is_main_process:
        yield lambda values, step: None
        return
    require(out is not None, "`track`: expected `out` beside it, got none; name a run directory")
    assert out is not None
    tracker = _started(name, out, step)
    try:
        if step == 0:
            tracker.store_init_configuration(dict(plan.describe()))
        yield lambda values, step: tracker.log(dict(values), step=step)
    finally:
        tracker.finish()


def _started(name: Tracker, out: Path, step: int) -> Any:
    """The tracker of accelerate. A run that continues is the same run, except in MLflow."""
    own = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]
    arguments: dict[Tracker, tuple[str, dict[str, object]]] = {
        "tensorboard": ("tensorboard", {"logging_dir": str(out), "purge_step": step}),
        "wandb": (PROJECT, {"name": out.name, "id": own, "resume": "allow", "dir": str(out)}),
        "mlflow": (PROJECT, {"run_name": out.name}),
        "trackio": (PROJECT, {"name": out.name, "resume": "allow"}),
    }
    project, how = arguments[name]
    try:
        tracker = LOGGER_TYPE_TO_CLASS[name](project, **how)
        if hasattr(tracker, "start"):  # before accelerate 1.8, it starts when it is made
            tracker.start()
    except Exception as error:
        raise InputError(
            f"`track` {name}: expected it to start, got {first_line(error)}; see its documentation, or leave it out"
        ) from None
    return tracker
