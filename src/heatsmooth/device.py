"""How exactly a device computes: float32 stays float32 while heatsmooth computes.

On GPUs since Ampere, torch lets convolutions round float32 inputs to TF32 (10 bits of mantissa) unless it is told not
to, and a user may have allowed the same, or bfloat16, for matrix products. Finite differences, class counts and the
comparison of a network with its faster form need all 23 bits.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

PRECISION = "float32"
"""What runs record about how they were computed: never TF32 nor bfloat16."""


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
