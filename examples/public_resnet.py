"""ResNet-20 and -32 for CIFAR-10 (He et al. 2015), as in the files of github.com/akamaster/pytorch_resnet_cifar10."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import pad


class Block(nn.Module):
    """Two convolutions. Where the size changes, the shortcut takes every second pixel and pads channels of zeros."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.zeros = after // before, (after - before) // 2
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, self.stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.zeros, self.zeros))
        x = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (x + shortcut).relu()


class ResNet(nn.Module):
    """``blocks`` of each of 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Block(before, after), *(Block(after, after) for _ in range(blocks - 1)))
            for before, after in ((16, 16), (16, 32), (32, 64))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


resnet20, resnet32 = partial(ResNet, 3), partial(ResNet, 5)
