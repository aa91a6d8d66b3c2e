"""Networks merged for speed give the same answers."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from heatsmooth.models import for_inference
from heatsmooth.models.fusion import ConvolutionRelu


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
    names = [name for name, module in fast.named_modules() if isinstance(module, ConvolutionRelu)]
    assert names == ["first_relu", "second_relu"]
    assert not any(module.training for module in fast.modules())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)
    slopes = [torch.autograd.grad(one(x.requires_grad_()).sum(), x)[0] for one in (model, fast)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6)


def test_a_network_whose_course_depends_on_its_input_stays_as_it_is() -> None:
    class Wilful(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.mean() > 0 else -x)

    model, x = Wilful().eval(), torch.rand(50, 3, 8, 8)
    fast = for_inference(model, x)
    assert not any(isinstance(module, ConvolutionRelu) for module in fast.modules())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_fused_network_can_be_copied_after_use() -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 8, 8)
    fused = for_inference(Residual().eval(), images)
    with torch.inference_mode():
        torch.testing.assert_close(copy.deepcopy(fused)(images), fused(images), rtol=0, atol=0)
