"""Weights on disk: safetensors with the architecture and normalisation beside them.

Loading is strict and never runs code: a pickle that holds more than tensors is refused. The names that wrappers put in
are understood, see ``wrappers``.
"""

import json
import pickle
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.classifier import Classifier, NetworkSpec, build
from heatsmooth.models.resnet import ARCHITECTURES
from heatsmooth.models.wrappers import completed, read_names
from heatsmooth.runs import sha256, write_atomically

METADATA_KEY = "heatsmooth"
WEIGHTS_FILE = "model.safetensors"


def _inner(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, Classifier) else model


def serialise(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> bytes:
    """Tensors and JSON metadata as the bytes of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content: bytes = safetensors.torch.save(plain, {METADATA_KEY: json.dumps(metadata)})
    return content


def save(model: Classifier, path: Path) -> None:
    """Write the weights, architecture and normalisation to ``path``, atomically."""
    write_atomically(path, serialise(_inner(model).state_dict(), asdict(model.spec)))


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file or of a ``.pt`` state dict, and the metadata (empty if none)."""
    require(path.is_file(), f"{path}: expected a file of weights, got no such file; check the path")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        with warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path}: expected a state dict of tensors, got a pickle that holds code; save model.state_dict() instead"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: expected a state dict, got {first_line(error)}; the file is damaged or of another kind"
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    good = isinstance(content, dict) and bool(content) and all(isinstance(value, Tensor) for value in content.values())
    require(
        good,
        f"{path}: expected a state dict (names and tensors), got {type(content).__name__}; save model.state_dict()",
    )
    return content, {}


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected a safetensors file, got {error}; the file is damaged or of another kind"
        ) from None


def load(
    source: Path,
    *,
    model: str | None = None,
    classes: int = 10,
    channels: int = 3,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Classifier:
    """The classifier of a run directory or of a file of weights, in evaluation mode.

    A file that heatsmooth wrote says what network it is; for any other, ``model`` (with ``classes`` and
    ``channels`` for a built-in one) does. ``mean`` and ``std`` replace the recorded normalisation; for
    weights that stood behind one they must be given, or be in the file.
    """
    path = source / WEIGHTS_FILE if source.is_dir() else source
    state, metadata = load_state(path)
    spec = _recorded_spec(path, metadata)
    if spec is None:
        require(model is not None, f"{path}: expected --model beside weights that do not say their network; name it")
        assert model is not None
        spec = NetworkSpec(model, classes, channels)
    elif model is not None:
        require(
            model == spec.architecture,
            f"{path}: expected weights of --model {model}, got weights of {spec.architecture}; leave --model out",
        )
    elif spec.architecture not in ARCHITECTURES:
        raise InputError(
            f"{path}: expected --model {spec.architecture}, got none; heatsmooth imports code only where you name it"
        )
    if mean is not None or std is not None:
        mean, std = completed(mean, std)
        spec = replace(spec, mean=mean, std=std)
    network = build(spec).network
    reading = read_names(state, network.state_dict().keys())
    load_strictly(network, reading.state, path)
    if reading.normalised:
        mean, std = reading.agreed(path, mean, std)
        spec = replace(spec, mean=mean, std=std)
    return Classifier(network, spec).eval()


def _recorded_spec(path: Path, metadata: dict[str, Any]) -> NetworkSpec | None:
    if not metadata:
        return None
    try:
        spec = NetworkSpec(**metadata)
        return replace(spec, mean=tuple(map(float, spec.mean)), std=tuple(map(float, spec.std)))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected the metadata heatsmooth writes, got {error}; name the network with --model"
        ) from None


def load_strictly(network: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load every parameter and buffer, or raise an error that names the first that does not fit."""
    own = network.state_dict()
    missing, foreign = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    remedy = "choose the --model (and --classes) these weights were trained with"
    if missing or foreign:
        found = (
            f"{len(missing)} missing (first: {missing[0]})"
            if missing
            else f"{len(foreign)} unknown (first: {foreign[0]})"
        )
        raise InputError(f"{path}: expected the {len(own)} tensors of the network, got {found}; {remedy}")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"{path}: expected {name} of shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}; {remedy}"
            )
    network.load_state_dict(state, strict=True)


def model_hash(model: nn.Module) -> str:
    """A hash of all weights and buffers with their names, and of the normalisation."""
    parts = []
    for name, tensor in sorted(_inner(model).state_dict().items()):
        parts += [name.encode(), tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()]
    spec = getattr(model, "spec", None)
    return sha256(*parts, json.dumps([spec.mean, spec.std] if isinstance(spec, NetworkSpec) else []).encode())[:16]
