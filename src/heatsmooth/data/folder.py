"""A folder of images: one subfolder a class, or images without labels."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from heatsmooth.data.images import ImageSet
from heatsmooth.errors import InputError, require
from heatsmooth.runs import sha256

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
RESIZE_RATIO = 256 / 224
"""ImageNet evaluation: the shorter side becomes 256/224 of the crop."""


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded: no format whose reader starts another program."""


def read_image(
    source: Path | BinaryIO, size: int, *, channels: int = 3, name: str | None = None, most_pixels: float = math.inf
) -> np.ndarray:
    """One image file, or what is read from an open one, as uint8 (channels, size, size).

    As it is if it has that size; otherwise the shorter side becomes 8/7 of the size, and the centre is taken. ``name``
    is how errors call it. An image of more than ``most_pixels`` is refused before it is decoded.
    """
    name = name or str(source)
    try:
        with Image.open(source, formats=FORMATS) as file:
            require(
                file.width * file.height <= most_pixels,
                f"{name}: expected at most {most_pixels:,.0f} pixels, got {file.width}×{file.height}; make it smaller",
            )
            image = file.convert("L" if channels == 1 else "RGB")
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"{name}: expected a readable image ({', '.join(FORMATS)}), got another kind of file; repair or remove it"
        ) from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(
            f"{name}: expected a readable image, got {type(error).__name__}: {error}; repair or remove it"
        ) from None
    if image.size != (size, size):
        image = _resized_and_cropped(image, size)
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _resized_and_cropped(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    scale = size * RESIZE_RATIO / min(width, height)
    image = image.resize((max(size, round(width * scale)), max(size, round(height * scale))), Image.Resampling.BILINEAR)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


class FolderPixels:
    """Image files read, resized and cropped when asked for, several at a time."""

    def __init__(self, root: Path, files: Sequence[Path], size: int) -> None:
        self.root, self.files, self.size = root, files, size
        self._readers = ThreadPoolExecutor(os.cpu_count())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(images, 3, size, size)."""
        return len(self.files), 3, self.size, self.size

    def __getitem__(self, indices: Tensor) -> Tensor:
        """uint8 (len(indices), 3, size, size)."""
        images = self._readers.map(lambda i: read_image(self.files[i], self.size), indices.tolist())
        return torch.from_numpy(np.stack(list(images)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the files' names and sizes and of the crop."""
        listing = "\n".join(f"{file.relative_to(self.root)} {file.stat().st_size}" for file in self.files)
        return sha256(f"{self.size}\n{listing}".encode())


def load_folder(path: Path, size: int) -> ImageSet:
    """The images below ``path``: labelled by their subfolder, in sorted order; unlabelled if there is none."""
    require(path.is_dir(), f"imagefolder:{path}: expected a folder of images, got no such folder; check the path")
    require(size > 0, f"--image-size: expected a positive number of pixels, got {size}")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    require(
        bool(files),
        f"imagefolder:{path}: expected image files ({', '.join(sorted(SUFFIXES))}), got none; check the path",
    )
    folders = [file.relative_to(path).parts[0] if file.parent != path else "" for file in files]
    labels, names = None, None
    if all(folders):
        names = tuple(sorted(set(folders)))
        number = {name: i for i, name in enumerate(names)}
        labels = torch.tensor([number[folder] for folder in folders])
    return ImageSet.of(f"imagefolder:{path}", FolderPixels(path, files, size), labels, class_names=names)
