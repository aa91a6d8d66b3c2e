"""Where heatsmooth computes: on which device, among which processes, and in float32 that stays float32.

On GPUs since Ampere, torch lets convolutions round float32 inputs to TF32 (10 bits of mantissa) unless it is told not
to, and a user may have allowed the same, or bfloat16, for matrix products. Finite differences, class counts and the
comparison of a network with its faster form need all 23 bits.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from heatsmooth.errors import require

PATIENCE = timedelta(days=7)
"""How long processes wait for each other; the launcher ends all of them when one fails."""
PRECISION = "float32"
"""What runs record about how they were computed: never TF32 nor bfloat16."""


def accelerator(device: str | None = None) -> Accelerator:
    """The processes this one belongs to: alone, or as ``accelerate launch`` or ``torchrun`` set it up.

    Launched processes without a GPU compute on the CPU and still belong together. A process waits for the others as
    long as it takes: shares of a certification may differ by hours.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    require(
        precision in ("", "no"),
        f"expected --mixed_precision no, got {precision}; finite differences and class counts are float32",
    )
    launched = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    on_cpu = device == "cpu" or (launched > 1 and not torch.accelerator.is_available())
    patient = InitProcessGroupKwargs(timeout=PATIENCE)
    buffers = DistributedDataParallelKwargs(broadcast_buffers=False)
    processes = Accelerator(cpu=on_cpu, kwargs_handlers=[buffers, patient])
    kind = processes.device.type
    require(device in (None, kind), f"--device: expected {kind} on this machine, got {device}; leave it out")
    require(
        processes.num_processes == launched,
        f"expected {launched} processes that know of each other, got one alone on {kind}; add --device cpu",
    )
    return processes


@dataclass(frozen=True)
class _Switch:
    """A setting of torch's, and its value at which float32 is computed as float32."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    exact: Any


def _switches() -> list[_Switch]:
    """All that could round float32, in the order in which they must be written: later ones refine earlier ones."""
    backends = torch.backends
    operations = [
        *(getattr(backends.cudnn, name, None) for name in ("conv", "rnn")),
        backends.cuda.matmul,
        *(getattr(backends.mkldnn, name, None) for name in ("conv", "rnn", "matmul")),
    ]
    return [
        _attribute(backends.cudnn, "allow_tf32", False),
        _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        *(_attribute(one, "fp32_precision", "ieee") for one in operations if hasattr(one, "fp32_precision")),
    ]  # the last kind since torch 2.9


def _attribute(holder: Any, name: str, exact: Any) -> _Switch:
    return _Switch(lambda: getattr(holder, name), lambda value: setattr(holder, name, value), exact)


_lock = threading.Lock()
_inside = 0
_before: list[tuple[_Switch, Any]] = []


@contextmanager
def exact_float32() -> Iterator[None]:
    """Within it, also as a decorator, float32 is computed as float32; afterwards the user's settings are back.

    The settings belong to the process. They are changed by the first thread that enters and restored by the last one
    that leaves, so that none of them is left in TF32 when another one is done.
    """
    global _inside
    with _lock:
        if _inside == 0:
            _before[:] = _readable(_switches())
            for switch, _ in _before:
                switch.write(switch.exact)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                for switch, value in _before:
                    switch.write(value)


def _readable(switches: list[_Switch]) -> list[tuple[_Switch, Any]]:
    """The settings with their values, without older ones that torch refuses to tell because newer ones disagree."""
    found = []
    for switch in switches:
        try:
            found.append((switch, switch.read()))
        except RuntimeError:
            continue
    return found
