"""Residual networks (He et al. 2016) for small and large images, in one class.

Parameter names are the public ones (``conv1``, ``layer1.0.bn2``, ``layer2.0.downsample.0``, ``fc``),
so published ImageNet ResNets, and Cohen's CIFAR ResNet-110, load strictly.
"""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

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
    """1×1, 3×3 (which carries the stride), 1×1 with four times the width, beside a shortcut."""

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


class ResNet(nn.Module):
    """Logits (batch, classes) of images (batch, channels, height, width), any height and width.

    ``stem``: ``"small"`` is one 3×3 convolution, for images of about 32×32; ``"large"`` is the 7×7
    convolution with stride 2 and the pooling of the ImageNet networks.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        *,
        stem: str = "small",
        first_stride: int = 1,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        super().__init__()
        inputs = widths[0]
        if stem == "large":
            self.conv1 = nn.Conv2d(channels, inputs, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = _conv(channels, inputs, 3)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.stages = [f"layer{i + 1}" for i in range(len(depths))]
        for i, (name, depth, width) in enumerate(zip(self.stages, depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                stride = (first_stride if i == 0 else 2) if j == 0 else 1
                outputs = width * block.expansion
                downsample = None
                if stride != 1 or inputs != outputs:
                    downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
                blocks.append(block(inputs, width, stride, downsample))
                inputs = outputs
            setattr(self, name, nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "tiny": partial(ResNet, BasicBlock, (1, 1, 1), (16, 32, 64), first_stride=2),
    "small": partial(ResNet, BasicBlock, (1, 1, 1), (32, 64, 128), first_stride=2),
    "resnet20": partial(ResNet, BasicBlock, (3, 3, 3), (16, 32, 64)),
    "resnet34": partial(ResNet, BasicBlock, (3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet110": partial(ResNet, BasicBlock, (18, 18, 18), (16, 32, 64)),
    "resnet18-imagenet": partial(ResNet, BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), stem="large", classes=1000),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), stem="large", classes=1000),
}
"""Built-in networks by name; each takes ``classes`` and ``channels``."""
