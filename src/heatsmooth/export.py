"""The network in one pass, with its radii, as an ONNX file that needs neither torch nor heatsmooth.

    images (batch, channels, height, width), float32 in [0, 1]
      → probabilities (batch, classes), class (batch,), l_bound (batch,), and calibrated_radius (batch,) if calibrated

The file says of each output which model it speaks of and on what it rests, in its metadata. It is written only after
onnxruntime has given, from the very bytes, what the network gives.
"""

import copy
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.calibrate import Calibration
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models import check_independence, count_classes, identify
from heatsmooth.progress import Progress, silent
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.runs import write_atomically
from heatsmooth.statistics.radii import l_bound
from heatsmooth.version import VERSION

TOLERANCE = 1e-5
"""Largest difference of a probability between the file, in onnxruntime, and the network."""
RANDOM_IMAGES, SEED = 200, 0
"""So many random images, uniform in [0, 1], are always part of the check."""
FIRST_BATCHES, BATCH = (1, 2, 7), 50
"""The sizes of the batches the check goes through: these once, then this."""
BELOW = 1 - 2.0**-23
"""A double times this is still less after rounding to float32: exported radii never exceed the computed ones."""
EDGE = 1e-6
"""How far a pixel may lie outside [0, 1], by rounding, and still have a radius."""
SPOILERS, HUGE = (math.nan, math.inf, -math.inf), 1e38
"""Pixels that have no radius."""
APART = 1 - 1e-12
"""Levels of doubt are lowered by this, so that the order of a sum never enlarges a calibrated radius."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how it was checked."""

    path: Path
    outputs: tuple[str, ...]
    metadata: dict[str, str]
    images: int
    """How many images the file was checked on."""
    largest_difference: float
    """Of a probability, between the file and the network; at most ``TOLERANCE``."""


class OnePass(nn.Module):
    """Probabilities, class, L-bound and, with a calibration, the calibrated radius, all from one pass of ``model``.

    Both radii are L2 in [0, 1] pixels and rounded down. The L-bound is about the network, if it were exactly an
    average over N(0, σ²I); the calibrated radius about the average, as ``Calibration`` says. Both are 0, which claims
    nothing, where a pixel is NaN or outside [0, 1] by more than ``EDGE``, and where a logit is not finite.
    """

    slope: Tensor
    levels: Tensor
    radii: Tensor

    def __init__(self, model: nn.Module, *, sigma: float, calibration: Calibration | None = None) -> None:
        super().__init__()
        self.model, self.sigma, self.calibration = model, sigma, calibration
        steps = torch.tensor([(math.inf, 0.0), *(calibration.steps if calibration else ())], dtype=torch.float64)
        slope = torch.tensor(sigma * math.sqrt(math.pi / 2), dtype=torch.float64)
        self.register_buffer("slope", slope * BELOW)  # as buffers, constants keep all digits in the file
        self.register_buffer("levels", steps[:, 0] * APART)
        self.register_buffer("radii", (steps[:, 1] * BELOW).float())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        logits = self.model(images)
        probabilities = logits.softmax(1)
        pixels = images.flatten(1)
        inside = ((pixels >= -EDGE) & (pixels <= 1 + EDGE)).all(1)  # NaN is not
        known = inside & logits.isfinite().all(1)
        chosen, *radii = self.conclusions(probabilities)
        return probabilities, chosen, *(torch.where(known, radius, 0.0) for radius in radii)

    def conclusions(self, probabilities: Tensor) -> tuple[Tensor, ...]:
        """Class and radii of ``probabilities`` (batch, classes), each (batch,); radii are 0 where one is NaN."""
        chosen = probabilities.argmax(1)
        exact = probabilities.double()
        first, second = exact.topk(2, dim=1).values.unbind(1)
        gap = first - second
        bound = (self.slope * torch.where(gap > 0, gap, 0.0)).float()
        if self.calibration is None:
            return chosen, bound
        others = torch.arange(exact.shape[1], device=exact.device) != chosen[:, None]
        doubt = (exact * others).sum(1, keepdim=True)
        level = ((doubt <= self.levels).sum(1) - 1).clamp_min(0)  # NaN is below no level, not even the infinite one
        return chosen, bound, self.radii[level]


def export_onnx(
    model: nn.Module,
    path: Path | str,
    images: Tensor,
    *,
    sigma: float,
    calibration: Calibration | None = None,
    facts: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write ``model``, as it is in evaluation mode, to ``path`` as ONNX with a dynamic batch.

    ``images`` (some, channels, height, width) in [0, 1] fix the size of an image and are what the file is checked on,
    with ``RANDOM_IMAGES`` random ones, in batches of several sizes. Where a probability differs by more than
    ``TOLERANCE``, or a radius is not that of the probabilities, nothing is written. ``facts`` go into the metadata.
    """
    needed = _needed()
    require(0 < sigma < math.inf, f"--sigma: expected a positive number, got {sigma}")
    if calibration is not None:
        require(
            calibration.sigma == sigma,
            f"--sigma: expected {calibration.sigma:g}, with which the model was calibrated, got {sigma:g}; give that",
        )
    plain = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # missing in torch's stubs
    random = torch.rand(RANDOM_IMAGES, *images.shape[1:], generator=torch.Generator().manual_seed(SEED))
    shown = torch.cat([random, images.detach().cpu().to(torch.float32)])
    low, high = (float(end) for end in shown.aminmax())
    require(
        0 <= low <= high <= 1,
        f"export: expected images in [0, 1], got values from {low:.3g} to {high:.3g}; divide by 255",
    )
    classes = count_classes(plain, shown)
    require(classes >= 2, f"expected a network of at least 2 classes, got {classes}; export another")
    check_independence(plain, shown[: max(FIRST_BATCHES)])
    one_pass = OnePass(plain, sigma=sigma, calibration=calibration).eval()
    metadata = _metadata(model, tuple(images.shape[1:]), sigma, calibration) | dict(facts or {})
    outputs = tuple(key.removesuffix(".subject") for key in metadata if key.endswith(".subject"))
    progress("exporting", 0, 1)
    content = _onnx(one_pass, shown[: max(FIRST_BATCHES)], outputs, metadata)
    progress("exporting", 1, 1)
    session = _session(needed, content)
    difference = _check(session, one_pass, shown, progress)
    _check_spoiled(session, shown[0])
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)
    return Exported(file, outputs, metadata, len(shown), difference)


def _needed() -> ModuleType:
    """Onnxruntime, or an error that says how to get what the export needs."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"export: expected onnx, onnxruntime and onnxscript, got no {error.name}; pip install 'heatsmooth[export]'"
        ) from None
    module: ModuleType = onnxruntime
    return module


def _metadata(
    model: nn.Module, shape: tuple[int, ...], sigma: float, calibration: Calibration | None
) -> dict[str, str]:
    """What the file says of itself: strings, as ONNX wants; of each output its subject and basis."""
    size, identity = ", ".join(map(str, shape)), identify(model, shape)
    metadata = {
        "heatsmooth_version": VERSION,
        "model_hash": identity.weights,
        "network": json.dumps(identity.to_json()),
        "images": f"(batch, {size}), float32 in [0, 1]; the normalisation is inside",
        "sigma": repr(float(sigma)),
        "units": "sigma and radii: L2, pixels in [0, 1]",
    }
    for output, subject, basis in (
        ("probabilities", "network", "one pass"),
        ("class", "network", "one pass"),
        ("l_bound", "network", BasisKind.EXACT_AVERAGE),
    ):
        metadata |= {f"{output}.subject": subject, f"{output}.basis": basis}
    if calibration is not None:
        metadata |= {
            "calibrated_radius.subject": calibration.subject,
            "calibrated_radius.basis": str(calibration.basis),
            "epsilon": repr(float(calibration.epsilon)),
            "alpha": repr(float(calibration.alpha)),
        }
    return metadata


def _onnx(one_pass: OnePass, examples: Tensor, outputs: tuple[str, ...], metadata: dict[str, str]) -> bytes:
    """The bytes of the file."""
    try:
        with _quietly():
            program = torch.onnx.export(
                one_pass,
                (examples,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=list(outputs),
                dynamic_shapes={"images": {0: "batch"}},
                external_data=False,
            )
            assert program is not None
            program.model.metadata_props.update(metadata)
            content: bytes = program.model_proto.SerializeToString()
    except Exception as error:  # tracing runs the user's code on stand-ins, which may raise anything
        cause = error.__cause__ or error
        raise InputError(
            "export: expected a network that torch.export can trace with any batch size, "
            f"got {type(cause).__name__}: {first_line(cause)}; rewrite that part of its forward"
        ) from None
    return content


@contextmanager
def _quietly() -> Iterator[None]:
    """Torch's exporter speaks of its own affairs: deprecations inside, operators of packages not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _session(onnxruntime: ModuleType, content: bytes) -> Any:
    try:
        return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common kind
        raise InputError(
            f"export: expected a file that onnxruntime {onnxruntime.__version__} reads, got {first_line(error)}; "
            "try another version of it"
        ) from None


def _check(session: Any, one_pass: OnePass, images: Tensor, progress: Progress) -> float:
    """The largest difference of a probability; an error where it is too large, or another output does not follow."""
    first = sum(FIRST_BATCHES)
    batches = [*images[:first].split(FIRST_BATCHES), *images[first:].split(BATCH)]
    largest, done = 0.0, 0
    for batch in batches:
        probabilities, *others = session.run(None, {"images": batch.numpy()})
        with torch.inference_mode():
            expected = one_pass.model(batch).softmax(1).numpy()
            conclusions = one_pass.conclusions(torch.from_numpy(probabilities))
        difference = float(np.abs(probabilities - expected).max())
        require(
            difference <= TOLERANCE,
            f"export: expected probabilities within {TOLERANCE:g} of the network's, got a difference of "
            f"{difference:.3g} in a batch of {len(batch)}, so nothing was written; is the network random?",
        )
        most = [l_bound(probabilities, sigma=one_pass.sigma)]
        if one_pass.calibration is not None:
            most.append(one_pass.calibration.radius(probabilities))
        alike = all(np.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(others, conclusions, strict=True))
        sound = all(bool((radius <= limit).all()) for radius, limit in zip(others[1:], most, strict=True))
        require(
            alike and sound,
            "export: expected class and radii that follow from the probabilities, got others in onnxruntime, "
            "so nothing was written; try another version of it",
        )
        largest, done = max(largest, difference), done + len(batch)
        progress("checking in onnxruntime", done, len(images))
    return largest


def _check_spoiled(session: Any, image: Tensor) -> None:
    """Refuse a file that gives a radius to an image with one pixel that is none, or to one of huge pixels."""
    spoiled = image.repeat(len(SPOILERS) + 1, 1, 1, 1)
    spoiled[:-1, 0, 0, 0] = torch.tensor(SPOILERS)
    spoiled[-1] = HUGE
    _, _, *radii = session.run(None, {"images": spoiled.numpy()})
    require(
        all(bool((radius == 0).all()) for radius in radii),
        "export: expected radii of 0 for images with NaN, infinite or huge pixels, got others in onnxruntime, "
        "so nothing was written; try another version of it",
    )
