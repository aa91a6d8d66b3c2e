"""A network, smoothed or averaged, as foolbox and the adversarial-robustness-toolbox (ART) want it.

Both take the module itself: images in [0, 1], normalisation inside. What these functions add is that bounds, device,
number of classes and evaluation mode are right. A ``GaussianAverage`` goes through them like any network.
"""

import importlib
import itertools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, require
from heatsmooth.models import count_classes


def foolbox_model(model: nn.Module) -> Any:
    """``model`` as a ``foolbox.PyTorchModel`` of images in [0, 1], on the device it is on."""
    _check_mode(model)
    return _imported("foolbox", "foolbox").PyTorchModel(model, bounds=(0, 1), device=_device(model))


def art_classifier(model: nn.Module, images: Tensor) -> Any:
    """``model`` as ART's ``PyTorchClassifier``, to attack; ``images`` (some, channels, height, width) show their size.

    ART's attacks keep within [0, 1]. To attack an average, give a ``GaussianAverage``: the gradients of ART's own
    ``PyTorchRandomizedSmoothing`` are by default those of the network without noise.
    """
    home = _imported("art.estimators.classification", "adversarial-robustness-toolbox")
    return home.PyTorchClassifier(clip_values=(0.0, 1.0), **_art_settings(model, images))


def art_smoothing(model: nn.Module, images: Tensor, *, sigma: float, n0: int = 100, alpha: float = 0.001) -> Any:
    """``model`` as ART's ``PyTorchRandomizedSmoothing``: its ``certify(x, n)`` is about the average over N(0, σ²I).

    ``n0`` draws choose the class. Noise is not clipped to [0, 1]: a clipped one has no certificate.
    """
    require(sigma > 0, f"sigma: expected a positive number, got {sigma}")
    home = _imported("art.estimators.certification.randomized_smoothing", "adversarial-robustness-toolbox")
    settings = _art_settings(model, images)
    return home.PyTorchRandomizedSmoothing(sample_size=n0, scale=sigma, alpha=alpha, **settings)


def _art_settings(model: nn.Module, images: Tensor) -> dict[str, Any]:
    _check_mode(model)
    return {
        "model": model,
        "loss": nn.CrossEntropyLoss(),
        "input_shape": tuple(images.shape[1:]),
        "nb_classes": count_classes(model, images.to(_device(model))),
        "device_type": "cpu" if _device(model).type == "cpu" else "gpu",
    }


def _check_mode(model: nn.Module) -> None:
    require(not model.training, "expected a network in evaluation mode, got training mode; call model.eval() first")


def _device(model: nn.Module) -> torch.device:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _imported(module: str, package: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # of their own imports
            return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"expected {package}, got {error}; pip install 'heatsmooth[peers]'") from None
