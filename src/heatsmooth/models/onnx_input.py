"""The input of an ONNX file: how images in (batch, channels, height, width) are given to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heatsmooth.errors import require

KINDS: dict[int, type[np.floating[Any]]] = {1: np.float32, 10: np.float16, 11: np.float64}
"""By the number that ONNX gives to a type of elements."""
USUAL_CHANNELS = (1, 3)
MOST = 2**26
"""Most numbers in the input of a pass that a file may state."""


@dataclass(frozen=True)
class OnnxInput:
    """The one input of a file; a size that is None may be anything."""

    name: str
    kind: type[np.floating[Any]]
    batch: int | None
    """Images per pass, if the file fixes them."""
    channels: int | None
    height: int | None
    width: int | None
    channels_last: bool = False
    """Whether the file takes (batch, height, width, channels)."""
    flat: int | None = None
    """Number of pixels, if the file takes (batch, pixels) of grey images."""

    @classmethod
    def of(cls, inputs: Sequence[Any], path: Path) -> Self:
        """The input, from the descriptions of all inputs (``onnx.ValueInfoProto``); other files are refused."""
        require(
            len(inputs) == 1,
            f"{path}: expected one input, the images, got {len(inputs)}; make the others constants of the file",
        )
        (value,) = inputs
        tensor = value.type.tensor_type
        require(
            tensor.elem_type in KINDS,
            f"{path}: expected images as floats, got an input of another type; noise needs floats: export it with a "
            "float32 input",
        )
        dims = [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]
        require(
            tensor.HasField("shape") and len(dims) in (2, 4),
            f"{path}: expected an input (batch, channels, height, width), got one of "
            f"{len(dims) if tensor.HasField('shape') else 'unknown'} dimensions; export it with a batch dimension",
        )
        require(
            math.prod(dim or 1 for dim in dims) <= MOST,
            f"{path}: expected an input of at most {MOST:,} numbers, got {shown(dims)}; export it for smaller images",
        )
        return cls._laid_out(value.name, KINDS[tensor.elem_type], dims)

    @classmethod
    def _laid_out(cls, name: str, kind: type[np.floating[Any]], dims: Sequence[int | None]) -> Self:
        """The input with these sizes: (batch, pixels), or (batch, channels, height, width), or channels last."""
        if len(dims) == 2:
            side = math.isqrt(dims[1] or 0)
            square = side if side > 0 and side**2 == dims[1] else None
            return cls(name, kind, dims[0], 1, square, square, flat=dims[1] or 0)
        batch, first, second, third = dims
        if first not in USUAL_CHANNELS and third in USUAL_CHANNELS:
            return cls(name, kind, batch, third, first, second, channels_last=True)
        return cls(name, kind, batch, first, second, third)

    @property
    def size(self) -> int | tuple[int, int] | None:
        """The size of the images, if the file fixes it: the side of squares, or (height, width)."""
        if self.height is None or self.width is None:
            return None
        return self.height if self.height == self.width else (self.height, self.width)

    def check(self, shape: tuple[int, ...], path: Path) -> None:
        """Refuse images of another shape (channels, height, width) than the file takes."""
        stated = (self.channels, self.height, self.width)
        fits = len(shape) == 3 and all(one in (None, other) for one, other in zip(stated, shape, strict=True))
        require(
            fits and self.flat in (None, 0, math.prod(shape)),
            f"{path}: expected images of {shown(stated)}, as the file takes, got {shown(shape)}; "
            "use other data or `image_size`",
        )

    def arranged(self, images: Tensor) -> NDArray[Any]:
        """Images (batch, channels, height, width) as the file takes them, contiguous."""
        pixels = images.detach().cpu()
        if self.flat is not None:
            pixels = pixels.flatten(1)
        elif self.channels_last:
            pixels = pixels.permute(0, 2, 3, 1)
        return np.ascontiguousarray(pixels.numpy(), dtype=self.kind)


def shown(shape: Sequence[object]) -> str:
    """Sizes as they are written: ``3×32×32``; those that are not numbers as ``?``."""
    return "×".join(str(side) if isinstance(side, int) else "?" for side in shape) or "no dimensions"
