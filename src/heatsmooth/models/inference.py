"""The same network, faster: for evaluation only, and checked to be alike before it is used."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.hooks import RemovableHandle

from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models.classifier import Classifier, count_classes, device_of
from heatsmooth.models.fusion import fuse

TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit, between a network and its faster form."""

PROBES = 4
"""Images that a network is tried on before it is given those of the user."""

CPU_PASS = 800_000
"""Numbers in the images of one pass on a CPU, 5 images of 3 × 224 × 224: with more, what lies between its layers
overflows the caches, and memory is fetched anew for each."""


def images_of_a_pass(device: torch.device, numbers: int) -> int | None:
    """How many images of so many numbers each had better pass at once; None if as many as there are.

    A divisor of 50, so that usual batches fall into passes that are all alike.
    """
    if device.type != "cpu" or 50 * numbers <= CPU_PASS:
        return None
    return max(part for part in (1, 2, 5, 10, 25) if part == 1 or part * numbers <= CPU_PASS)


@exact_float32()
def for_inference(model: nn.Module, examples: Tensor, *, compiled: bool = False) -> nn.Module:
    """A copy of ``model``, channels last, with batch norm and activations merged into its convolutions, or compiled.

    ``examples`` (batch, channels, height, width) decide whether it may be used: every logit must agree to
    ``TOLERANCE`` and every class, unless its two top logits tie within that. What cannot be merged stays
    as it is; a network that compiles into something else is an error.
    """
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    faster, _ = folded(plain, examples)
    if not compiled:
        return _fused(faster, examples)
    fastest = torch.compile(faster)
    assert isinstance(fastest, nn.Module)
    require(
        _alike(plain, fastest, examples),
        "--compile: expected the compiled network to give the same classes, got others; leave it out",
    )
    return fastest


def checked_classes(model: nn.Module, shape: tuple[int, int, int]) -> int:
    """How many classes the network has, found on fixed random images of ``shape`` (channels, height, width).

    A network is refused that does not take them, whose logits are not finite, or depend on the rest of the batch.
    """
    images = torch.rand(PROBES, *shape, generator=torch.Generator().manual_seed(0)).to(device_of(model))
    classes = count_classes(model, images)
    check_independence(model, images)
    return classes


@exact_float32()
def check_independence(model: nn.Module, examples: Tensor) -> None:
    """Refuse a network whose answer for an image depends on the others of its batch, on their number or its place.

    Every example is compared in another order, some also alone and among other images.
    """
    some = torch.arange(0, len(examples), max(1, len(examples) // 3))
    with torch.inference_mode():
        among_these = model(examples)
        reversed_order = model(examples.flip(0)).flip(0)
        alone = torch.cat([model(examples[i : i + 1]) for i in some.tolist()])
        among_others = model(torch.cat([examples[:1], examples[1:].flip(-1).flip(0) ** 2]))
    require(bool(among_these.isfinite().all()), "expected finite logits, got NaN or infinity for some images")
    scale = float(among_these.abs().max().clamp_min(1))
    differences = among_these - reversed_order, among_these[some] - alone, among_these[:1] - among_others[:1]
    apart = max(float(difference.abs().max()) for difference in differences)
    require(
        apart <= TOLERANCE * scale,
        f"expected logits of an image that do not depend on its batch, got a difference of {apart:.3g}; "
        "give batch norm running statistics",
    )


@exact_float32()
def check_gradient(model: nn.Module, examples: Tensor) -> None:
    """Refuse a network whose logits do not follow the pixels by a gradient."""
    with torch.enable_grad():
        pixels = examples.detach().clone().requires_grad_(True)
        logits = model(pixels)
        follows = logits.requires_grad and torch.autograd.grad(logits.sum(), pixels, allow_unused=True)[0] is not None
    require(follows, "expected logits with a gradient to the pixels, got none; attack a network in floating point")


@exact_float32()
def folded(model: nn.Module, examples: Tensor) -> tuple[nn.Module, int]:
    """``model`` with batch norms folded into the convolutions before them, and how many; itself where that fails.

    A batch norm belongs to a convolution if it is given that one's very answer, and each runs once.
    """
    twin = copy.deepcopy(model)
    try:
        pairs = _convolutions_before_norms(twin, examples)
        for before, after in pairs:
            conv, norm = twin.get_submodule(before), twin.get_submodule(after)
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            twin.set_submodule(before, fuse_conv_bn_eval(conv, norm))
            twin.set_submodule(after, nn.Identity().eval())
    except (AttributeError, TypeError, RuntimeError):  # modules of a kind that cannot be taken apart
        return model, 0
    return (twin, len(pairs)) if pairs and _alike(model, twin, examples) else (model, 0)


def _fused(model: nn.Module, examples: Tensor) -> nn.Module:
    """``model`` with padding and activations fused with their convolutions, see ``fusion``; itself where that fails."""
    if examples.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return model
    twin = copy.deepcopy(model)
    try:
        if isinstance(twin, Classifier):
            twin.network = fuse(twin.network)
        else:
            twin = fuse(twin)
        return twin if _alike(model, twin, examples) else model
    except Exception:  # tracing runs the user's code on stand-ins for tensors, which may raise anything
        return model


def _convolutions_before_norms(model: nn.Module, examples: Tensor) -> list[tuple[str, str]]:
    """The names of each convolution and of the batch norm right after it, seen in a pass over the examples."""
    calls: dict[str, int] = {}
    maker: dict[int, str] = {}
    pairs: list[tuple[str, str]] = []
    alive: list[Tensor] = []

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        def note(_: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            if isinstance(module, nn.Conv2d):
                maker[id(answer)] = name
                alive.append(answer)
            elif given and (before := maker.get(id(given[0]))) is not None:
                pairs.append((before, name))

        return module.register_forward_hook(note)

    def foldable(module: nn.Module) -> bool:
        return isinstance(module, nn.Conv2d) or (isinstance(module, nn.BatchNorm2d) and module.running_var is not None)

    handles = [watch(name, module) for name, module in model.named_modules() if foldable(module)]
    try:
        with torch.inference_mode():
            model(examples[:1])
    finally:
        for handle in handles:
            handle.remove()
    makers = [conv for conv, _ in pairs]
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == makers.count(pair[0]) == 1]


def _alike(model: nn.Module, other: nn.Module, examples: Tensor) -> bool:
    with torch.inference_mode():
        expected, found = model(examples), other(examples)
    tolerance = TOLERANCE * float(expected.abs().max().clamp_min(1))
    first, second = expected.topk(2, dim=1).values.T
    same = (expected.argmax(1) == found.argmax(1)) | (first - second <= tolerance)
    return bool(((expected - found).abs() <= tolerance).all() and same.all())
