"""Images in numpy files: ``.npz``, read whole; ``.npy``, read where they lie on the disk."""

import hashlib
import zipfile
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heatsmooth.data.images import ImageSet
from heatsmooth.errors import InputError, require


def load_npz(name: str, path: Path, split: str, class_names: tuple[str, ...] | None = None) -> ImageSet:
    """The arrays ``images`` and, if there, ``labels``; or those of the split, as ``train_images``, and named for it."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            prefix = f"{split}_" if f"{split}_images" in arrays else ""
            images = arrays.get(f"{prefix}images")
            labels = arrays.get(f"{prefix}labels")
            held = sorted(arrays)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{name}: expected a numpy .npz file, got {type(error).__name__}: {error}; check the path"
        ) from None
    require(images is not None, f"{name}: expected an array 'images' (or '{split}_images'), got {held}; rename it")
    assert images is not None
    pixels = torch.from_numpy(np.ascontiguousarray(_as_nchw(name, images)))
    pixels = pixels if images.dtype == np.uint8 else pixels.to(torch.float32)
    name = f"{name}/{split}" if prefix else name
    return ImageSet.of(name, pixels, None if labels is None else _labels(name, labels), class_names=class_names)


def load_npy(name: str, path: Path, labels: Path | None) -> ImageSet:
    """The array of images in ``path``, and the labels in a second file if one is named."""
    arrays = []
    for file in (path, *([labels] if labels else [])):
        try:
            arrays.append(np.load(file, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"{name}: expected numpy .npy files, got {type(error).__name__}: {error}; check the path"
            ) from None
        require(isinstance(arrays[-1], np.ndarray), f"{name}: expected a .npy file, got a .npz file; use npz:{file}")
    pixels = ArrayPixels(path, _as_nchw(name, arrays[0]))
    return ImageSet.of(name, pixels, _labels(name, arrays[1]) if labels else None)


class ArrayPixels:
    """An array on the disk, of which only what is asked for is read."""

    def __init__(self, path: Path, images: np.ndarray) -> None:
        self.path, self.array = path, images

    @property
    def shape(self) -> tuple[int, ...]:
        """(images, channels, height, width)."""
        return self.array.shape

    def __getitem__(self, indices: Tensor) -> Tensor:
        """uint8 or float32 (len(indices), channels, height, width)."""
        pixels = torch.from_numpy(np.ascontiguousarray(self.array[indices.numpy()]))
        return pixels if pixels.dtype == torch.uint8 else pixels.to(torch.float32)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _as_nchw(name: str, images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(
            f"{name}: expected images (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, "
            f"got {images.shape}; reshape them"
        )
    if images.dtype != np.uint8 and not np.issubdtype(images.dtype, np.floating):
        raise InputError(
            f"{name}: expected images of type uint8, or floats in [0, 1], got {images.dtype}; convert them"
        )
    return images


def _labels(name: str, labels: np.ndarray) -> Tensor:
    require(
        labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
        f"{name}: expected integer labels (images,), got {labels.dtype} {labels.shape}; convert them",
    )
    return torch.from_numpy(labels.astype(np.int64))
