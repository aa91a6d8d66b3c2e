"""Image classifiers of timm and torchvision, with the normalisation and the image size that these libraries state.

Weights are found as the library itself finds them: in its own cache, else on the network. Only the library's own code
runs. A network is rebuilt from its name and its weights alone, so one that would then answer differently is refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.archives import tensors_only
from heatsmooth.models.spec import NetworkSpec, Normalisation

TIMM, TORCHVISION = "timm:", "torchvision:"
PREFIXES = (TIMM, TORCHVISION)
USUAL_SIZE = 224
"""Side of the image that tells a network from its copy, where the library states no size."""


@dataclass(frozen=True)
class Stated:
    """What a library states about a network with weights."""

    classes: int
    channels: int
    size: int | tuple[int, int] | None
    normalisation: Normalisation


def in_zoo(name: str) -> bool:
    """Whether the name is ``timm:NAME`` or ``torchvision:NAME``."""
    return name.startswith(PREFIXES)


def zoo_spec(name: str) -> NetworkSpec:
    """The network ``name`` as the library states it, with its normalisation; no weights are read."""
    with _one_line_errors(name), torch.random.fork_rng([]):
        stated = _timm_facts(_timm(name, pretrained=False)) if name.startswith(TIMM) else _torchvision_facts(name)
    return _spec(name, stated)


def _spec(name: str, stated: Stated) -> NetworkSpec:
    spec = NetworkSpec(name, stated.classes, stated.channels, size=stated.size)
    return spec.normalised(stated.normalisation)


def build_network(spec: NetworkSpec) -> nn.Module:
    """The network with random weights, for the classes and channels of ``spec``."""
    with _one_line_errors(spec.architecture):
        if spec.architecture.startswith(TIMM):
            return _timm(spec.architecture, pretrained=False, num_classes=spec.classes, in_chans=spec.channels)
        require(
            spec.channels == 3,
            f"{spec.architecture}: expected images of 3 channels, got {spec.channels}; use other data or timm:NAME",
        )
        models = _library(spec.architecture).models
        return _network(models.get_model(_split(spec.architecture)[0], weights=None, num_classes=spec.classes))


def pretrained(name: str, normalisation: Normalisation | None = None) -> tuple[nn.Module, NetworkSpec]:
    """The network ``name`` with the weights of its library, in float32, and its spec.

    ``normalisation``: by default that of the library.
    """
    with _one_line_errors(name), tensors_only():
        if name.startswith(TIMM):
            network = _timm(name, pretrained=True)
            stated = _timm_facts(network)
        else:
            models, stated = _library(name).models, _torchvision_facts(name)
            network = _network(models.get_model(_split(name)[0], weights=_weights(name), progress=False))
    network = network.float().eval()
    spec = _spec(name, stated).normalised(normalisation)
    _check_copy(network, spec)
    return network, spec


def fitted_spec(spec: NetworkSpec, state: Mapping[str, Tensor]) -> NetworkSpec:
    """The spec with as many classes as the last layer of these weights has: they may be of a network with a new head.

    ``state``: names may have prefixes that wrappers inserted.
    """
    with torch.random.fork_rng([]):
        last = list(build_network(spec).state_dict())[-1]
    sizes = {len(value) for key, value in state.items() if key == last or key.endswith(f".{last}")}
    return replace(spec, classes=sizes.pop()) if len(sizes) == 1 else spec


def _check_copy(network: nn.Module, spec: NetworkSpec) -> None:
    """Refuse a network that its name and weights do not determine, such as one that a library changes with the weights.

    A run directory stores only these two.
    """
    size = spec.size or USUAL_SIZE
    height, width = size if isinstance(size, tuple) else (size, size)
    image = torch.rand(1, spec.channels, height, width, generator=torch.Generator().manual_seed(0))
    try:
        with torch.random.fork_rng([]), torch.inference_mode():
            copy = build_network(spec).eval()
            copy.load_state_dict(network.state_dict())
            alike = torch.allclose(copy(image), network(image), rtol=1e-4, atol=1e-5)
    except (RuntimeError, TypeError, AttributeError):
        alike = False
    require(
        alike,
        f"{spec.architecture}: expected a classifier that its name and weights determine, got one that the library "
        "builds differently with these weights; write a module that builds it and name package.module:callable",
    )


def _timm(name: str, **how: Any) -> nn.Module:
    return _network(_library(name).create_model(name.removeprefix(TIMM), **how))


def _timm_facts(network: nn.Module) -> Stated:
    config: Any = getattr(network, "pretrained_cfg", None) or {}
    size = config.get("input_size")
    known = bool(size) and len(size) == 3 and bool(config.get("mean")) and bool(config.get("std"))
    require(known, "no input_size, mean and std in its pretrained_cfg")
    classes = getattr(network, "num_classes", config.get("num_classes"))
    require(isinstance(classes, int) and classes > 0, f"{classes} classes")
    return Stated(int(classes), int(size[0]), _sides(size[1:]), _numbers(config["mean"], config["std"]))


def _split(name: str) -> tuple[str, str]:
    """The name of the network and of its weights: ``torchvision:resnet50.IMAGENET1K_V1``."""
    network, _, weights = name.removeprefix(TORCHVISION).partition(".")
    return network, weights or "DEFAULT"


def _weights(name: str) -> Any:
    network, weights = _split(name)
    known = _library(name).models.get_model_weights(network)
    if not hasattr(known, weights):
        names = ", ".join(item.name for item in known)
        raise InputError(f"{name}: expected weights that torchvision has ({names}), got {weights!r}; name one of these")
    return getattr(known, weights)


def _torchvision_facts(name: str) -> Stated:
    weights = _weights(name)
    steps, classes = weights.transforms(), len(weights.meta.get("categories") or ())
    known = classes > 0 and all(hasattr(steps, part) for part in ("mean", "std", "crop_size"))
    require(known, "weights without categories, mean, std and crop_size")
    return Stated(classes, 3, _sides(steps.crop_size), _numbers(steps.mean, steps.std))


def _sides(size: Any) -> int | tuple[int, int]:
    sides = [int(side) for side in size] if isinstance(size, list | tuple) else [int(size)]
    return sides[0] if sides[0] == sides[-1] else (sides[0], sides[1])


def _numbers(mean: Any, std: Any) -> Normalisation:
    return tuple(map(float, mean)), tuple(map(float, std))


def _network(network: Any) -> nn.Module:
    require(isinstance(network, nn.Module), f"a {type(network).__name__}")
    assert isinstance(network, nn.Module)
    return network


def _library(name: str) -> Any:
    package = name.partition(":")[0]
    try:
        return import_module(package)
    except (ImportError, RuntimeError) as error:
        missing = f"the package {package}, got {first_line(error)}; pip install 'heatsmooth[{package}]'"
        raise InputError(f"{name}: expected {missing}") from None


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Whatever a library raises for a name or for weights that it does not find as an ``InputError`` with the name."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) and str(error).startswith(name):
            raise
        package = name.partition(":")[0]
        raise InputError(
            f"{name}: expected an image classifier of {package} whose weights it finds, got {first_line(error)}; "
            "check the name, or name your own file of weights and this as `model`"
        ) from None
