"""On a CPU, a convolution with the padding before it and the addition and activation after it: one pass over memory."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional


@dataclass(frozen=True)
class Activation:
    """A function of each number, and what oneDNN calls it."""

    plain: Callable[[Tensor], Tensor]
    kernel: str
    numbers: tuple[float, ...] = ()


_RELU = Activation(functional.relu, "relu")
_RELU6 = Activation(functional.relu6, "hardtanh", (0.0, 6.0))
_SILU = Activation(functional.silu, "swish")
_HARDSWISH = Activation(functional.hardswish, "hardswish")
_ACTIVATIONS: dict[Any, Activation] = {
    nn.ReLU: _RELU,
    functional.relu: _RELU,
    torch.relu: _RELU,
    nn.ReLU6: _RELU6,
    functional.relu6: _RELU6,
    nn.SiLU: _SILU,
    functional.silu: _SILU,
    nn.Hardswish: _HARDSWISH,
    functional.hardswish: _HARDSWISH,
}
"""By the module's type or the function."""


@dataclass(frozen=True)
class Convolution:
    """What a convolution with zeros around its images is made of."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def padded(self, left: int, right: int, top: int, bottom: int) -> "Convolution | None":
        """The convolution of images with so many more zeros around them; None if the kernel cannot say it.

        oneDNN takes as many zeros on either side: where that is too many, zeros in the weights meet them.
        """
        rows, columns = max(top, bottom), max(left, right)
        if min(left, right, top, bottom) < 0 or ((left, top) != (right, bottom) and self.dilation != (1, 1)):
            return None
        wider = functional.pad(self.weight, (columns - left, columns - right, rows - top, rows - bottom))
        return replace(self, weight=wider, padding=(self.padding[0] + rows, self.padding[1] + columns))


class FusedConvolution(nn.Module):
    """``activation(convolution(x))``, ReLU also of its sum with a shortcut: one kernel unless gradients are wanted.

    The kernel's own layouts of the weights, one for a single image and one for more, by the number of threads, are kept
    from the first such pass on, so the weights must not change afterwards.
    """

    def __init__(self, convolution: Convolution, activation: Activation) -> None:
        super().__init__()
        self.register_buffer("weight", convolution.weight.detach().contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", None if convolution.bias is None else convolution.bias.detach())
        self.how = (convolution.padding, convolution.stride, convolution.dilation, convolution.groups)
        self.activation = activation
        self._laid_out: dict[tuple[int, bool], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_laid_out": {}}

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        weight, bias = self.get_buffer("weight"), self._buffers["bias"]
        kernels, how, act = torch.ops.mkldnn, self.how, self.activation
        if torch.is_grad_enabled():
            padding, stride, dilation, groups = how
            answer = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
            return act.plain(answer if shortcut is None else answer + shortcut)
        kind = (torch.get_num_threads(), len(x) == 1)
        if kind not in self._laid_out:
            self._laid_out[kind] = kernels._reorder_convolution_weight(weight, *how, list(x.shape))
        laid_out = self._laid_out[kind]
        fused: Tensor
        if shortcut is None:
            fused = kernels._convolution_pointwise(x, laid_out, bias, *how, act.kernel, list(act.numbers), "")
        else:
            fused = kernels._convolution_pointwise.binary(
                x, shortcut, laid_out, bias, *how, "add", None, act.kernel, list(act.numbers), None
            )
        return fused


def fuse(network: nn.Module) -> nn.Module:
    """``network`` as a graph in which every activation that only a convolution feeds is fused with it.

    ReLU also where the sum of a convolution and a shortcut feeds it; and zeros that are padded before the convolution.
    Raises whatever tracing raises for a network whose course depends on its input. The caller compares the answers.
    """
    traced = fx.symbolic_trace(network)
    for node in list(traced.graph.nodes):
        if isinstance(_module(traced, node), nn.Identity):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    for node in list(traced.graph.nodes):
        called = node.target if node.op == "call_function" else type(_module(traced, node))
        if (activation := _ACTIVATIONS.get(called)) is not None:
            _fuse(traced, node, activation)
    traced.graph.lint()
    traced.recompile()
    return traced.train(network.training)


def _fuse(traced: fx.GraphModule, active: fx.Node, activation: Activation) -> None:
    before = active.args[0]
    assert isinstance(before, fx.Node)
    sums = activation is _RELU and _is_addition(before)
    summands = list(before.all_input_nodes) if sums else [before]
    found = [(one, convolution) for one in summands if (convolution := _convolution(traced, one)) is not None]
    if not found:
        return
    node, convolution = found[0]
    images, done = node.args[0], [active, before, node]
    assert isinstance(images, fx.Node)
    zeros = _zeros_around(traced, images)
    if zeros is not None and (padded := convolution.padded(*zeros)) is not None:
        done.append(images)
        images, convolution = images.args[0], padded
    name = f"{node.name}_{activation.kernel}"
    traced.add_submodule(name, FusedConvolution(convolution, activation))
    with traced.graph.inserting_after(active):
        shortcut = [one for one in summands if one is not node]
        active.replace_all_uses_with(traced.graph.call_module(name, (images, *shortcut)))
    for gone in dict.fromkeys(done):
        traced.graph.erase_node(gone)


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _convolution(traced: fx.GraphModule, node: fx.Node) -> Convolution | None:
    """The convolution, as module or function, if nothing else needs its answer and the kernel knows its kind."""
    module = _module(traced, node)
    if len(node.users) != 1:
        return None
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        whole: Any = (module.stride, module.padding, module.dilation, module.groups)
        return Convolution(module.weight, module.bias, *whole)
    if node.op == "call_function" and node.target is functional.conv2d and not node.kwargs and len(node.args) == 7:
        weight, bias, *pairs, groups = node.args[1:]
        weights, biases = _kept(traced, weight), _kept(traced, bias)
        known = (biases is None) == (bias is None) and all(isinstance(one, tuple) for one in pairs)
        if weights is not None and known:
            whole = (*pairs, groups)
            return Convolution(weights, biases, *whole)
    return None


def _kept(traced: fx.GraphModule, argument: Any) -> Tensor | None:
    """The parameter that an argument stands for."""
    is_parameter = isinstance(argument, fx.Node) and argument.op == "get_attr"
    return traced.get_parameter(str(argument.target)) if is_parameter else None


def _zeros_around(traced: fx.GraphModule, node: fx.Node) -> tuple[int, int, int, int] | None:
    """How many zeros it adds to images at left, right, top and bottom, if it does and nothing else needs it."""
    module = _module(traced, node)
    return module.padding if isinstance(module, nn.ZeroPad2d) and len(node.users) == 1 else None


def _is_addition(node: fx.Node) -> bool:
    """Whether it is the sum of two tensors that nothing but the ReLU needs."""
    plus = node.op == "call_function" and node.target in (operator.add, operator.iadd, torch.add)
    return plus and len(node.users) == 1 and not node.kwargs and len(node.all_input_nodes) == 2
