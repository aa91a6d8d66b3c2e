"""Images in numpy files: ``.npz`` is read whole, ``.npy`` is memory-mapped."""

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
    """The arrays ``images`` and, if present, ``labels``; or those of the split, such as ``train_images``.

    Where the file has splits, the name of the set ends in the split.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            prefix = f"{split}_" if f"{split}_images" in arrays else ""
            images = arrays.get(f"{prefix}images")
            labels = arrays.get(f"{prefix}labels")
            names = sorted(arrays)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise _unreadable(name, "a numpy .npz file", error) from None
    require(images is not None, f"{name}: expected an array 'images' (or '{split}_images'), got {names}; rename it")
    assert images is not None
    pixels = _tensor(_as_nchw(name, images))
    name = f"{name}/{split}" if prefix else name
    return ImageSet.of(name, pixels, None if labels is None else _labels(name, labels), class_names=class_names)


def load_npy(name: str, files: str) -> ImageSet:
    """The images of ``files``, which is IMAGES or IMAGES,LABELS: the paths of one or two .npy files."""
    images, _, labels = files.partition(",")
    path = Path(images).expanduser()
    pixels = ArrayPixels(path, _as_nchw(name, _mapped(name, path)))
    return ImageSet.of(name, pixels, _labels(name, _mapped(name, Path(labels).expanduser())) if labels else None)


def _mapped(name: str, path: Path) -> np.ndarray:
    """The array in a .npy file, memory-mapped."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(name, "numpy .npy files", error) from None
    require(isinstance(array, np.ndarray), f"{name}: expected a .npy file, got a .npz file; use npz:{path}")
    mapped: np.ndarray = array
    return mapped


class ArrayPixels:
    """An array on disk; only the requested images are read."""

    def __init__(self, path: Path, images: np.ndarray) -> None:
        self.path, self.array = path, images

    @property
    def shape(self) -> tuple[int, ...]:
        """(images, channels, height, width)."""
        return self.array.shape

    def __getitem__(self, indices: Tensor) -> Tensor:
        """uint8 or float32 (len(indices), channels, height, width)."""
        return _tensor(self.array[indices.numpy()])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _unreadable(name: str, expected: str, error: Exception) -> InputError:
    return InputError(f"{name}: expected {expected}, got {type(error).__name__}: {error}; check the path")


def _tensor(images: np.ndarray) -> Tensor:
    """uint8 as it is, other types as float32."""
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    return pixels if pixels.dtype == torch.uint8 else pixels.to(torch.float32)


def _as_nchw(name: str, images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    require(
        images.ndim == 4 and images.shape[1] in (1, 3),
        f"{name}: expected images (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, "
        f"got {images.shape}; reshape them",
    )
    require(
        images.dtype == np.uint8 or np.issubdtype(images.dtype, np.floating),
        f"{name}: expected images of type uint8, or floats in [0, 1], got {images.dtype}; convert them",
    )
    return images


def _labels(name: str, labels: np.ndarray) -> Tensor:
    require(
        labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
        f"{name}: expected integer labels (images,), got {labels.dtype} {labels.shape}; convert them",
    )
    return torch.from_numpy(labels.astype(np.int64))
