"""Networks merged for speed give the same answers."""

import copy
from typing import cast

import pytest
import torch
from torch import Tensor, fx, nn

from heatsmooth.models import for_inference
from heatsmooth.models.fusion import FusedConvolution


class Residual(nn.Module):
    """Sums in either order, functional and in-place ReLUs, and a convolution that something else needs too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(x + self.first(x))
        y = torch.relu(self.second(y) + y)
        z = self.third(y)
        return cast("Tensor", self.head((nn.functional.relu(z) - z).mean((2, 3))))


def test_relu_is_fused_into_the_convolution_before_it_where_nothing_else_needs_that() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.rand(50, 3, 8, 8)
    fast = for_inference(model, x)
    names = [name for name, module in fast.named_modules() if isinstance(module, FusedConvolution)]
    assert names == ["first_relu", "second_relu"]
    assert not any(module.training for module in fast.modules())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)
    slopes = [torch.autograd.grad(one(x.requires_grad_()).sum(), x)[0] for one in (model, fast)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_this_torch_still_fuses_batch_norm_and_relu_with_the_convolution() -> None:
    """Fails when a new torch silently loses the fused kernel: outputs would agree, only slower."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    model, x = nn.Sequential(block, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval(), torch.rand(10, 3, 8, 8)
    fast = for_inference(model, x)
    nodes = cast("fx.GraphModule", fast).graph.nodes
    called = [type(fast.get_submodule(str(node.target))) for node in nodes if node.op == "call_module"]
    assert called == [FusedConvolution, nn.AdaptiveAvgPool2d, nn.Flatten]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.inference_mode():
        fast(x)
    operations = {event.key for event in profile.key_averages()}
    assert "mkldnn::_convolution_pointwise" in operations
    assert not {"aten::relu", "aten::batch_norm", "aten::conv2d"} & operations


class SamePadding(nn.Conv2d):
    """As EfficientNet's: zeros around the image by a module of its own, more on the right and below."""

    def __init__(self, channels: int, size: int, zeros: tuple[int, int, int, int], stride: int, dilation: int) -> None:
        super().__init__(channels, channels, size, stride=stride, groups=channels, dilation=dilation)
        self.zeros = nn.ZeroPad2d(zeros)

    def forward(self, x: Tensor) -> Tensor:
        padded = self.zeros(x)
        return nn.functional.conv2d(
            padded, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish])
@pytest.mark.parametrize(
    ("zeros", "dilation"),
    [((1, 1, 1, 1), 1), ((0, 1, 0, 1), 1), ((2, 0, 1, 3), 1), ((1, 1, 2, 2), 2), ((0, 2, 0, 2), 2)],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_and_activation_are_fused_with_the_convolution_between_them(
    activation: type[nn.Module], zeros: tuple[int, int, int, int], dilation: int, stride: int
) -> None:
    torch.manual_seed(0)
    conv = SamePadding(4, 3, zeros, stride, dilation)
    model = nn.Sequential(conv, activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    x = 20 * torch.randn(10, 4, 9, 12)
    fast = for_inference(model, x)
    assert sum(isinstance(module, FusedConvolution) for module in fast.modules()) == 1
    code = str(cast("fx.GraphModule", fast).graph)
    assert ("zeros" in code) == (dilation == 2 and zeros == (0, 2, 0, 2))  # what the kernel cannot say stays
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad(one(x.requires_grad_()).sum(), x)[0] for one in (model, fast)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-5)


def test_a_network_whose_course_depends_on_its_input_stays_as_it_is() -> None:
    class Wilful(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.mean() > 0 else -x)

    model, x = Wilful().eval(), torch.rand(50, 3, 8, 8)
    fast = for_inference(model, x)
    assert not any(isinstance(module, FusedConvolution) for module in fast.modules())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_fused_network_can_be_copied_after_use() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 8, 8)
    fused = for_inference(Residual().eval(), images)
    with torch.inference_mode():
        torch.testing.assert_close(copy.deepcopy(fused)(images), fused(images), rtol=0, atol=0)


def test_one_image_and_many_have_the_same_answers_with_any_number_of_threads() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.rand(50, 3, 8, 8)
    fast = for_inference(model, x)
    threads = torch.get_num_threads()
    try:
        for used in (1, 2, 1):
            torch.set_num_threads(used)
            with torch.no_grad():
                for images in (x, x[:1], x[:7]):
                    torch.testing.assert_close(fast(images), model(images), rtol=1e-5, atol=1e-6)
    finally:
        torch.set_num_threads(threads)
