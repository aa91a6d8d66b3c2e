"""Weights on disk: safetensors with the architecture and normalisation beside them.

Loading is strict and never runs code: a pickle that holds more than tensors is refused. The names that wrappers put in
are understood, see ``wrappers``.
"""

import json
import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models import hub
from heatsmooth.models.archives import DAMAGED, check_archive, tensors_only
from heatsmooth.models.classifier import Classifier, build, channels_last, channels_of
from heatsmooth.models.program import PROGRAM, load_program, refuse_program
from heatsmooth.models.resnet import ARCHITECTURES
from heatsmooth.models.spec import NetworkSpec
from heatsmooth.models.wrappers import completed, read_names
from heatsmooth.runs import sha256, write_atomically

METADATA_KEY = "heatsmooth"
DIGEST_KEY = "sha256"
WEIGHTS_FILE = "model.safetensors"
CALLABLE = re.compile(r"[A-Za-z_][\w.]*:\w+")
MOST = 1_000_000
"""No network has more classes or channels."""


def _inner(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, Classifier) else model


def serialise(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> bytes:
    """Tensors and JSON metadata as the bytes of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = json.dumps(metadata | {DIGEST_KEY: _digest(plain, metadata)})
    content: bytes = safetensors.torch.save(plain, {METADATA_KEY: facts})
    return content


def _digest(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> str:
    """A hash of everything a file of weights says."""
    parts = [json.dumps(metadata).encode()]
    for name, tensor in sorted(tensors.items()):
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), _bytes(tensor)]
    return sha256(*parts)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def save(model: Classifier, path: Path | str) -> None:
    """Write the weights, architecture and normalisation to ``path``, atomically."""
    refuse_program(model)
    write_atomically(Path(path), serialise(_inner(model).state_dict(), model.spec.describe()))


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a safetensors file or of a ``.pt`` state dict, and the metadata (empty if none)."""
    require(path.is_file(), f"{path}: expected a file of weights, got no such file; check the path")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    check_archive(path)
    try:
        with warnings.catch_warnings(action="ignore"), tensors_only():
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path}: expected a state dict of tensors, got a pickle that holds code; save model.state_dict() instead"
        ) from None
    except DAMAGED as error:
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


def _read_safetensors(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of one moment: the file is read once, as another process may be replacing it."""
    try:
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = json.loads(header.get("__metadata__", {}).get(METADATA_KEY, "{}"))
        found = safetensors.torch.load(content) if tensors else {}
        digest = metadata.pop(DIGEST_KEY, None)
        whole = not tensors or digest is None or digest == _digest(found, metadata)
    except (safetensors.SafetensorError, *DAMAGED) as error:
        raise InputError(
            f"{path}: expected a safetensors file, got {first_line(error)}; the file is damaged or of another kind"
        ) from None
    require(whole, f"{path}: expected the weights that were written, got others; the file is damaged")
    return found, metadata


def load(
    source: Path | str,
    *,
    model: str | None = None,
    classes: int = 10,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Classifier:
    """The classifier of a run directory, a file, ``hf:NAME`` or ``package.module:callable``, in evaluation mode.

    What heatsmooth or transformers wrote says what network it is; for any other file of weights, ``model`` (with
    ``classes`` and ``channels`` for a built-in one) does. A file that is a program (``model="program"``) and a
    callable, which brings its own weights, need nothing else. ``mean`` and ``std`` replace the recorded normalisation;
    for weights that stood behind one they must be given, or be in the file. Without ``channels``: those of the first
    convolution of a callable or a program, else 3.
    """
    source = Path(source)
    name = hub.hub_name(source)
    if name is not None:
        require(
            model in (None, hub.PREFIX + name),
            f"{source}: expected --model hf:{name} or none, got {model}; the directory says its network itself",
        )
        return channels_last(Classifier(*hub.pretrained(name, mean=mean, std=std))).eval()
    if model == PROGRAM:
        program, facts = load_program(source)
        return _taking(channels, Classifier(program, _renormalised(facts, mean, std)))
    if model is None and CALLABLE.fullmatch(str(source)):
        return _taking(channels, build(_renormalised(NetworkSpec(str(source), classes), mean, std)))
    path = source / WEIGHTS_FILE if source.is_dir() else source
    state, metadata = load_state(path)
    spec = _recorded_spec(path, metadata)
    if spec is None:
        require(model is not None, f"{path}: expected --model beside weights that do not say their network; name it")
        assert model is not None
        spec = _named(model, classes, channels or 3)
    elif model is not None:
        require(
            model == spec.architecture,
            f"{path}: expected weights of --model {model}, got weights of {spec.architecture}; name that one",
        )
    elif spec.architecture not in ARCHITECTURES and not spec.architecture.startswith(hub.PREFIX):
        require(
            bool(CALLABLE.fullmatch(spec.architecture)),
            f"{path}: expected a network as package.module:callable, got {spec.architecture[:80]!r}; name --model",
        )
        raise InputError(
            f"{path}: expected --model {spec.architecture}, got none; heatsmooth imports code only where you name it",
            options=("--model", spec.architecture),
        )
    network = build(_renormalised(spec, mean, std)).network
    reading = read_names(state, network.state_dict().keys())
    load_strictly(network, reading.state, path)
    if reading.normalised:
        mean, std = reading.agreed(path, mean, std)
    found = Classifier(network, _renormalised(spec, mean, std))
    return found.eval() if metadata else _taking(channels, found)


def _taking(channels: int | None, found: Classifier) -> Classifier:
    """The classifier with the channels of its images in its spec: as said, or as its first convolution takes."""
    if not found.spec.architecture.startswith(hub.PREFIX):
        found.spec = replace(found.spec, channels=channels or channels_of(found.network) or found.spec.channels)
    return found.eval()


def recorded_spec(source: Path, model: str | None = None) -> NetworkSpec | None:
    """What a source, or ``model`` if it is ``hf:NAME``, says of the network without the weights; None if nothing."""
    name = hub.hub_name(source if model is None else Path(model))
    if name is not None:
        return hub.hub_spec(name)
    path = source / WEIGHTS_FILE if source.is_dir() else source
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    return _recorded_spec(path, _read_safetensors(path, tensors=False)[1])


def _named(model: str, classes: int, channels: int) -> NetworkSpec:
    return (
        hub.hub_spec(model.removeprefix(hub.PREFIX))
        if model.startswith(hub.PREFIX)
        else NetworkSpec(model, classes, channels)
    )


def _renormalised(spec: NetworkSpec, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> NetworkSpec:
    if mean is None and std is None:
        return spec
    mean, std = completed(mean, std)
    return replace(spec, mean=mean, std=std)


def _recorded_spec(path: Path, metadata: dict[str, Any]) -> NetworkSpec | None:
    if not metadata:
        return None
    try:
        spec = NetworkSpec(**metadata)
        named, size = isinstance(spec.architecture, str), _recorded_size(spec.size)
        counted = all(type(count) is int and 0 < count <= MOST for count in (spec.classes, spec.channels))
        require(named and counted, f"{spec.architecture!r}, {spec.classes} classes, {spec.channels} channels")
        return replace(spec, mean=tuple(map(float, spec.mean)), std=tuple(map(float, spec.std)), size=size)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected the metadata heatsmooth writes, got {error}; name the network with --model"
        ) from None


def _recorded_size(said: Any) -> int | tuple[int, int] | None:
    """The size of images as metadata say it: none, the side of squares, or [height, width]."""
    if said is None:
        return None
    sides = said if isinstance(said, list) and len(said) == 2 else [said]
    require(all(type(side) is int and 0 < side <= MOST for side in sides), f"images of size {said!r}")
    return int(said) if len(sides) == 1 else (sides[0], sides[1])


def load_strictly(network: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load every parameter and buffer, or raise an error that names the first that does not fit.

    As torch does, forgives the counters of batch norms (``num_batches_tracked``), which old files do not hold.
    """
    own = network.state_dict()
    missing = sorted(own.keys() - state.keys() - _counters(network))
    foreign = sorted(state.keys() - own.keys())
    remedy = "choose the --model (and --classes) these weights were trained with"
    if missing or foreign:
        found = (
            f"{len(missing)} missing (first: {missing[0]})"
            if missing
            else f"{len(foreign)} unknown (first: {foreign[0]})"
        )
        raise InputError(f"{path}: expected the {len(own)} tensors of the network, got {found}; {remedy}")
    for name, tensor in own.items():
        if name not in state:
            continue
        if tensor.shape != state[name].shape:
            raise InputError(
                f"{path}: expected {name} of shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}; {remedy}"
            )
        alike = tensor.is_floating_point() == state[name].is_floating_point() and not state[name].is_complex()
        require(alike, f"{path}: expected {name} of a type like {tensor.dtype}, got {state[name].dtype}; {remedy}")
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise InputError(f"{path}: expected plain tensors of weights, got {first_line(error)}; {remedy}") from None


def _counters(network: nn.Module) -> set[str]:
    """The names of the batches that batch norms have counted: no answer depends on them."""
    norms = (name for name, module in network.named_modules() if isinstance(module, nn.modules.batchnorm._NormBase))
    return {f"{name}.num_batches_tracked".removeprefix(".") for name in norms}


def model_hash(model: nn.Module) -> str:
    """A hash of all weights and buffers with their names, of the normalisation, and of the configuration if any."""
    parts = []
    for name, tensor in sorted(_inner(model).state_dict().items()):
        parts += [name.encode(), _bytes(tensor)]
    spec = getattr(model, "spec", None)
    facts = [spec.mean, spec.std, *([spec.config] if spec.config else [])] if isinstance(spec, NetworkSpec) else []
    return sha256(*parts, json.dumps(facts).encode())[:16]
