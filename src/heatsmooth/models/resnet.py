"""Residual networks (He et al. 2016) for small and large images, in one class.

Parameter names are the public ones (``conv1``, ``layer1.0.bn2``, ``layer2.0.downsample.0``, ``fc``), so published
ImageNet ResNets and Cohen's CIFAR ResNet-110 load strictly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(y)) + shortcut)
        return out


class Bottleneck(nn.Module):
    """Convolutions 1×1, 3×3 (with the stride) and 1×1 (with four times the width), and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        out: Tensor = self.relu(self.bn3(self.conv3(y)) + shortcut)
        return out


@dataclass(frozen=True)
class Layout:
    """The shape of a residual network: per stage, the number of blocks and their width."""

    block: type[BasicBlock] | type[Bottleneck]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    first_stride: int = 1
    """Of the first stage; the others have stride 2."""
    large: bool = False
    """Begin with the 7×7 convolution with stride 2 and the pooling of ImageNet networks, instead of one 3×3."""
    unit_logits: bool = False
    """End with a batch norm without scale: over the images, the logits of each class have mean 0 and variance 1."""


class ResNet(nn.Module):
    """Logits (batch, classes) of images (batch, channels, height, width) of any height and width."""

    def __init__(self, layout: Layout, *, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        inputs = layout.widths[0]
        self.conv1 = _conv(channels, inputs, 7, 2) if layout.large else _conv(channels, inputs, 3)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if layout.large else nn.Identity()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.stages = [f"layer{i + 1}" for i in range(len(layout.depths))]
        stride = layout.first_stride
        for name, depth, width in zip(self.stages, layout.depths, layout.widths, strict=True):
            setattr(self, name, _stage(layout.block, inputs, width, depth, stride))
            inputs, stride = width * layout.block.expansion, 2
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        self.logits_norm = nn.BatchNorm1d(classes, affine=False) if layout.unit_logits else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        logits: Tensor = self.logits_norm(self.fc(self.avgpool(x).flatten(1)))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    """``depth`` blocks; the first has the stride, and a convolution in its shortcut where the shape changes."""
    outputs = width * block.expansion
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
    return nn.Sequential(
        block(inputs, width, stride, downsample), *(block(outputs, width, 1, None) for _ in range(depth - 1))
    )


_LAYOUTS = {
    "tiny": Layout(BasicBlock, (1, 1, 1), (16, 32, 64), first_stride=2),
    "tiny-unit-logits": Layout(BasicBlock, (1, 1, 1), (16, 32, 64), first_stride=2, unit_logits=True),
    "small": Layout(BasicBlock, (1, 1, 1), (32, 64, 128), first_stride=2),
    "resnet20": Layout(BasicBlock, (3, 3, 3), (16, 32, 64)),
    "resnet34": Layout(BasicBlock, (3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet110": Layout(BasicBlock, (18, 18, 18), (16, 32, 64)),
    "resnet18-imagenet": Layout(BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), large=True),
    "resnet50": Layout(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), large=True),
}
RESNETS: dict[str, Callable[..., nn.Module]] = {
    name: partial(ResNet, layout, classes=1000 if layout.large else 10) for name, layout in _LAYOUTS.items()
}
"""Residual networks by name; each takes ``classes`` and ``channels``."""
