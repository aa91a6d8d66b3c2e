"""A network, or the Gaussian average of one, for foolbox and the adversarial-robustness-toolbox (ART).

Both take the module itself: images in [0, 1], normalisation inside. These functions set bounds, device, number of
classes and evaluation mode correctly. A ``GaussianAverage`` is passed like any network.
"""

import importlib
import warnings
from typing import Any

from torch import Tensor, nn

from heatsmooth.errors import InputError, require
from heatsmooth.models import count_classes, device_of

ART = "adversarial-robustness-toolbox"


def foolbox_model(model: nn.Module) -> Any:
    """``model`` as a ``foolbox.PyTorchModel`` for images in [0, 1], on the device of the model."""
    _check_mode(model)
    return _imported("foolbox", "foolbox").PyTorchModel(model, bounds=(0, 1), device=device_of(model))


def art_classifier(model: nn.Module, images: Tensor) -> Any:
    """``model`` as ART's ``PyTorchClassifier``, to attack it.

    ART's attacks keep within [0, 1]. To attack an average, pass a ``GaussianAverage``: the gradients of ART's own
    ``PyTorchRandomizedSmoothing`` are, by default, those of the network without noise.

    ``model``: in evaluation mode.
    ``images``: (some, channels, height, width), which give the size of an image.
    """
    home = _imported("art.estimators.classification", ART)
    return _art(home.PyTorchClassifier, model, images, clip_values=(0.0, 1.0))


def art_smoothing(model: nn.Module, images: Tensor, *, sigma: float, n0: int = 100, alpha: float = 0.001) -> Any:
    """``model`` as ART's ``PyTorchRandomizedSmoothing``: its ``certify(x, n)`` covers the average over N(0, σ²I).

    Noise is not clipped to [0, 1]: clipped noise has no certificate.

    ``model``: in evaluation mode.
    ``images``: (some, channels, height, width), which give the size of an image.
    ``sigma``: the noise level, in [0, 1] pixels.
    ``n0``: samples that select the class.
    ``alpha``: the probability that a certificate is false.
    """
    require(sigma > 0, f"`sigma`: expected a positive number, got {sigma}")
    home = _imported("art.estimators.certification.randomized_smoothing", ART)
    return _art(home.PyTorchRandomizedSmoothing, model, images, sample_size=n0, scale=sigma, alpha=alpha)


def _art(kind: Any, model: nn.Module, images: Tensor, **settings: Any) -> Any:
    """ART's estimator ``kind`` for ``model``, with what all of them need."""
    _check_mode(model)
    device = device_of(model)
    return kind(
        model=model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(images.shape[1:]),
        nb_classes=count_classes(model, images.to(device)),
        device_type="cpu" if device.type == "cpu" else "gpu",
        **settings,
    )


def _check_mode(model: nn.Module) -> None:
    require(not model.training, "expected a network in evaluation mode, got training mode; call model.eval() first")


def _imported(module: str, package: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # those of its own imports
            return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"expected {package}, got {error}; pip install 'heatsmooth[peers]'") from None
