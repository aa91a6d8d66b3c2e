"""A faster form of a network, for evaluation only; it is used only if its logits match the original's."""

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
from heatsmooth.models.onnx_file import is_onnx

TOLERANCE = 1e-4
"""Largest difference of logits between a network and its faster form, relative to the largest logit."""

PROBES = 4
"""Random images that a network is tried on first."""

CPU_PASS = 800_000
"""Most numbers in the images of one pass on a CPU: 5 images of 3 × 224 × 224. With more, the activations do not fit in
the caches."""


def images_of_a_pass(device: torch.device, numbers: int) -> int | None:
    """How many images to pass at once for speed; None for no limit.

    The result divides 50, so that usual batches split into passes of one size.

    ``device``: where the network is.
    ``numbers``: numbers per image (channels × height × width).
    """
    if device.type != "cpu" or 50 * numbers <= CPU_PASS:
        return None
    return max(part for part in (1, 2, 5, 10, 25) if part == 1 or part * numbers <= CPU_PASS)


@exact_float32()
def for_inference(model: nn.Module, examples: Tensor, *, compiled: bool = False) -> nn.Module:
    """A faster copy of ``model`` for evaluation, channels last.

    Batch norm and activations are fused with the convolutions before them, where this is possible. The result is used
    only if it matches on ``examples``: every logit within ``TOLERANCE``, and every class, unless its two largest logits
    tie within that. Otherwise the copy stays plain; a compiled network that does not match is an error.

    ``model``: returns logits (batch, classes).
    ``examples``: (batch, channels, height, width) in [0, 1], on the device of the model.
    ``compiled``: use ``torch.compile`` instead of fused kernels.
    """
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    faster, _ = folded(plain, examples)
    if not compiled:
        return _fused(faster, examples)
    require(not is_onnx(model), "`compiled`: expected a PyTorch network, got an ONNX file; leave it out")
    fastest = torch.compile(faster)
    assert isinstance(fastest, nn.Module)
    require(
        _matches(plain, fastest, examples),
        "`compiled`: expected the compiled network to give the same logits, got others; leave it out",
    )
    return fastest


def checked_classes(model: nn.Module, shape: tuple[int, int, int]) -> int:
    """Number of classes of the network, from fixed random images of ``shape`` (channels, height, width).

    A network is refused if it does not take such images, or if its logits are not finite or depend on the batch.
    """
    images = torch.rand(PROBES, *shape, generator=torch.Generator().manual_seed(0)).to(device_of(model))
    classes = count_classes(model, images)
    check_independence(model, images)
    return classes


@exact_float32()
def check_independence(model: nn.Module, examples: Tensor) -> None:
    """Refuse a network whose logits for an image depend on the other images of the batch.

    Every example is compared in the reversed order. Some are also compared alone and among other images.
    """
    some = torch.arange(0, len(examples), max(1, len(examples) // 3))
    with torch.inference_mode():
        among_these = model(examples)
        reversed_order = model(examples.flip(0)).flip(0)
        alone = torch.cat([model(examples[i : i + 1]) for i in some.tolist()])
        among_others = model(torch.cat([examples[:1], examples[1:].flip(-1).flip(0) ** 2]))
    require(
        bool(among_these.isfinite().all()),
        "expected finite logits, got NaN or infinity; check the weights and the normalisation",
    )
    scale = float(among_these.abs().max().clamp_min(1))
    differences = among_these - reversed_order, among_these[some] - alone, among_these[:1] - among_others[:1]
    largest = max(float(difference.abs().max()) for difference in differences)
    require(
        largest <= TOLERANCE * scale,
        f"expected logits of an image that do not depend on its batch, got a difference of {largest:.3g}; "
        "give batch norm running statistics",
    )


@exact_float32()
def check_gradient(model: nn.Module, examples: Tensor) -> None:
    """Refuse a network whose logits have no gradient with respect to the pixels."""
    with torch.enable_grad():
        pixels = examples.detach().clone().requires_grad_(True)
        logits = model(pixels)
        follows = logits.requires_grad and torch.autograd.grad(logits.sum(), pixels, allow_unused=True)[0] is not None
    require(follows, "expected logits with a gradient to the pixels, got none; attack a network in floating point")


@exact_float32()
def folded(model: nn.Module, examples: Tensor) -> tuple[nn.Module, int]:
    """``model`` with batch norms folded into the convolutions before them, and how many; unchanged if that fails.

    A batch norm belongs to a convolution if its input is exactly the output of that convolution, and each runs once.
    The folded network is used only if its logits match on ``examples``.
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
    except (AttributeError, TypeError, RuntimeError):  # modules of a kind that cannot be folded
        return model, 0
    return (twin, len(pairs)) if pairs and _matches(model, twin, examples) else (model, 0)


def _fused(model: nn.Module, examples: Tensor) -> nn.Module:
    """``model`` with padding and activations fused with their convolutions, see ``fusion``; unchanged if that fails."""
    if examples.device.type != "cpu" or not torch.backends.mkldnn.is_available() or is_onnx(model):
        return model
    twin = copy.deepcopy(model)
    try:
        if isinstance(twin, Classifier):
            twin.network = fuse(twin.network)
        else:
            twin = fuse(twin)
        return twin if _matches(model, twin, examples) else model
    except Exception:  # tracing runs the user's code on symbolic tensors, which may raise anything
        return model


def _convolutions_before_norms(model: nn.Module, examples: Tensor) -> list[tuple[str, str]]:
    """The names of each convolution and of the batch norm right after it, observed in a pass of one example."""
    calls: dict[str, int] = {}
    source: dict[int, str] = {}
    pairs: list[tuple[str, str]] = []
    alive: list[Tensor] = []  # so that no id is used twice

    def watch(name: str, module: nn.Module) -> RemovableHandle:
        def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            if isinstance(module, nn.Conv2d):
                source[id(output)] = name
                alive.append(output)
            elif inputs and (before := source.get(id(inputs[0]))) is not None:
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
    convolutions = [conv for conv, _ in pairs]
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == convolutions.count(pair[0]) == 1]


def _matches(model: nn.Module, other: nn.Module, examples: Tensor) -> bool:
    with torch.inference_mode():
        expected, actual = model(examples), other(examples)
    tolerance = TOLERANCE * float(expected.abs().max().clamp_min(1))
    first, second = expected.topk(2, dim=1).values.T
    same = (expected.argmax(1) == actual.argmax(1)) | (first - second <= tolerance)
    return bool(((expected - actual).abs() <= tolerance).all() and same.all())
