"""Weights on disk: safetensors with the architecture and normalisation in the metadata.

Loading is strict and never runs code: a pickle that contains more than tensors is refused. Names that wrappers inserted
are understood, see ``wrappers``.
"""

import json
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models import hub, zoo
from heatsmooth.models.architectures import ARCHITECTURES
from heatsmooth.models.archives import DAMAGED, check_archive, tensors_only
from heatsmooth.models.classifier import Classifier, build, channels_last, channels_of, denoised
from heatsmooth.models.denoisers import BUILT_IN, JOINED
from heatsmooth.models.onnx_file import load_onnx, onnx_source, onnx_spec
from heatsmooth.models.program import PROGRAM, load_program, refuse_program
from heatsmooth.models.published import published
from heatsmooth.models.spec import NetworkSpec, Normalisation, PerChannel, completed
from heatsmooth.models.wrappers import read_names
from heatsmooth.runs import Json, sha256, write_atomically

METADATA_KEY = "heatsmooth"
DIGEST_KEY = "sha256"
WEIGHTS_FILE = "model.safetensors"
CALLABLE = re.compile(r"[A-Za-z_][\w.]*:\w+")
MOST = 1_000_000
"""Largest number of classes, channels or pixels per side that metadata may state."""


def _inner(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, Classifier) else model


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """Tensors and JSON metadata, with a hash of both, as the bytes of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = json.dumps({**metadata, DIGEST_KEY: _digest(plain, metadata)})
    content: bytes = safetensors.torch.save(plain, {METADATA_KEY: facts})
    return content


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """A hash of the whole content of a file of weights."""
    parts = [json.dumps(metadata).encode()]
    for name, tensor in sorted(tensors.items()):
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), _bytes(tensor)]
    return sha256(*parts)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def save(model: Classifier, path: Path | str) -> None:
    """Write weights, architecture and normalisation to ``path``, atomically; ``load`` reads them."""
    refuse_program(model)
    write_atomically(Path(path), serialise(_inner(model).state_dict(), model.spec.describe()))


def load_state(path: Path) -> tuple[dict[str, Tensor], Json]:
    """The tensors of a safetensors file or of a ``.pt`` state dict, and the metadata (empty if there are none).

    Never runs code. A damaged file is an ``InputError``.
    """
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
    require(
        isinstance(content, dict) and bool(content) and all(isinstance(value, Tensor) for value in content.values()),
        f"{path}: expected a state dict (names and tensors), got {type(content).__name__}; save model.state_dict()",
    )
    return content, {}


def _read_safetensors(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], Json]:
    """Tensors and metadata. The file is read once, because another process may be replacing it."""
    try:
        content = path.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = json.loads(header.get("__metadata__", {}).get(METADATA_KEY, "{}"))
        state = safetensors.torch.load(content) if tensors else {}
        digest = metadata.pop(DIGEST_KEY, None)
        whole = not tensors or digest is None or digest == _digest(state, metadata)
    except (safetensors.SafetensorError, *DAMAGED) as error:
        raise InputError(
            f"{path}: expected a safetensors file, got {first_line(error)}; the file is damaged or of another kind"
        ) from None
    require(whole, f"{path}: expected the weights that were written, got others; the file is damaged")
    return state, metadata


def load(
    source: Path | str,
    *,
    model: str | None = None,
    classes: int = 10,
    channels: int | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
) -> Classifier:
    """The classifier of a run directory, a file, a library or ``package.module:callable``, in evaluation mode.

    Libraries are named as ``hf:NAME``, ``timm:NAME`` and ``torchvision:NAME``. An ONNX file (``.onnx``) of any
    framework is run by onnxruntime: it can be certified and calibrated, but has no gradients.
    Weights are loaded strictly: every tensor must fit. Code runs only if ``source`` or ``model`` names it.

    ``source``: files of heatsmooth and transformers state their architecture; other files of weights need ``model``.
    ``model``: a built-in name, ``package.module:callable``, ``hf:NAME``, ``timm:NAME``, ``torchvision:NAME``, or
    ``program`` for a TorchScript or .pt2 file.
    DENOISER+NAME puts a denoiser in front (``dncnn`` or ``package.module:callable``); ``source`` may then be weights of
    both, or of the classifier alone.
    ``classes``: of a built-in network whose file does not state them.
    ``channels``: of the images; by default those of the first convolution of a callable or a program, else 3.
    ``mean``, ``std``: one number or one per channel; they replace the recorded normalisation. They are required for
    weights of a network behind a normalisation, unless the file contains it.
    """
    require(
        model is None or isinstance(model, str),
        f"`model`: expected a name such as package.module:callable, got {type(model).__name__}; name what makes the "
        "network. A network that you have already needs no loading",
    )
    source, normalisation = Path(source), completed(mean, std)
    if model is not None and _lacks_denoiser(source, model):
        denoiser, _, behind = model.partition(JOINED)
        classifier = load(source, model=behind, classes=classes, channels=channels, mean=mean, std=std)
        return denoised(denoiser, classifier).eval()
    if (folder := _published(source)) is not None:
        return load(folder, model=model, classes=classes, channels=channels, mean=mean, std=std)
    if (library := _of_library(source, model, normalisation)) is not None:
        return channels_last(Classifier(*library)).eval()
    if (file := onnx_source(source)) is not None:
        return load_onnx(file, model=model, normalisation=normalisation, channels=channels)
    if model == PROGRAM:
        program, spec = load_program(source)
        return _with_channels(channels, Classifier(program, spec.normalised(normalisation)))
    if model is None and CALLABLE.fullmatch(str(source)):
        return _with_channels(channels, build(NetworkSpec(str(source), classes).normalised(normalisation)))
    path = source / WEIGHTS_FILE if source.is_dir() else source
    state, metadata = load_state(path)
    recorded = _recorded_spec(path, metadata)
    if recorded is None:
        require(model is not None, f"{path}: expected `model` beside weights that do not state their network; name it")
        spec = _named(str(model), state, classes, channels or 3)
    else:
        _check_model(path, recorded.architecture, model)
        spec = recorded
    network = build(spec.normalised(normalisation)).network
    reading = read_names(state, network.state_dict().keys())
    load_strictly(network, reading.state, path)
    if reading.normalised:
        normalisation = reading.agreed(path, normalisation)
    classifier = Classifier(network, spec.normalised(normalisation))
    return classifier.eval() if metadata else _with_channels(channels, classifier)


def _of_library(
    source: Path, model: str | None, normalisation: Normalisation | None
) -> tuple[nn.Module, NetworkSpec] | None:
    """The network of a library with its weights, if ``source`` names one; it may not have another ``model``."""
    if zoo.in_zoo(str(source)):
        require(model in (None, str(source)), f"{source}: expected no other `model` beside it, got {model}; name one")
        return zoo.pretrained(str(source), normalisation)
    name = hub.hub_name(source)
    if name is None:
        return None
    require(
        model in (None, hub.PREFIX + name),
        f"{source}: expected `model` hf:{name} or none, got {model}; the directory states its network itself",
    )
    return hub.pretrained(name, normalisation)


def _lacks_denoiser(source: Path, model: str) -> bool:
    """Whether ``model`` has a denoiser in front, and the source is of the classifier alone."""
    if JOINED not in model:
        return False
    recorded = recorded_spec(source)
    return recorded is None or JOINED not in recorded.architecture


def _check_model(path: Path, architecture: str, model: str | None) -> None:
    """Refuse a ``model`` that is not the recorded one; code must be named by the user, not only by the file."""
    if model is not None:
        require(
            model == architecture,
            f"{path}: expected weights of `model` {model}, got weights of {architecture}; name that one",
        )
        return
    named = _named_code(architecture)
    if named:
        require(
            all(map(CALLABLE.fullmatch, named)),
            f"{path}: expected a network as package.module:callable, got {architecture[:80]!r}; name it as `model`",
        )
        raise InputError(
            f"{path}: expected `model` {architecture}, got none; heatsmooth imports code only if you name it",
            options=("--model", architecture),
        )


def _named_code(architecture: str) -> list[str]:
    """The parts of an architecture that are neither built in nor of a library."""
    known = (*ARCHITECTURES, *BUILT_IN)
    parts = architecture.split(JOINED)
    return [part for part in parts if part not in known and not part.startswith((hub.PREFIX, *zoo.PREFIXES))]


def names_code(architecture: str) -> bool:
    """Whether an architecture is code that a person must have and name."""
    return bool(_named_code(architecture))


def _with_channels(channels: int | None, classifier: Classifier) -> Classifier:
    """The classifier with the channels of its images in its spec: as given, or those of its first convolution."""
    spec = classifier.spec
    if not spec.architecture.startswith((hub.PREFIX, *zoo.PREFIXES)):
        classifier.spec = replace(spec, channels=channels or channels_of(classifier.network) or spec.channels)
    return classifier.eval()


def _published(source: Path) -> Path | None:
    """The local copy of ``hf:NAME``, if heatsmooth published it."""
    text = str(source)
    return published(text.removeprefix(hub.PREFIX)) if text.startswith(hub.PREFIX) else None


def recorded_spec(source: Path, model: str | None = None) -> NetworkSpec | None:
    """What a source, or ``model`` if it names a library's network, states about its network; None if nothing."""
    stated = str(source) if model is None else model
    if zoo.in_zoo(stated):
        return zoo.zoo_spec(stated)
    name = hub.hub_name(Path(stated))
    if name is not None and (folder := _published(Path(stated))) is not None:
        source, name = folder, None
    if name is not None:
        return hub.hub_spec(name)
    if (file := onnx_source(source)) is not None:
        return onnx_spec(file)
    path = source / WEIGHTS_FILE if source.is_dir() else source
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    return _recorded_spec(path, _read_safetensors(path, tensors=False)[1])


def _named(model: str, state: dict[str, Tensor], classes: int, channels: int) -> NetworkSpec:
    """The network that the person names beside weights without a record."""
    if zoo.in_zoo(model):
        return zoo.fitted_spec(zoo.zoo_spec(model), state)
    if model.startswith(hub.PREFIX):
        return hub.hub_spec(model.removeprefix(hub.PREFIX))
    return NetworkSpec(model, classes, channels)


def _recorded_spec(path: Path, metadata: Json) -> NetworkSpec | None:
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
            f"{path}: expected the metadata that heatsmooth writes, got {error}; name the network as `model`"
        ) from None


def _recorded_size(size: Any) -> int | tuple[int, int] | None:
    """The size of images in metadata: null, the side of squares, or [height, width]."""
    if size is None:
        return None
    sides = size if isinstance(size, list) and len(size) == 2 else [size]
    require(all(type(side) is int and 0 < side <= MOST for side in sides), f"images of size {size!r}")
    return int(size) if len(sides) == 1 else (sides[0], sides[1])


def load_strictly(network: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load every parameter and buffer, or raise an error that names the first that does not fit.

    As in torch, the counters of batch norms (``num_batches_tracked``) may be missing, because old files lack them.
    """
    own = network.state_dict()
    missing = sorted(own.keys() - state.keys() - _counters(network))
    unknown = sorted(state.keys() - own.keys())
    remedy = "use the `model` (and `classes`) that these weights were trained with"
    for names, kind in ((missing, "missing"), (unknown, "unknown")):
        require(
            not names,
            f"{path}: expected the {len(own)} tensors of the network, got {len(names)} {kind} "
            f"(first: {(names or [''])[0]}); {remedy}",
        )
    for name in (name for name in own if name in state):
        expected, actual = own[name], state[name]
        require(
            expected.shape == actual.shape,
            f"{path}: expected {name} of shape {tuple(expected.shape)}, got {tuple(actual.shape)}; {remedy}",
        )
        same_kind = expected.is_floating_point() == actual.is_floating_point() and not actual.is_complex()
        require(same_kind, f"{path}: expected {name} of a type like {expected.dtype}, got {actual.dtype}; {remedy}")
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise InputError(f"{path}: expected plain tensors of weights, got {first_line(error)}; {remedy}") from None


def _counters(network: nn.Module) -> set[str]:
    """The names of the batch counters of batch norms, which no logit depends on."""
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
