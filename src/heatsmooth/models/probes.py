"""The answers of a network on fixed probe images, which are part of its identity.

The images depend only on their shape. They are the same on every machine and in every version.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.identity import Identity
from heatsmooth.models import hub
from heatsmooth.models.checkpoint import model_hash
from heatsmooth.models.classifier import device_of, evaluating, logits_for
from heatsmooth.models.onnx_reading import ONNX
from heatsmooth.models.program import PROGRAM
from heatsmooth.models.spec import NetworkSpec

PROBES, NUMBERS = 4, 8
"""Number of probe images, and of the numbers recorded per image."""
COARSE, NOISE = 4, 0.3
"""Images are smooth, interpolated from this many points per side; the second half has this share of noise."""
DIGITS = 7
FILES = (ONNX, PROGRAM)
"""Architectures whose network is one file."""
NOT_A_NUMBER, INFINITE = 750.0, 1000.0
"""Replacements for logits that are not finite; log(1 + x) is below 710 for every finite number."""


def identify(model: nn.Module, shape: Sequence[int]) -> Identity:
    """The identity of a network, from probe images of this shape (channels, height, width), on its device.

    If two passes differ, as with active dropout, the identity has only architecture and weights.
    """
    images = probe_images(shape).to(device_of(model))
    with evaluating(model), torch.random.fork_rng(_devices(images)):
        once, again = (_answers(logits_for(model, images)) for _ in range(2))
    identity = Identity(model_hash(model), _architecture(model), tuple(shape), once, _file(model))
    stable = identity.difference(replace(identity, answers=again)) is None
    return identity if stable else replace(identity, answers=None)


def is_known_as(model: nn.Module, recorded: Identity) -> bool:
    """Whether a network is the recorded one, by everything that was recorded."""
    if model_hash(model) != recorded.weights:
        return False
    return recorded.shape is None or identify(model, recorded.shape).difference(recorded) is None


def probe_images(shape: Sequence[int]) -> Tensor:
    """``PROBES`` images (channels, height, width) in [0, 1], float32: smooth ones, then smooth ones with noise."""
    channels, height, width = shape
    coarse = _uniform("smooth", (PROBES, channels, COARSE, COARSE))
    smooth = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
    share = torch.tensor([0.0 if number < PROBES // 2 else NOISE for number in range(PROBES)]).view(-1, 1, 1, 1)
    return (1 - share) * smooth + share * _uniform("noise", (PROBES, channels, height, width))


def _uniform(purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1] that are the same in every version of every library: the bytes of a hash."""
    content = hashlib.shake_256(f"heatsmooth probe {purpose}".encode()).digest(int(np.prod(shape)))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape).to(torch.float32) / 255


def _answers(logits: Tensor) -> tuple[tuple[float, ...], ...]:
    """At most ``NUMBERS`` per row: ±log(1 + |logit|) or, for more classes, fixed random mixtures of all of them.

    Without the logarithm, one huge logit, such as that of a masked class, would hide the others.
    """
    exact = logits.detach().double().cpu()
    finite = (exact.sign() * exact.abs().log1p()).nan_to_num(NOT_A_NUMBER, INFINITE, -INFINITE)
    classes = finite.shape[1]
    if classes > NUMBERS:
        mixture = _uniform("mixture", (classes, NUMBERS)).double() * 2 - 1
        finite = finite @ mixture / mixture.norm(dim=0)
    return tuple(tuple(float(f"{number:.{DIGITS}g}") for number in row) for row in finite.tolist())


def _architecture(model: nn.Module) -> str:
    spec = getattr(model, "spec", None)
    if not isinstance(spec, NetworkSpec):
        return f"{type(model).__module__}.{type(model).__qualname__}"
    return hub.PREFIX.rstrip(":") if spec.architecture.startswith(hub.PREFIX) else spec.architecture


def _file(model: nn.Module) -> str | None:
    """The SHA-256 of the file that is the network, where the spec holds it."""
    spec = getattr(model, "spec", None)
    return spec.config if isinstance(spec, NetworkSpec) and spec.architecture in FILES else None


def _devices(images: Tensor) -> list[torch.device]:
    """Devices, in addition to the CPU, whose random generators a pass may use."""
    return [images.device] if images.device.type == "cuda" else []
