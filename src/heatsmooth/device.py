"""Device, processes and exact float32.

On GPUs since Ampere, torch by default rounds the float32 inputs of convolutions to TF32 (10 bits of mantissa). A user
may have allowed the same, or bfloat16, for matrix products. Finite differences, class counts and the comparison of a
network with its faster form need all 23 bits.
"""

import atexit
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from heatsmooth.errors import require

PATIENCE = timedelta(days=7)
"""Longest time that processes wait for each other. The launcher ends all of them when one fails."""
PRECISION = "float32"
"""The precision that runs record: never TF32 or bfloat16."""


def accelerator(device: str | None = None) -> Accelerator:
    """The accelerate processes of this run: one alone, or as ``accelerate launch`` or ``torchrun`` set them up.

    Launched processes without a GPU compute on the CPU and still work together. A process waits for the others up to
    ``PATIENCE``, because parts of a certification may differ by hours.

    ``device``: "cpu", or the kind of accelerator of this machine; None selects the accelerator if there is one.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    require(
        precision in ("", "no"),
        f"expected --mixed_precision no, got {precision}; finite differences and class counts need float32",
    )
    launched = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    on_cpu = device == "cpu" or (launched > 1 and not torch.accelerator.is_available())
    patient = InitProcessGroupKwargs(timeout=PATIENCE)
    buffers = DistributedDataParallelKwargs(broadcast_buffers=False)
    if launched > 1 and on_cpu:
        atexit.register(_leave)
    processes = Accelerator(cpu=on_cpu, kwargs_handlers=[buffers, patient])
    kind = processes.device.type
    require(device in (None, kind), f"`device`: expected {kind} on this machine, got {device}; leave it out")
    require(
        processes.num_processes == launched,
        f"`device`: expected {launched} connected processes, got one alone on {kind}; use `device` cpu",
    )
    return processes


def _leave() -> None:
    """Close the connections between processes on CPUs.

    Otherwise a thread of gloo may free a tensor while Python ends, which aborts the process with SIGABRT.
    """
    if distributed.is_initialized():
        gc.collect()  # frees networks that hold the connections
        distributed.destroy_process_group()


@dataclass(frozen=True)
class _Switch:
    """A setting of torch, and its value for exact float32."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    exact: Any


def _switches() -> list[_Switch]:
    """All settings that can round float32, in the order of writing: later ones refine earlier ones."""
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
    ]  # the last kind exists since torch 2.9


def _attribute(holder: Any, name: str, exact: Any) -> _Switch:
    return _Switch(lambda: getattr(holder, name), lambda value: setattr(holder, name, value), exact)


_lock = threading.Lock()
_inside = 0
_before: list[tuple[_Switch, Any]] = []


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute float32 exactly inside this context or decorator; restore the user's settings afterwards.

    The settings belong to the process. The first thread that enters changes them and the last one that leaves restores
    them, so no thread falls back to TF32 when another one leaves.
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
    """The settings with their values, without old ones that torch refuses to read because new ones disagree."""
    values = []
    for switch in switches:
        try:
            values.append((switch, switch.read()))
        except RuntimeError:
            continue
    return values
