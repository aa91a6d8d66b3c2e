"""A set of images addressed by index, and the augmentation of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from heatsmooth.errors import InputError, require
from heatsmooth.noise import Draw, mixed_seed
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import sha256

Size = int | tuple[int, int]
"""Size of images in pixels: the side of squares, or (height, width)."""


def size_of(height: int, width: int) -> Size:
    """The size of images with this height and width."""
    return height if height == width else (height, width)


def height_and_width(size: Size) -> tuple[int, int]:
    """Height and width of images of this size, in pixels.

    >>> height_and_width(28), height_and_width((20, 30))
    ((28, 28), (20, 30))
    """
    return (size, size) if isinstance(size, int) else size


class Pixels(Protocol):
    """A source of pixels: a tensor in memory, or files that are read on request."""

    @property
    def shape(self) -> Sequence[int]:
        """(images, channels, height, width)."""

    def __getitem__(self, indices: Tensor, /) -> Tensor:
        """The images at these indices, uint8 or float32, (len(indices), channels, height, width)."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (channels, height, width), their labels if known, and which images of the source they are."""

    name: str
    pixels: Pixels
    labels: Tensor | None
    """int64, one per image of ``pixels``; None if unknown."""
    indices: Tensor
    """int64, the images of ``pixels`` that belong to this set, in order."""
    rule: str = "all"
    """How the indices were selected."""
    class_names: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    """Names of images that belong to the set but cannot be read."""

    @staticmethod
    def of(
        name: str, pixels: Pixels, labels: Tensor | None, *, class_names: tuple[str, ...] | None = None
    ) -> "ImageSet":
        """All images of ``pixels``.

        ``name``: how records and errors call the set.
        ``pixels``: (images, channels, height, width); a tensor of uint8, or of floats in [0, 1], or another source.
        ``labels``: (images,), int64, from 0; None if unknown.
        ``class_names``: one per class.
        """
        count = int(pixels.shape[0])
        require(count > 0, f"{name}: expected at least one image, got none; check the path")
        if labels is not None:
            require(
                len(labels) == count,
                f"{name}: expected one label for each of {count} images, got {len(labels)} labels; repair the data",
            )
            require(
                int(labels.min()) >= 0,
                f"{name}: expected labels from 0, got {int(labels.min())}; number the classes from 0",
            )
        return ImageSet(name, pixels, labels, torch.arange(count), class_names=class_names)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        _, channels, height, width = self.pixels.shape
        return int(channels), int(height), int(width)

    @property
    def size(self) -> Size:
        """Height and width of an image."""
        return size_of(*self.shape[1:])

    @property
    def classes(self) -> int | None:
        """Number of classes in the labels of the whole source; None without labels."""
        return None if self.labels is None else int(self.labels.max()) + 1

    def raw(self, positions: Tensor) -> Tensor:
        """The images at these positions of the set as they are stored, uint8 or float32."""
        return self.pixels[self.indices[positions]]

    def images(self, positions: Tensor) -> Tensor:
        """The images at these positions of the set, float32 in [0, 1]."""
        return as_unit_interval(self.raw(positions))

    def labels_at(self, positions: Tensor) -> Tensor | None:
        """The labels at these positions of the set."""
        return None if self.labels is None else self.labels[self.indices[positions]]

    def known_labels(self) -> Tensor:
        """The labels of this set, in its order; an error without labels."""
        if self.labels is None:
            raise InputError(f"{self.name}: expected labels, got none; sort the images into one folder per class")
        return self.labels[self.indices]

    def without_labels(self) -> "ImageSet":
        """The same images without labels."""
        return replace(self, labels=None)

    def sampled(self, count: int | None) -> "ImageSet":
        """A fixed subset of ``count`` images: the first of a permutation that never changes, in source order."""
        if count is None or count >= len(self):
            return self
        require(count > 0, f"expected a positive number of images, got {count}")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(mixed_seed("subset") % 2**31))
        subset = self.indices[order[:count].sort().values]
        return replace(self, indices=subset, rule=f"{self.rule}; {count} of a fixed permutation")

    def strided(self, stride: int = 1, count: int | None = None, *, start: int = 0) -> "ImageSet":
        """Every ``stride``-th image from position ``start`` on, at most ``count`` of them."""
        require(stride > 0, f"`stride`: expected at least 1, got {stride}")
        require(count is None or count > 0, f"`count`: expected at least 1, got {count}")
        require(0 <= start < len(self), f"`start`: expected a position below {len(self)}, got {start}")
        if stride == 1 and start == 0 and (count is None or count >= len(self)):
            return self
        rule = f"{self.rule}; every {stride}." + (f" from {start} on" if start else "")
        rule += "" if count is None else f", the first {count}"
        return replace(self, indices=self.indices[start :: min(stride, len(self))][:count], rule=rule)

    def shuffled(self, *seed: int | str) -> Tensor:
        """All positions of the set in an order that depends on the seed alone, int64.

        Images that are stored in chunks (``ShardPixels``) are mixed with those of some other chunks, chosen at random,
        so that a chunk is read once.
        """
        generator = torch.Generator().manual_seed(mixed_seed(*seed))
        chunks: tuple[int, ...] = getattr(self.pixels, "chunks", ())
        if not chunks:
            return torch.randperm(len(self), generator=generator)
        chunk = torch.bucketize(self.indices, torch.tensor(chunks).cumsum(0), right=True)
        order = torch.randperm(len(chunks), generator=generator)
        held = torch.bincount(chunk, minlength=len(chunks))[order]
        mixed = torch.empty_like(order)
        mixed[order] = (held.cumsum(0) - held) // int(getattr(self.pixels, "mixed", 1))
        chance = torch.rand(len(self), generator=generator, dtype=torch.float64)
        return (mixed[chunk] + chance).argsort()

    def readable(self, progress: Progress = silent) -> "ImageSet":
        """The set without the images that cannot be read; each image is read once to find out."""
        find = getattr(self.pixels, "broken", None)
        broken: dict[int, str] = find(self.indices, progress) if find else {}
        if not broken:
            return self
        kept = self.indices[[index not in broken for index in self.indices.tolist()]]
        require(len(kept) > 0, f"{self.name}: expected a readable image, got none; repair the data")
        return replace(self, indices=kept, left_out=tuple(broken.values()), rule=f"{self.rule}; but the unreadable")

    def check_classes(self, classes: int) -> None:
        """Refuse labels that a network with ``classes`` classes does not have."""
        largest = -1 if self.labels is None else int(self.known_labels().max())
        if largest >= classes:
            raise InputError(
                f"{self.name}: expected labels below {classes}, the number of classes of the network, got {largest}; "
                "use a network for this data, or the data it was trained on"
            )

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel, over at most 2,000 images of the set, with 4 decimals."""
        some = self.images(torch.arange(0, len(self), max(1, len(self) // 2000)))
        spread = some.std(dim=(0, 2, 3)).clamp_min(1e-3)
        return tuple(round(float(m), 4) for m in some.mean(dim=(0, 2, 3))), tuple(round(float(s), 4) for s in spread)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the images (or of the names and sizes of their files), labels and indices of this set."""
        source = getattr(self.pixels, "fingerprint", None)
        content = self.pixels[self.indices].contiguous().numpy().tobytes() if source is None else source.encode()
        labels = b"" if self.labels is None else self.known_labels().numpy().tobytes()
        return sha256(content, labels, self.indices.numpy().tobytes())[:16]

    def describe(self) -> dict[str, object]:
        """What a run records about its data, as JSON."""
        return {
            "name": self.name,
            "images": len(self),
            "shape": list(self.shape),
            "rule": self.rule,
            "fingerprint": self.fingerprint,
            **({"left_out": list(self.left_out)} if self.left_out else {}),
        }


def as_unit_interval(pixels: Tensor) -> Tensor:
    """float32 in [0, 1] from uint8 (divided by 255), or from floats, which must already be in [0, 1]."""
    if pixels.dtype == torch.uint8:
        return pixels.to(torch.float32).div_(255)
    pixels = pixels.to(torch.float32)
    low, high = (float(bound) for bound in pixels.aminmax()) if pixels.numel() else (0.0, 0.0)
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"expected images in [0, 1], got values from {low:.3g} to {high:.3g}; "
            "divide by 255, and pass the normalisation of the network as `mean` and `std`"
        )
    return pixels


def shifted_and_flipped(pixels: Tensor, draw: Draw, *, shifts: bool = True) -> Tensor:
    """Each image shifted by up to an eighth of its size (edges mirrored), and mirrored with probability ½.

    ``pixels``: (batch, channels, height, width) of any type; the result has the same shape and type.
    ``draw``: the random numbers. ``shifts``: False: only mirror.
    """
    count, _, height, width = pixels.shape
    most = (height // 8, width // 8) if shifts else (0, 0)
    chance = draw.uniform((count, 3)).to(pixels.device)
    shift = (chance[:, :2] * torch.tensor([2 * most[0] + 1, 2 * most[1] + 1], device=pixels.device)).long()
    rows = shift[:, :1] + torch.arange(height, device=pixels.device)
    columns = shift[:, 1:] + torch.arange(width, device=pixels.device)
    columns = torch.where(chance[:, 2:] < 0.5, columns.flip(1), columns)
    padded = F.pad(pixels.to(torch.float32), (most[1], most[1], most[0], most[0]), mode="reflect").to(pixels.dtype)
    image = torch.arange(count, device=pixels.device).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
