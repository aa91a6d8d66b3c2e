"""The same network, faster: for evaluation only, and checked to be alike before it is used."""

import copy

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node, symbolic_trace
from torch.nn.utils.fusion import fuse_conv_bn_eval

from heatsmooth.errors import InputError, require
from heatsmooth.models.classifier import Classifier

TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit, between a network and its faster form."""


def for_inference(model: nn.Module, examples: Tensor, *, compiled: bool = False) -> nn.Module:
    """A copy of ``model`` with batch norm folded into its convolutions, channels last, and ``torch.compile`` if asked.

    ``examples`` (batch, channels, height, width) decide whether it may be used: every logit must agree to
    ``TOLERANCE`` and every class, unless its two top logits tie within that. A network that cannot be folded (its
    forward pass cannot be traced) stays as it is; one that compiles into something else is an error.
    """
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    faster = _folded(plain)
    if not _alike(plain, faster, examples):
        faster = plain
    if compiled:
        fastest = torch.compile(faster)
        assert isinstance(fastest, nn.Module)
        if not _alike(plain, fastest, examples):
            raise InputError(
                "--compile: expected the compiled network to give the same classes, got others; leave it out"
            )
        faster = fastest
    return faster


def check_independence(model: nn.Module, examples: Tensor) -> None:
    """Refuse a network whose answer for an image depends on the other images of its batch."""
    with torch.inference_mode():
        among_these = model(examples)
        among_others = model(torch.cat([examples[:1], examples[1:].flip(-1).flip(0) ** 2]))
    scale = float(among_these.abs().max().clamp_min(1))
    apart = float((among_these[0] - among_others[0]).abs().max())
    require(
        apart <= TOLERANCE * scale,
        f"expected logits of an image that do not depend on its batch, got a difference of {apart:.3g}; "
        "give batch norm running statistics",
    )


def _folded(model: nn.Module) -> nn.Module:
    """``model`` with each batch norm folded into the convolution before it, where torch can trace the network."""
    try:
        if isinstance(model, Classifier):
            return Classifier(_fold_batch_norm(model.network), model.spec).eval()
        return _fold_batch_norm(model).eval()
    except Exception:  # tracing runs the user's code on stand-ins, which may raise anything
        return model


def _fold_batch_norm(network: nn.Module) -> GraphModule:
    traced = symbolic_trace(copy.deepcopy(network))
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        norm, before = modules.get(str(node.target)), node.args[0] if node.args else None
        if not isinstance(norm, nn.BatchNorm2d) or not isinstance(before, Node):
            continue
        conv = modules.get(str(before.target))
        if isinstance(conv, nn.Conv2d) and len(before.users) == 1:
            traced.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
            traced.delete_submodule(str(node.target))
    traced.recompile()
    return traced


def _alike(model: nn.Module, other: nn.Module, examples: Tensor) -> bool:
    with torch.inference_mode():
        expected, found = model(examples), other(examples)
    tolerance = TOLERANCE * float(expected.abs().max().clamp_min(1))
    first, second = expected.topk(2, dim=1).values.T
    same = (expected.argmax(1) == found.argmax(1)) | (first - second <= tolerance)
    return bool(((expected - found).abs() <= tolerance).all() and same.all())
