"""On a CPU, a convolution and the addition and ReLU after it in one pass over memory instead of three."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional


class ConvolutionRelu(nn.Module):
    """``relu(conv(x))`` or ``relu(conv(x) + shortcut)``: one oneDNN kernel unless gradients are wanted.

    The kernel's own layout of the weights is kept from the first pass on, so they must not change afterwards.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self._weight: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_weight": None}

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        conv, kernels = self.conv, torch.ops.mkldnn
        if torch.is_grad_enabled():
            return functional.relu(conv(x) if shortcut is None else conv(x) + shortcut)
        how = [conv.padding, conv.stride, conv.dilation, conv.groups]
        if self._weight is None:
            self._weight = kernels._reorder_convolution_weight(conv.weight, *how, list(x.shape))
        fused: Tensor
        if shortcut is None:
            fused = kernels._convolution_pointwise(x, self._weight, conv.bias, *how, "relu", [], "")
        else:
            fused = kernels._convolution_pointwise.binary(
                x, shortcut, self._weight, conv.bias, *how, "add", None, "relu", [], None
            )
        return fused


def fuse_relu(network: nn.Module) -> nn.Module:
    """``network`` as a graph in which every ReLU that only a convolution feeds, or its sum with a shortcut, is fused.

    Raises whatever tracing raises for a network whose course depends on its input. The caller compares the answers.
    """
    traced = fx.symbolic_trace(network)
    for node in list(traced.graph.nodes):
        if isinstance(_module(traced, node), nn.Identity):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    for node in list(traced.graph.nodes):
        if _is_relu(traced, node):
            _fuse(traced, node)
    traced.graph.lint()
    traced.recompile()
    return traced.train(network.training)


def _fuse(traced: fx.GraphModule, relu: fx.Node) -> None:
    before = relu.args[0]
    assert isinstance(before, fx.Node)
    summands = list(before.all_input_nodes) if _is_addition(before) else [before]
    conv = next((one for one in summands if _is_convolution(traced, one)), None)
    if conv is None:
        return
    shortcut = [one for one in summands if one is not conv]
    name = str(conv.target).replace(".", "_") + "_relu"
    module = _module(traced, conv)
    assert isinstance(module, nn.Conv2d)
    traced.add_submodule(name, ConvolutionRelu(module))
    with traced.graph.inserting_after(relu):
        relu.replace_all_uses_with(traced.graph.call_module(name, (conv.args[0], *shortcut)))
    for done in dict.fromkeys((relu, before, conv)):
        traced.graph.erase_node(done)


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    function = node.op == "call_function" and node.target in (torch.relu, functional.relu)
    return function or isinstance(_module(traced, node), nn.ReLU)


def _is_convolution(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether it is a convolution that nothing else needs, of a kind that the kernel knows."""
    conv = _module(traced, node)
    fits = isinstance(conv, nn.Conv2d) and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return fits and len(node.users) == 1


def _is_addition(node: fx.Node) -> bool:
    """Whether it is the sum of two tensors that nothing but the ReLU needs."""
    plus = node.op == "call_function" and node.target in (operator.add, operator.iadd, torch.add)
    return plus and len(node.users) == 1 and not node.kwargs and len(node.all_input_nodes) == 2
