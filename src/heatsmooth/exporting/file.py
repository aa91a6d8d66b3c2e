"""The network in one pass, with its radii, as an ONNX file that needs neither torch nor heatsmooth.

    images (batch, channels, height, width), float32 in [0, 1]
      → probabilities (batch, classes), class (batch,), and radii (batch,): l_bound for a noise level,
        calibrated_radius if calibrated, certified_radius if the network is Lipschitz by construction;
        after calibrate --learn-votes also votes (batch, classes) and class_of_average (batch,)

The metadata of the file state, for each output, which model it covers and what it rests on. The file is written only
after onnxruntime, reading the same bytes, gave the same results as the network.
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
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.calibration import Calibration
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.exporting.one_pass import OnePassNetwork
from heatsmooth.models import (
    Voter,
    check_independence,
    count_classes,
    identify,
    is_lipschitz,
    is_onnx,
    require_voter,
)
from heatsmooth.models.votes import voter_hash
from heatsmooth.progress import Progress, silent
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.runs import write_atomically
from heatsmooth.statistics.radii import l_bound
from heatsmooth.version import VERSION

TOLERANCE = 1e-5
"""Largest difference of a probability between the file, in onnxruntime, and the network."""
RANDOM_IMAGES, SEED = 200, 0
"""Number of random images, uniform in [0, 1], that are part of every check, and their seed."""
FIRST_BATCHES, BATCH = (1, 2, 7), 50
"""Batch sizes of the check: the first three batches, then all others."""
INVALID_PIXELS, HUGE_PIXEL = (math.nan, math.inf, -math.inf), 1e38
"""Pixels that have no radius."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how it was checked."""

    path: Path
    outputs: tuple[str, ...]
    metadata: dict[str, str]
    images: int
    """Number of images the file was checked on."""
    largest_difference: float
    """Largest difference of a probability between the file and the network; at most ``TOLERANCE``."""


def export_onnx(
    model: nn.Module,
    path: Path | str,
    images: Tensor,
    *,
    sigma: float | None = None,
    calibration: Calibration | None = None,
    head: Voter | None = None,
    facts: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write ``model`` in evaluation mode to ``path`` as ONNX with a dynamic batch size.

    The file is checked on ``images`` and on ``RANDOM_IMAGES`` random ones, in batches of several sizes. Nothing is
    written if a probability differs by more than ``TOLERANCE``, or if a radius does not follow from the probabilities.

    ``model``: returns logits (batch, classes) for images in [0, 1].
    ``path``: the file to write.
    ``images``: (some, channels, height, width) in [0, 1]; they also fix the size of an image.
    ``sigma``: the noise level of the average, in [0, 1] pixels, for the L-bound. A network that is Lipschitz by
    construction needs none: its file has the output ``certified_radius``.
    ``calibration``: adds the output ``calibrated_radius``; its σ must be ``sigma``.
    ``head``: that of the calibration, if it has one; adds the outputs ``votes`` and ``class_of_average``.
    ``facts``: further metadata of the file.
    ``progress``: called as the work proceeds.
    """
    require(not is_onnx(model), "export: expected a PyTorch network, got an ONNX file; it is exported already")
    onnxruntime = _onnxruntime()
    _check_sigma(model, sigma, calibration)
    require_voter(calibration.head if calibration else None, head)
    plain = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # missing in torch's stubs
    examples = _examples(images)
    classes = count_classes(plain, examples)
    require(classes >= 2, f"expected a network of at least 2 classes, got {classes}; export another network")
    check_independence(plain, examples[: max(FIRST_BATCHES)])
    own_head = None if head is None else copy.deepcopy(head).cpu().requires_grad_(False)
    one_pass = OnePassNetwork(plain, sigma=sigma, calibration=calibration, head=own_head).eval()
    metadata = _metadata(model, tuple(images.shape[1:]), sigma, calibration, head) | dict(facts or {})
    outputs = tuple(key.removesuffix(".subject") for key in metadata if key.endswith(".subject"))
    progress("exporting", 0, 1)
    content = _onnx(one_pass, examples[: max(FIRST_BATCHES)], outputs, metadata)
    progress("exporting", 1, 1)
    session = _session(onnxruntime, content)
    difference = _check(session, one_pass, examples, progress)
    _check_invalid_pixels(session, examples[0], outputs)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)
    return Exported(file, outputs, metadata, len(examples), difference)


def _check_sigma(model: nn.Module, sigma: float | None, calibration: Calibration | None) -> None:
    """Refuse a noise level that is not that of the calibration, and none where the radius needs one."""
    calibrated = sigma if calibration is None else calibration.sigma
    needed = sigma is not None or (calibration is None and is_lipschitz(model))
    require(needed, "`sigma`: expected the noise level, got none; only a network made by heatsmooth distill needs none")
    require(sigma is None or 0 < sigma < math.inf, f"`sigma`: expected a positive number, got {sigma}")
    require(
        calibrated == sigma,
        f"`sigma`: expected {calibrated}, with which the model was calibrated, got {sigma}; use {calibrated}",
    )


def _examples(images: Tensor) -> Tensor:
    """The images of the check: random ones, then ``images``; an error if those are not in [0, 1]."""
    random = torch.rand(RANDOM_IMAGES, *images.shape[1:], generator=torch.Generator().manual_seed(SEED))
    examples = torch.cat([random, images.detach().cpu().to(torch.float32)])
    low, high = (float(end) for end in examples.aminmax())
    require(
        0 <= low <= high <= 1,
        f"export: expected images in [0, 1], got values from {low:.3g} to {high:.3g}; divide by 255",
    )
    return examples


def _onnxruntime() -> ModuleType:
    """The module onnxruntime; an error that names the extra to install if a package is missing."""
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
    model: nn.Module,
    shape: tuple[int, ...],
    sigma: float | None,
    calibration: Calibration | None,
    head: Voter | None,
) -> dict[str, str]:
    """The metadata of the file, as strings, with the subject and basis of each output."""
    size, identity = ", ".join(map(str, shape)), identify(model, shape)
    metadata = {
        "heatsmooth_version": VERSION,
        "model_hash": identity.weights,
        "network": json.dumps(identity.to_json()),
        "images": f"(batch, {size}), float32 in [0, 1]; the normalisation is inside",
        "units": "sigma and radii: L2, pixels in [0, 1]",
    }
    outputs = {"probabilities": ("network", "one pass"), "class": ("network", "one pass")}
    if head is not None:
        metadata["head"] = voter_hash(head)
        outputs |= dict.fromkeys(("votes", "class_of_average"), ("average", head.basis))
    if sigma is not None:
        metadata["sigma"] = repr(float(sigma))
        outputs["l_bound"] = ("network", BasisKind.EXACT_AVERAGE)
    for output, (subject, basis) in outputs.items():
        metadata |= {f"{output}.subject": subject, f"{output}.basis": basis}
    if calibration is not None:
        metadata |= {
            "calibrated_radius.subject": calibration.subject,
            "calibrated_radius.basis": str(calibration.basis),
            "epsilon": repr(float(calibration.epsilon)),
            "alpha": repr(float(calibration.alpha)),
        }
    if is_lipschitz(model):
        metadata |= {"certified_radius.subject": "network", "certified_radius.basis": BasisKind.DETERMINISTIC}
    return metadata


def _onnx(one_pass: OnePassNetwork, examples: Tensor, outputs: tuple[str, ...], metadata: dict[str, str]) -> bytes:
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
    except Exception as error:  # tracing runs the user's code on symbolic tensors, which may raise anything
        cause = error.__cause__ or error
        raise InputError(
            "export: expected a network that torch.export can trace with any batch size, "
            f"got {type(cause).__name__}: {first_line(cause)}; rewrite that part of its forward"
        ) from None
    return content


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the messages of torch's exporter about its own deprecations and about packages not installed."""
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
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise InputError(
            f"export: expected a file that onnxruntime {onnxruntime.__version__} reads, got {first_line(error)}; "
            "try another version of onnxruntime"
        ) from None


def _check(session: Any, one_pass: OnePassNetwork, images: Tensor, progress: Progress) -> float:
    """The largest difference of a probability; an error if it is too large or another output does not follow."""
    first = sum(FIRST_BATCHES)
    batches = [*images[:first].split(FIRST_BATCHES), *images[first:].split(BATCH)]
    largest, done = 0.0, 0
    for batch in batches:
        probabilities, *others = session.run(None, {"images": batch.numpy()})
        with torch.inference_mode():
            logits, votes = one_pass.one_pass(batch)
            proven = None if one_pass.proven is None else one_pass.proven.parts(batch, logits)
        differences, shares = [np.abs(probabilities - logits.softmax(1).numpy()).max()], probabilities
        if one_pass.head is not None:
            shares = others.pop(1)
            differences.append(np.abs(shares - votes.softmax(1).numpy()).max())
        difference = float(max(differences))
        require(
            difference <= TOLERANCE,
            f"export: expected probabilities within {TOLERANCE:g} of the network's, got a difference of "
            f"{difference:.3g} in a batch of {len(batch)}, so nothing was written; make the network deterministic",
        )
        alike = one_pass.head is None or bool((others.pop(1) == shares.argmax(1)).all())
        alike = alike and (proven is None or _is_proven(others.pop(), *proven))
        limits = [] if one_pass.sigma is None else [l_bound(probabilities, sigma=one_pass.sigma)]
        if one_pass.calibration is not None:
            limits.append(one_pass.calibration.radius(shares))
        conclusions = one_pass.conclusions(torch.from_numpy(probabilities), torch.from_numpy(shares))
        alike = alike and all(np.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(others, conclusions, strict=True))
        sound = all(bool((radius <= limit).all()) for radius, limit in zip(others[1:], limits, strict=True))
        require(
            alike and sound,
            "export: expected class and radii that follow from the probabilities, got different ones in onnxruntime, "
            "so nothing was written; try another version of onnxruntime",
        )
        largest, done = max(largest, difference), done + len(batch)
        progress("checking in onnxruntime", done, len(images))
    return largest


def _is_proven(exported: NDArray[np.float32], radii: Tensor, subtracted: Tensor) -> bool:
    """Whether exported radii are those of the network within ``TOLERANCE``, and below the bound in real numbers.

    The bound is at least half of what was ``subtracted`` for rounding errors above the radii of the network.
    """
    found = torch.from_numpy(exported).double()
    near = torch.allclose(found, radii, rtol=0, atol=TOLERANCE)
    return near and bool((found <= radii + subtracted / 2).all())


def _check_invalid_pixels(session: Any, image: Tensor, outputs: tuple[str, ...]) -> None:
    """Refuse a file that gives a positive radius to an image with an invalid pixel, or to one of huge pixels."""
    images = image.repeat(len(INVALID_PIXELS) + 1, 1, 1, 1)
    images[:-1, 0, 0, 0] = torch.tensor(INVALID_PIXELS)
    images[-1] = HUGE_PIXEL
    radii = session.run([name for name in outputs if name.endswith(("radius", "bound"))], {"images": images.numpy()})
    require(
        all(bool((radius == 0).all()) for radius in radii),
        "export: expected radii of 0 for images with NaN, infinite or huge pixels, got others in onnxruntime, "
        "so nothing was written; try another version of onnxruntime",
    )
