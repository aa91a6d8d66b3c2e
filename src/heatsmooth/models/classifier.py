"""A network that takes images in [0, 1]: its normalisation is its own business."""

import copy
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.device import exact_float32
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models import hub
from heatsmooth.models.program import refuse_program
from heatsmooth.models.resnet import ARCHITECTURES
from heatsmooth.models.spec import NetworkSpec


class Classifier(nn.Module):
    """logits (batch, classes) = network((images − mean) / std) for images in [0, 1].

    A network that answers with more than logits, as those of transformers do, must have them as ``.logits``. Mean and
    standard deviation, one number or one a channel, are not part of the state dict: the network's parameters
    keep their public names.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, spec: NetworkSpec) -> None:
        super().__init__()
        require(
            len(spec.mean) == len(spec.std),
            f"expected as many means as deviations, got {len(spec.mean)} and {len(spec.std)}",
        )
        require(all(s > 0 for s in spec.std), f"--std: expected positive numbers, got {spec.std}")
        self.network = network
        self.spec = spec
        self.register_buffer("mean", torch.tensor(spec.mean or (0.0,)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std or (1.0,)).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.network((images - self.mean) / self.std))


def logits_of(answer: Any) -> Tensor:
    """The logits of what a network answers: the answer itself, or its ``.logits``."""
    logits: Tensor = getattr(answer, "logits", answer)
    return logits


def probabilities_of(logits: Tensor) -> Tensor:
    """The softmax of logits (batch, classes), double precision, on the CPU.

    A row is NaN if one of its logits is not finite, even where the softmax would not show it: it has no radius.
    """
    exact = logits.detach().cpu().double()
    return exact.softmax(1).where(exact.isfinite().all(1, keepdim=True), torch.nan)


def build(spec: NetworkSpec) -> Classifier:
    """A new classifier with random weights (those of the global torch generator), laid out for speed."""
    if spec.architecture in ARCHITECTURES:
        network = ARCHITECTURES[spec.architecture](classes=spec.classes, channels=spec.channels)
    elif spec.architecture.startswith(hub.PREFIX):
        network = hub.build_network(spec)
    elif ":" in spec.architecture:
        network = _import_network(spec.architecture)
    else:
        raise InputError(
            f"--model: expected {', '.join(ARCHITECTURES)}, package.module:callable or hf:NAME, "
            f"got {spec.architecture!r}"
        )
    return channels_last(Classifier(network, spec))


def channels_last(classifier: Classifier) -> Classifier:
    """The same classifier, its weights laid out for speed."""
    classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    return classifier


def device_of(model: nn.Module) -> torch.device:
    """Where the network is: the device of its first parameter or buffer, else the CPU."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))


def normalising_deviation(model: nn.Module) -> float:
    """By how much a network divides its input: the root mean square of its deviations; 1 where it says none.

    >>> normalising_deviation(Classifier(nn.Identity(), NetworkSpec("example", mean=(0.5,), std=(0.25,))))
    0.25
    """
    std = model.std if isinstance(model, Classifier) else torch.ones(1)
    return float(std.double().square().mean().sqrt())


def channels_of(network: nn.Module) -> int | None:
    """How many channels the images of a network have, by its first convolution; None if that does not say."""
    first = next((module.in_channels for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    if first is None:  # in a program, convolutions are known by their weights alone
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
            f"--model {name}: expected a callable that returns a network, got {type(error).__name__}: {error}"
        ) from error
    require(isinstance(network, nn.Module), f"--model {name}: expected a torch.nn.Module, got {type(network).__name__}")
    assert isinstance(network, nn.Module)
    return network


def copy_of(model: nn.Module) -> nn.Module:
    """An independent copy, with parameters that can be trained; a program, which has none, is refused."""
    refuse_program(model)
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.grad = None
        parameter.requires_grad_(True)
    return twin


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and afterwards back in its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def count_classes(model: nn.Module, images: Tensor) -> int:
    """How many classes the network has, after making sure that it takes these images and answers with finite logits."""
    logits = logits_for(model, images[:2])
    require(
        bool(logits.isfinite().all()),
        "expected finite logits, got NaN or infinity; check the weights and the normalisation",
    )
    return int(logits.shape[1])


@exact_float32()
def logits_for(model: nn.Module, images: Tensor) -> Tensor:
    """The logits (batch, classes) of one pass in evaluation mode; an error where the network takes no such images."""
    shape = tuple(images.shape[1:])
    channels = getattr(getattr(model, "spec", None), "channels", None)
    if channels is not None and getattr(model, "spec").architecture in ARCHITECTURES:  # noqa: B009
        require(
            channels == shape[0],
            f"expected images of {channels} channels, as the network takes, got {shape[0]}; "
            "choose other data or another --model",
        )
    try:
        with evaluating(model), torch.inference_mode():
            logits = model(images)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise InputError(
            f"expected a network that takes images of {_times(shape)}, "
            f"got {type(error).__name__}: {first_line(error)}; check --model and --image-size"
        ) from None
    require(
        isinstance(logits, Tensor) and logits.ndim == 2,
        f"expected logits (batch, classes), got {_kind(logits)}; return the logits alone",
    )
    assert isinstance(logits, Tensor)
    return logits


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _kind(value: object) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
