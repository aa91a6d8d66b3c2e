"""Networks that are 1-Lipschitz (L2 to L2) for every value of their parameters, up to their last, linear layer.

Residual layers rest on one inequality. For a matrix or convolution W and any q > 0,

    W Wᵀ ⪯ T = diag_i( Σ_j |W Wᵀ|_ij q_j / q_i ),   since 2|x_i x_j| ≤ x_i² q_j/q_i + x_j² q_i/q_j.

Zero padding keeps it: it cuts W to W P with a projection P, and W P Wᵀ ⪯ W Wᵀ.

In training, T is computed from the weights in each pass. In evaluation, the layers compute in double precision with a
stored ``scale``, which is set from T when a layer enters evaluation mode, and rounded down. ``lipschitz_bounds``
proves the constant of the stored numbers, whatever they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.errors import require

TINY = 1e-12
"""Added to every T, so that no scale is infinite. A larger T is as valid."""
SHORTER = 4e-6
"""Stored rows of a projection are shorter by this share, more than their rounding to float32 can lengthen them."""
ROUNDOFF = 2.0**-53
"""Of double precision."""


def gram(weight: Tensor) -> Tensor:
    """Σ over space of |W Wᵀ|, (outputs, outputs), for a convolution with kernel ``weight`` (outputs, inputs, k, k).

    The entries of W Wᵀ at the spatial shifts s and −s are transposed, so half of the shifts are computed.
    """
    size, flat = weight.shape[-1], weight.flatten(1)
    total = (flat @ flat.T).abs()
    for down in range(size):
        for right in range(1 - size, size):
            if (down, right) > (0, 0):
                one = weight[:, :, down:, max(right, 0) : size + min(right, 0)]
                other = weight[:, :, : size - down, max(-right, 0) : size - max(right, 0)]
                product = (one.flatten(1) @ other.flatten(1).T).abs()
                total = total + product + product.T
    return total


def diagonal(weight: Tensor, log_q: Tensor) -> Tensor:
    """T, (outputs,), up to rounding."""
    q = log_q.exp()
    return gram(weight) @ q / q + TINY


def proven_diagonal(weight: Tensor, log_q: Tensor) -> Tensor:
    """T, (outputs,), in double precision and never smaller than exact: the errors of the sums are bounded and added."""
    weight, q = weight.detach().double(), log_q.detach().double().exp()
    terms = weight[0].numel() + 2 * len(weight) + 25
    sums = gram(weight) + 2 * terms * ROUNDOFF * gram(weight.abs())
    return (sums @ q / q + TINY) * (1 + 4 * terms * ROUNDOFF)


def rounded_down(positive: Tensor) -> Tensor:
    """Numbers as float32 of 16 bits, smaller by 2⁻²⁸ to 2⁻¹⁵; so few bits are the same on every machine."""
    mantissa, exponent = torch.frexp(positive.double() * (1 - 2.0**-28))
    rounded = torch.ldexp((mantissa * 2.0**16).floor() / 2.0**16, exponent)
    return torch.where(rounded > 1e-30, rounded, 0.0).float()


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution with zero padding and stride 1, as one matrix product: fast in double precision, and in ONNX."""
    size, (height, width) = weight.shape[-1], x.shape[2:]
    x = x.permute(0, 2, 3, 1)
    if size > 1:
        x = F.pad(x, (0, 0, *(4 * (size // 2,))))
        x = torch.cat([x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)], 3)
    return (x @ weight.permute(2, 3, 1, 0).flatten(0, 2)).permute(0, 3, 1, 2)


class SLL(nn.Module):
    """y = x − 2 Wᵀ T⁻¹ relu(W x + b), (batch, channels, height, width), W a convolution (Araujo et al. 2023).

    1-Lipschitz: with the slopes 0 ≤ Λ ≤ 1 of relu, J = I − 2 Wᵀ T⁻¹ Λ W, and W Wᵀ ⪯ T gives
    Jᵀ J ⪯ I − 4 Wᵀ T⁻¹ (Λ − Λ²) W ⪯ I.
    """

    scale: Tensor

    def __init__(self, channels: int, size: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(channels, channels, size, size)))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.log_q = nn.Parameter(torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def scale_of(self, t: Tensor) -> Tensor:
        """2 / T, (channels,)."""
        return 2 / t

    def train(self, mode: bool = True) -> "SLL":
        """Entering evaluation mode stores the scale of the present weights."""
        if self.training and not mode:
            with torch.no_grad():
                self.scale.copy_(rounded_down(self.scale_of(proven_diagonal(self.weight, self.log_q))))
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, half = self.weight.to(x.dtype), self.bias.to(x.dtype), self.weight.shape[-1] // 2
        scale = self.present_scale(x)
        if self.training:
            return x - F.conv_transpose2d(scale * F.conv2d(x, weight, bias, padding=half).relu(), weight, padding=half)
        hidden = (convolution(x, weight) + bias[:, None, None]).relu()
        return x - convolution(scale * hidden, weight.transpose(0, 1).flip(2, 3))

    def present_scale(self, x: Tensor) -> Tensor:
        """The scale of this pass, in the type of ``x``, (channels, 1, 1)."""
        scale = self.scale_of(diagonal(self.weight, self.log_q)) if self.training else self.scale
        return scale.to(x.dtype)[:, None, None]


class Projection(nn.Module):
    """y = C⁻¹ W x at each pixel, to fewer channels, with the Cholesky factor C of W Wᵀ + ε I.

    1-Lipschitz: C⁻¹ W Wᵀ C⁻ᵀ ⪯ I. Where W has full rank, the rows of C⁻¹ W are orthonormal but for ε, so that no
    direction among them is shortened.
    """

    rows: Tensor
    epsilon = 1e-4

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(outputs, inputs)))
        self.register_buffer("rows", torch.zeros(outputs, inputs))

    def orthonormal(self, weight: Tensor) -> Tensor:
        """C⁻¹ W, (outputs, inputs), of W scaled to rows of length 1 on average."""
        weight = weight * (len(weight) ** 0.5 / (weight.norm() + TINY))
        gram = (weight @ weight.T).double()
        factor = torch.linalg.cholesky(gram + self.epsilon * torch.eye(len(weight), device=weight.device))
        rows: Tensor = torch.linalg.solve_triangular(factor.to(weight.dtype), weight, upper=False)
        return rows

    def train(self, mode: bool = True) -> "Projection":
        """Entering evaluation mode stores the rows of the present weights, unless they differ only by rounding."""
        if self.training and not mode:
            with torch.no_grad():
                rows = self.orthonormal(self.weight.double()) * (1 - SHORTER)
                if not bool(((rows - self.rows).abs() < SHORTER).all()):
                    self.rows.copy_(rows)
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return F.conv2d(x, self.orthonormal(self.weight.to(x.dtype))[:, :, None, None])
        return convolution(x, self.rows.to(x.dtype)[:, :, None, None])


class MoreChannels(nn.Module):
    """The same features followed by channels of zeros; keeps every norm."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 0, self.more))


class OnePixel(nn.Module):
    """All features as channels of one pixel; keeps every norm."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :, None, None]


class LastLayer(nn.Module):
    """Logits z_i = w_i·h + b_i, (batch, classes), with rows of one length, ``gain``.

    z_i − z_j changes by at most ‖w_i − w_j‖ times the change of h.
    """

    scale: Tensor
    gain: Tensor

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(classes, inputs)))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("gain", torch.tensor(4.0))
        self.register_buffer("scale", torch.ones(classes))

    def train(self, mode: bool = True) -> "LastLayer":
        """Entering evaluation mode stores the scale of the present rows."""
        if self.training and not mode:
            with torch.no_grad():
                self.scale.copy_(rounded_down(self._scale(self.weight.double())))
        super().train(mode)
        return self

    def _scale(self, weight: Tensor) -> Tensor:
        return self.gain / (weight.square().sum(1) + TINY).sqrt()

    def rows(self, kind: torch.dtype) -> Tensor:
        """w, (classes, features). Those of evaluation mode are exact in double precision."""
        scale = self._scale(self.weight) if self.training else self.scale
        return self.weight.to(kind) * scale.to(kind)[:, None]

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.rows(features.dtype).T + self.bias.to(features.dtype)


@dataclass(frozen=True)
class Layout:
    """The shape of a network: layers at twice the last resolution, at the last, and on all features together."""

    width: int
    """Channels at twice the last resolution; at the last there are four times as many."""
    depths: tuple[int, int, int]
    features: int
    """Before the last layer."""


class LipschitzNetwork(nn.Module):
    """Logits (batch, classes) of images (batch, channels, height, width) of one size, from 1-Lipschitz layers.

    The resolution is halved by pixel-unshuffle, which only permutes numbers, until at most 8 × 8 pixels are left.
    """

    def __init__(
        self, layout: Layout, *, classes: int = 10, channels: int = 3, size: int | tuple[int, int] = 32
    ) -> None:
        super().__init__()
        height, width = (size, size) if isinstance(size, int) else size
        factor = 2
        while max(height, width) > 8 * factor:
            factor *= 2
        require(
            height % factor == width % factor == 0,
            f"`model`: expected images whose sides are multiples of {factor}, got {height}×{width}; "
            f"name `image_size`, as {max(1, round(height / factor)) * factor}",
        )
        first, pixels = channels * (factor // 2) ** 2, height * width // factor**2
        fitted = Projection(first, layout.width) if first > layout.width else MoreChannels(layout.width - first)
        early, late, dense = layout.depths
        flat, features = 4 * layout.width * pixels, layout.features
        joined = Projection(flat, features) if flat > features else MoreChannels(features - flat)
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(factor // 2),
            fitted,
            *(SLL(layout.width) for _ in range(early)),
            nn.PixelUnshuffle(2),
            *(SLL(4 * layout.width) for _ in range(late)),
            OnePixel(),
            joined,
            *(SLL(features, 1) for _ in range(dense)),
        )
        self.last = LastLayer(features, classes)
        self.shape = (channels, height, width)

    def forward(self, x: Tensor) -> Tensor:
        require(
            tuple(x.shape[1:]) == self.shape,
            f"expected images of {'×'.join(map(str, self.shape))}, got {'×'.join(map(str, x.shape[1:]))}; resize them",
        )
        features = self.layers(x if self.training else x.double())
        logits: Tensor = self.last(features.flatten(1))
        return logits.to(x.dtype)


_LAYOUTS = {
    "lipschitz-tiny": Layout(16, (1, 1, 1), 64),
    "lipschitz-small": Layout(16, (0, 5, 2), 256),
    "lipschitz-large": Layout(64, (6, 12, 4), 1024),
}
LIPSCHITZ: dict[str, Callable[..., nn.Module]] = {
    name: partial(LipschitzNetwork, layout) for name, layout in _LAYOUTS.items()
}
"""Built-in networks by name; each takes ``classes``, ``channels`` and ``size``."""
