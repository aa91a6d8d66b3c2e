"""A network that takes images in [0, 1], with its normalisation inside."""

import copy
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.device import exact_float32
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models import hub, zoo
from heatsmooth.models.architectures import ARCHITECTURES, built_in
from heatsmooth.models.denoisers import BUILT_IN, JOINED, Denoised
from heatsmooth.models.program import FixedNetwork, refuse_program
from heatsmooth.models.spec import NetworkSpec


class Classifier(nn.Module):
    """logits (batch, classes) = network((images − mean) / std) for images in [0, 1].

    A network whose output is more than logits, as in transformers, must have them as ``.logits``. Mean and standard
    deviation are not part of the state dict, so the parameters of the network keep their public names.

    ``network``: takes normalised images (batch, channels, height, width).
    ``spec``: its description; mean and standard deviation are one number or one per channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, spec: NetworkSpec) -> None:
        super().__init__()
        require(
            len(spec.mean) == len(spec.std),
            f"`mean`, `std`: expected as many means as deviations, got {len(spec.mean)} and {len(spec.std)}",
        )
        require(
            not spec.mean or JOINED not in spec.architecture,
            "`mean`, `std`: expected none for a network with a denoiser, which has them inside, got some",
        )
        require(all(s > 0 for s in spec.std), f"`std`: expected positive numbers, got {spec.std}")
        self.network = network
        self.spec = spec
        self.register_buffer("mean", torch.tensor(spec.mean or (0.0,)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std or (1.0,)).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if not self.spec.mean and isinstance(self.network, FixedNetwork) and self.network.keeps_its_input:
            return logits_of(self.network(images))
        return logits_of(self.network((images - self.mean) / self.std))


def logits_of(output: Any) -> Tensor:
    """The logits in the output of a network: the output itself, or its ``.logits``."""
    logits: Tensor = getattr(output, "logits", output)
    return logits


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax of logits (batch, classes), in double precision on the CPU.

    A row is NaN if one of its logits is not finite, even if its softmax is finite: such an image has no radius.
    """
    exact = logits.detach().cpu().double()
    return exact.softmax(1).where(exact.isfinite().all(1, keepdim=True), torch.nan)


def build(spec: NetworkSpec) -> Classifier:
    """A new classifier with random weights from the global torch generator, channels last."""
    if JOINED in spec.architecture:
        denoiser, _, name = spec.architecture.partition(JOINED)
        return denoised(denoiser, build(replace(spec, architecture=name)))
    if spec.architecture in ARCHITECTURES:
        network = built_in(spec)
    elif spec.architecture.startswith(hub.PREFIX):
        network = hub.build_network(spec)
    elif zoo.in_zoo(spec.architecture):
        network = zoo.build_network(spec)
    elif ":" in spec.architecture:
        network = _import_network(spec.architecture)
    else:
        raise InputError(
            f"`model`: expected {', '.join(ARCHITECTURES)}, package.module:callable, hf:NAME, timm:NAME or "
            f"torchvision:NAME, got {spec.architecture!r}"
        )
    return channels_last(Classifier(network, spec))


def denoised(denoiser: str, model: nn.Module) -> Classifier:
    """A copy of the network with a denoiser in front. Both see images in [0, 1].

    ``denoiser``: ``dncnn``, with random weights from the global torch generator, or ``package.module:callable``. The
    callable returns a network from noisy to clean images, with its weights.
    """
    classifier = model if isinstance(model, Classifier) else _unnamed(model)
    spec = classifier.spec
    network = BUILT_IN[denoiser](spec.channels) if denoiser in BUILT_IN else _import_network(denoiser)
    mean, std = (numbers.expand(spec.channels, 1, 1) for numbers in (classifier.mean, classifier.std))
    joined = replace(spec, architecture=f"{denoiser}{JOINED}{spec.architecture}", mean=(), std=())
    return channels_last(Classifier(Denoised(network, copy_of(classifier.network), mean, std), joined))


def _unnamed(model: nn.Module) -> Classifier:
    """Any network as a classifier without normalisation."""
    return Classifier(model, NetworkSpec(type(model).__name__, channels=channels_of(model) or 3))


def channels_last(classifier: Classifier) -> Classifier:
    """The same classifier with its weights in the faster memory layout, channels last."""
    classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    return classifier


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the CPU if there is none."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))


def normalising_deviation(model: nn.Module) -> float:
    """The factor by which a network divides its input: the root mean square of its deviations; 1 without any.

    >>> normalising_deviation(Classifier(nn.Identity(), NetworkSpec("example", mean=(0.5,), std=(0.25,))))
    0.25
    """
    std = model.std if isinstance(model, Classifier) else torch.ones(1)
    return float(std.double().square().mean().sqrt())


def channels_of(network: nn.Module) -> int | None:
    """Channels of the images of a network, from its first convolution; None if they are unknown."""
    first = next((module.in_channels for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:  # in a program, only the weights of convolutions are visible
        first = next((weight.shape[1] for weight in network.state_dict().values() if weight.ndim == 4), None)
    return first if first in (1, 3) else None


def _import_network(name: str) -> nn.Module:
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        network = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise InputError(
            f"`model` {name}: expected a callable that returns a network, got {type(error).__name__}: {error}"
        ) from error
    require(isinstance(network, nn.Module), f"`model` {name}: expected a torch.nn.Module, got {type(network).__name__}")
    assert isinstance(network, nn.Module)
    return network


def copy_of(model: nn.Module) -> nn.Module:
    """An independent copy with trainable parameters; a program is refused."""
    refuse_program(model)
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.grad = None
        parameter.requires_grad_(True)
    return twin


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode; restore its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def count_classes(model: nn.Module, images: Tensor) -> int:
    """Number of classes of the network; an error if it does not take these images or its logits are not finite."""
    logits = logits_for(model, images[:2])
    require(
        bool(logits.isfinite().all()),
        "expected finite logits, got NaN or infinity; check the weights and the normalisation",
    )
    return int(logits.shape[1])


@exact_float32()
def logits_for(model: nn.Module, images: Tensor) -> Tensor:
    """Logits (batch, classes) of one pass in evaluation mode; an error if the network does not take these images."""
    shape = tuple(images.shape[1:])
    spec = getattr(model, "spec", None)
    if isinstance(spec, NetworkSpec) and spec.architecture in ARCHITECTURES:
        require(
            spec.channels == shape[0],
            f"expected images of {spec.channels} channels, as the network takes, got {shape[0]}; "
            "use other data or another `model`",
        )
    try:
        with evaluating(model), torch.inference_mode():
            logits = model(images)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise InputError(
            f"expected a network that takes images of {'×'.join(map(str, shape))}, "
            f"got {type(error).__name__}: {first_line(error)}; check `model` and `image_size`"
        ) from None
    require(
        isinstance(logits, Tensor) and logits.ndim == 2,
        f"expected logits (batch, classes), got {_kind(logits)}; return only the logits",
    )
    assert isinstance(logits, Tensor)
    return logits


def _kind(value: object) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
