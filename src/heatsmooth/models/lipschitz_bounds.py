"""The deterministic radius of a network that is Lipschitz by construction, proven for its stored numbers.

Three things are bounded, see docs/guarantees.md: the constant of each layer, from the stored weights and scales; the
rounding errors of a pass in double precision; and those of the float32 normalisation before and the float32 logits
after it. Nothing is estimated. Everything is rounded in the safe direction.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, require
from heatsmooth.models.classifier import Classifier
from heatsmooth.models.lipschitz import (
    ROUNDOFF,
    SLL,
    LastLayer,
    LipschitzNetwork,
    MoreChannels,
    OnePixel,
    Projection,
    proven_diagonal,
)

FLOAT32 = 2.0**-24
"""Unit roundoff of the images, the normalisation and the logits."""
NORMALISING = 4 * FLOAT32
"""Relative error of (x − mean) / std in float32: at most three roundings."""
KNOWN = (nn.PixelUnshuffle, MoreChannels, OnePixel, Projection, SLL)
"""The layers of a network with a proven radius; a class derived from one may compute anything."""
LARGEST = 3e38
"""Below the largest float32: a radius is claimed only where no number of the pass can be larger."""
SLACK = 1e-9
"""Relative allowance for the rounding of the bounds themselves, which are sums of some thousand positive numbers."""
LARGEST_LOG_Q = 100
"""Of the weights q of a residual layer. Underflow is then far below the ``TINY`` that T contains."""
UNDERFLOW = 1e-37
"""Absolute error of a float32 logit that underflows, and more."""


@dataclass(frozen=True)
class Line:
    """slope·N + offset: an upper bound for all images whose normalised norm is at most N."""

    slope: float
    offset: float

    def plus(self, other: "Line", factor: float = 1.0) -> "Line":
        """The sum with ``factor`` times another line, rounded up."""
        up = 1 + SLACK
        return Line((self.slope + factor * other.slope) * up, (self.offset + factor * other.offset) * up)


@dataclass(frozen=True)
class LayerBound:
    """Of one layer: ‖f(x) − f(y)‖ ≤ constant·‖x − y‖, ‖f(0)‖ ≤ offset, and ‖computed f(x) − f(x)‖ ≤ error(‖x‖)."""

    constant: float
    offset: float
    error: Line


def layer_bound(layer: nn.Module, area: int, roundoff: float = ROUNDOFF) -> LayerBound:
    """The bound of a layer on maps of ``area`` pixels, for a pass with this unit roundoff.

    An inner product of n terms, in any order, has an error of at most γ_n = n·u/(1 − n·u) times that of the absolute
    values; so with the absolute values |W| of a kernel, K = ‖|Wᵀ| S |W|‖ and the bias term |Wᵀ| S |b|:
    error ≤ u‖x‖ + γ_(2n+3) (K‖x‖ + ‖|Wᵀ| S |b|‖).

    The constant is 1 if the stored scales S are from 0 to 2/T. If one is too large by a factor c, because weights were
    changed, it is 2c − 1: with D = S/2, D T D ⪯ c D and ‖Wᵀ D W‖ ≤ c, so that
    Jᵀ J ⪯ I + 4 Wᵀ D (cΛ² − Λ) W ⪯ (1 + 4c(c − 1)) I. If one is negative, it is 1 + 2c with c of |S|, since
    ‖J‖ ≤ 1 + 2‖Wᵀ |D| W‖.
    """
    if isinstance(layer, nn.PixelUnshuffle | MoreChannels | OnePixel):
        return LayerBound(1.0, 0.0, Line(0.0, 0.0))
    if isinstance(layer, Projection):
        return _projection_bound(layer, roundoff)
    if not isinstance(layer, SLL):
        raise InputError(f"expected a layer that is Lipschitz by construction, got {type(layer).__name__}; use another")
    size, stored, up = layer.weight.detach().double().abs(), layer.scale.double(), 1 + SLACK
    require(
        size.shape[-1] % 2 == size.shape[-2] % 2 == 1 and float(layer.log_q.detach().abs().max()) <= LARGEST_LOG_Q,
        f"expected odd kernels and log q from −{LARGEST_LOG_Q} to {LARGEST_LOG_Q}, got others; train again",
    )
    scale = stored.abs()
    gamma = _gamma(size[0].numel() + size[:, 0].numel() + 3, roundoff)
    weighted = size * (scale * size.sum((1, 2, 3)))[:, None, None, None]
    norm = float(weighted.sum((0, 2, 3)).max())
    shift = (size * (scale * layer.bias.detach().double().abs())[:, None, None, None]).sum((0, 2, 3))
    offset = math.sqrt(area) * float(shift.square().sum().sqrt()) * up
    error = Line((roundoff + gamma * norm) * up, gamma * offset * up)
    ratio = _finite((proven_diagonal(layer.weight, layer.log_q) * scale).max() / 2) * up
    constant = 1 + 2 * ratio if bool((stored < 0).any()) else 2 * ratio - 1
    return LayerBound(max(1.0, constant * up), offset, error)


def _projection_bound(layer: Projection, roundoff: float) -> LayerBound:
    """The bound of a matrix of stored rows R, error ≤ γ_n ‖|R|‖·‖x‖.

    ‖R‖ ≤ 1 if a Cholesky factorisation of I − R Rᵀ, less a shift for its rounding errors, succeeds (Rump 2006). Else
    ‖R‖² is at most the largest row sum of |R Rᵀ|.
    """
    rows, up = layer.rows.double(), 1 + SLACK
    outputs, inputs = rows.shape
    gram, size = rows @ rows.T, rows.abs()
    rounding = _gamma(inputs, ROUNDOFF) * _finite((size @ size.T).sum(1).max()) * up
    shift = 2 * outputs * _gamma(outputs + 2, ROUNDOFF) + rounding
    identity = torch.eye(outputs, dtype=torch.float64, device=rows.device)
    proven = int(torch.linalg.cholesky_ex((1 - shift) * identity - gram).info) == 0
    constant = 1.0 if proven else max(1.0, math.sqrt((float(gram.abs().sum(1).max()) + rounding) * up) * up)
    norm = float((size.sum(1).max() * size.sum(0).max()).sqrt())
    return LayerBound(constant, 0.0, Line(_gamma(inputs + 1, roundoff) * norm * up, 0.0))


def _finite(number: Tensor) -> float:
    require(bool(number.isfinite()), "expected finite weights, got NaN or infinity; train again with a lower `lr`")
    return float(number)


def _gamma(terms: int, roundoff: float) -> float:
    return terms * roundoff / (1 - terms * roundoff) * (1 + SLACK)


@dataclass(frozen=True)
class FeatureBound:
    """Of everything between the normalised image and the last layer."""

    constant: float
    norm: Line
    """Of the computed features."""
    error: Line
    """Distance of the computed features from the exact ones; the normalisation counts as computed in float32."""


def feature_bound(network: LipschitzNetwork, roundoff: float = ROUNDOFF) -> FeatureBound:
    """The bounds of all layers together: an error made in one layer grows by the constants of the layers after it."""
    area = network.shape[1] * network.shape[2]
    constant, norm, error = 1.0, Line(1 + NORMALISING, 0.0), Line(NORMALISING, 1e-30)
    for layer in network.layers:
        if isinstance(layer, nn.PixelUnshuffle):
            area //= layer.downscale_factor**2
        area = 1 if isinstance(layer, OnePixel) else area
        bound = layer_bound(layer, area, roundoff)
        own = Line(bound.error.slope * norm.slope, bound.error.slope * norm.offset + bound.error.offset)
        error = own.plus(error, bound.constant)
        norm = Line(0.0, bound.offset).plus(norm, bound.constant).plus(own)
        constant *= bound.constant
    return FeatureBound(constant * (1 + SLACK) if constant > 1 else 1.0, norm.plus(error), error)


class DeterministicRadius(nn.Module):
    """The L2 radius within which one pass of ``model``, in evaluation mode, keeps its class, for images in [0, 1].

    For the class i of an image and every other class j, with d_ij = ‖w_i − w_j‖ and the constant L of all before,

        radius = min_j [ (z_i − z_j − 2(e_i + e_j)) / d_ij − 2E ] / L.

    e_i bounds the error of a logit and E that of the features, for every image within the radius: they are subtracted
    once for the image itself and once for the perturbed one. A tie has the radius 0, which claims nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        network, mean, std = _parts(model)
        features, last, up = feature_bound(network), network.last, 1 + SLACK
        inverse_std = float((1 / std.abs()).max()) * up
        self.constant = features.constant * inverse_std
        """L, in [0, 1] pixels."""
        self.shape = network.shape
        rows = last.rows(torch.float64).detach()
        distances = torch.stack([(row - rows).square().sum(1).sqrt() for row in rows]) * up
        lengths, bias = rows.square().sum(1).sqrt(), last.bias.detach().double().abs()
        share = (_gamma(rows.shape[1] + 2, ROUNDOFF) + FLOAT32) * (1 + 4 * FLOAT32)
        numbers = {
            "mean": mean,
            "std": std,
            "growth": inverse_std * up,  # of the normalised norm, by distance from the image
            "rate": (1 - SLACK) / self.constant,
            "most_rate": up / self.constant,
            "up": up,
            "inverse_distances": 1 / (distances + 1e-30) / up,
            "logit_slopes": 2 * share * lengths * features.norm.slope * up,
            "logit_offsets": 2 * share * (lengths * features.norm.offset + bias) * up + UNDERFLOW,
            "feature_slope": 2 * features.error.slope * up,
            "feature_offset": 2 * features.error.offset * up,
            "largest_norm": LARGEST / (1 + NORMALISING),
            "largest_error": 2 * share * LARGEST,  # an error is this share of the bound of its logit
        }
        for name, number in numbers.items():
            # In an ONNX file, buffers keep all digits. The exporter drops factors near 1 and summands near 0, but only
            # numbers without dimensions: so each has one.
            values = torch.atleast_1d(torch.as_tensor(number, dtype=torch.float64, device=rows.device))
            self.register_buffer(name, values)

    def forward(self, images: Tensor, logits: Tensor) -> Tensor:
        """Radii (batch,), double, of images (batch, channels, height, width) and their logits (batch, classes)."""
        return self.parts(images, logits)[0]

    def parts(self, images: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The radii, and the most that was subtracted from each for rounding errors, 2A; both (batch,), double.

        The bound min_j (z_i − z_j) / (d_ij L) of the network in real numbers is above the radius, and by at most 3A but
        for a relative 1e-8: a computed margin, in units of radius, differs from the exact one by at most A.
        """
        kinds = (torch.float32, torch.float64)
        require(
            images.dtype in kinds and logits.dtype in kinds,
            f"expected images and logits in float32, got {images.dtype} and {logits.dtype}; convert them by .float()",
        )
        require(
            tuple(images.shape[1:]) == self.shape,
            f"expected images of {'×'.join(map(str, self.shape))}, got {'×'.join(map(str, images.shape[1:]))}",
        )
        held = dict(self.named_buffers())
        z, normalised = logits.double(), (images.double() - held["mean"]) / held["std"]
        predicted = z.argmax(1)
        others = torch.arange(z.shape[1], device=z.device) != predicted[:, None]
        margins, inverse = z.amax(1, keepdim=True) - z, held["inverse_distances"][predicted]
        most = torch.where(others, margins * inverse, torch.inf).amin(1) * held["most_rate"]
        norm = normalised.flatten(1).square().sum(1).sqrt() * held["up"] + most * held["growth"]
        errors = held["logit_slopes"] * norm[:, None] + held["logit_offsets"]
        finite = (norm < held["largest_norm"]) & (errors.amax(1) < held["largest_error"])
        errors = errors + torch.where(others, 0.0, errors).sum(1, keepdim=True)
        before = held["feature_slope"] * norm + held["feature_offset"]
        radius = (torch.where(others, (margins - errors) * inverse, torch.inf).amin(1) - before) * held["rate"]
        subtracted = (torch.where(others, errors * inverse, 0.0).amax(1) + before) * held["rate"]
        return torch.where(finite & (radius > 0), radius, 0.0), subtracted  # 0 for NaN


def _parts(model: nn.Module) -> tuple[LipschitzNetwork, Tensor, Tensor]:
    """The network, and the mean and standard deviation before it in double precision, if it is of the right kind."""
    network = model.network if isinstance(model, Classifier) else model
    if type(network) is not LipschitzNetwork or type(network.last) is not LastLayer:
        raise InputError(
            "`sigma`: expected the noise level, got none; only a network that is Lipschitz by construction "
            "is certified without noise: make one with heatsmooth distill"
        )
    _check_unchanged(model, network)
    if not isinstance(model, Classifier):
        one = torch.ones(1, 1, 1, dtype=torch.float64, device=network.last.bias.device)
        return network, 0 * one, one
    mean, std = model.mean.double(), model.std.double()
    require(
        type(model) is Classifier and bool(((std.abs() > 1e-30) & (std.abs() < 1e30) & (mean.abs() < 1e30)).all()),
        "expected a Classifier whose normalisation has ordinary numbers, got another; load it with heatsmooth.load",
    )
    return network, mean, std


def _check_unchanged(model: nn.Module, network: LipschitzNetwork) -> None:
    """Refuse a network that may compute something else than its layers say."""
    if any(module.training for module in network.modules()):
        raise InputError("expected a network in evaluation mode; call model.eval()")
    other = next((layer for layer in network.layers if type(layer) not in KNOWN), None)
    require(
        other is None, f"expected layers that are Lipschitz by construction, got {type(other).__name__}; use another"
    )
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise InputError("expected a network without hooks, got one that a hook may change; remove its hooks")


def is_lipschitz(model: nn.Module) -> bool:
    """Whether a network is Lipschitz by construction, so that it has a deterministic radius."""
    return isinstance(model.network if isinstance(model, Classifier) else model, LipschitzNetwork)


def refuse_lipschitz(model: nn.Module, remedy: str) -> None:
    """Refuse a network that has a deterministic radius, where what is asked for has no use; ``remedy``: what has."""
    require(
        not is_lipschitz(model),
        f"`source`: expected a network without a proven radius, got one that is Lipschitz by construction; {remedy}",
    )
