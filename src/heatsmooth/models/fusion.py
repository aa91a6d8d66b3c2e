"""On a CPU, a convolution with the padding before it and the addition and activation after it as one kernel."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional


@dataclass(frozen=True)
class Activation:
    """An elementwise function, and its name in oneDNN."""

    plain: Callable[[Tensor], Tensor]
    kernel: str
    numbers: tuple[float, ...] = ()
    """Arguments of the kernel."""


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
"""By the type of the module, or by the function."""


@dataclass(frozen=True)
class Convolution:
    """The tensors and settings of a convolution with zero padding."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def padded(self, left: int, right: int, top: int, bottom: int) -> "Convolution | None":
        """The convolution of images with this many more zeros around them; None if oneDNN cannot express it.

        oneDNN pads opposite sides equally. Where that adds too many zeros, zeros in the weights cancel them.
        """
        rows, columns = max(top, bottom), max(left, right)
        if min(left, right, top, bottom) < 0 or ((left, top) != (right, bottom) and self.dilation != (1, 1)):
            return None
        wider = functional.pad(self.weight, (columns - left, columns - right, rows - top, rows - bottom))
        return replace(self, weight=wider, padding=(self.padding[0] + rows, self.padding[1] + columns))


class FusedConvolution(nn.Module):
    """``activation(convolution(x))``, for ReLU also of the sum with a shortcut; one kernel unless gradients are needed.

    The kernel's layouts of the weights are kept from the first pass on: one for a single image and one for more, per
    number of threads. So the weights must not change afterwards.
    """

    def __init__(self, convolution: Convolution, activation: Activation) -> None:
        super().__init__()
        self.register_buffer("weight", convolution.weight.detach().contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", None if convolution.bias is None else convolution.bias.detach())
        self.settings = (convolution.padding, convolution.stride, convolution.dilation, convolution.groups)
        self.activation = activation
        self._layouts: dict[tuple[int, bool], Tensor] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_layouts": {}}

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        weight, bias = self.get_buffer("weight"), self._buffers["bias"]
        kernels, settings, activation = torch.ops.mkldnn, self.settings, self.activation
        if torch.is_grad_enabled():
            padding, stride, dilation, groups = settings
            sums = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
            return activation.plain(sums if shortcut is None else sums + shortcut)
        kind = (torch.get_num_threads(), len(x) == 1)
        if kind not in self._layouts:
            self._layouts[kind] = kernels._reorder_convolution_weight(weight, *settings, list(x.shape))
        layout, numbers = self._layouts[kind], list(activation.numbers)
        fused: Tensor
        if shortcut is None:
            fused = kernels._convolution_pointwise(x, layout, bias, *settings, activation.kernel, numbers, "")
        else:
            fused = kernels._convolution_pointwise.binary(
                x, shortcut, layout, bias, *settings, "add", None, activation.kernel, numbers, None
            )
        return fused


def fuse(network: nn.Module) -> nn.Module:
    """``network`` as a graph in which an activation is fused with the convolution before it.

    Also fused are zeros padded before the convolution and, for ReLU, the sum of a convolution and a shortcut. The
    convolution must feed nothing else. The caller compares the logits. Raises whatever tracing raises, for example for
    a network whose control flow depends on its input.
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
    """Replace an activation, and the convolution before it if it can be fused, by a ``FusedConvolution``."""
    before = active.args[0]
    assert isinstance(before, fx.Node)
    is_sum = activation is _RELU and _is_addition(before)
    summands = list(before.all_input_nodes) if is_sum else [before]
    node = next((summand for summand in summands if _convolution(traced, summand) is not None), None)
    if node is None:
        return
    images, convolution, padding = _with_padding(traced, node)
    name = f"{node.name}_{activation.kernel}"
    traced.add_submodule(name, FusedConvolution(convolution, activation))
    shortcut = [summand for summand in summands if summand is not node]
    with traced.graph.inserting_after(active):
        active.replace_all_uses_with(traced.graph.call_module(name, (images, *shortcut)))
    for old in dict.fromkeys([active, before, node, *padding]):
        traced.graph.erase_node(old)


def _with_padding(traced: fx.GraphModule, node: fx.Node) -> tuple[Any, Convolution, list[fx.Node]]:
    """The images of a convolution, the convolution with the zeros padded before it, and the node of that padding."""
    images, convolution = node.args[0], _convolution(traced, node)
    assert isinstance(images, fx.Node)
    assert convolution is not None
    zeros = _zeros_around(traced, images)
    padded = None if zeros is None else convolution.padded(*zeros)
    return (images, convolution, []) if padded is None else (images.args[0], padded, [images])


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _convolution(traced: fx.GraphModule, node: fx.Node) -> Convolution | None:
    """The convolution of a node, if nothing else uses its result and oneDNN supports it."""
    if len(node.users) != 1:
        return None
    if node.op == "call_function" and node.target is functional.conv2d:
        return _functional_convolution(traced, node)
    module = _module(traced, node)
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        settings: Any = (module.stride, module.padding, module.dilation, module.groups)
        return Convolution(module.weight, module.bias, *settings)
    return None


def _functional_convolution(traced: fx.GraphModule, node: fx.Node) -> Convolution | None:
    """A call of ``functional.conv2d`` with all arguments by position, on parameters of the network."""
    if node.kwargs or len(node.args) != 7:
        return None
    weight, bias, *pairs, groups = node.args[1:]
    weights, biases = _parameter(traced, weight), _parameter(traced, bias)
    if weights is None or (biases is None) != (bias is None) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    settings: Any = (*pairs, groups)
    return Convolution(weights, biases, *settings)


def _parameter(traced: fx.GraphModule, argument: Any) -> Tensor | None:
    """The parameter that an argument stands for."""
    is_parameter = isinstance(argument, fx.Node) and argument.op == "get_attr"
    return traced.get_parameter(str(argument.target)) if is_parameter else None


def _zeros_around(traced: fx.GraphModule, node: fx.Node) -> tuple[int, int, int, int] | None:
    """Zeros that a node adds to images at left, right, top and bottom, if nothing else uses its result."""
    module = _module(traced, node)
    return module.padding if isinstance(module, nn.ZeroPad2d) and len(node.users) == 1 else None


def _is_addition(node: fx.Node) -> bool:
    """Whether a node is the sum of two tensors that nothing but the ReLU uses."""
    plus = node.op == "call_function" and node.target in (operator.add, operator.iadd, torch.add)
    return plus and len(node.users) == 1 and not node.kwargs and len(node.all_input_nodes) == 2
