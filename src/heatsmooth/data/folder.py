"""A folder of images: one subfolder per class, or images without labels."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from heatsmooth.data.decoding import FORMATS, TooLargeError, decode, opened
from heatsmooth.data.images import ImageSet, Size, height_and_width
from heatsmooth.data.index import read_class_index
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress
from heatsmooth.runs import sha256

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
USUAL_SIZE = 224
"""Side of the centre crop, in pixels, if neither the user nor the network specifies one."""
SPLIT_NAMES = frozenset({"train", "training", "test", "val", "valid", "validation"})
"""Names of subfolders that are splits of a data set, not classes."""
LISTED = 10
"""Most files that an error lists."""
TOGETHER = 256
"""Images per batch in the search for broken ones."""
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning)
"""What Pillow raises for a file that is not an image, or is damaged or hostile."""


def unreadable(
    errors: Mapping[str, BaseException], remedy: str = "repair or remove it, or use `skip_broken`"
) -> InputError:
    """The error that lists these images, by name."""
    shown = ", ".join(list(errors)[:LISTED]) + (", …" if len(errors) > LISTED else "")
    first = next(iter(errors.values()))
    what = "a readable image" if len(errors) == 1 else f"{len(errors)} readable images"
    actual = f"{type(first).__name__}: {first}"
    if isinstance(first, UnidentifiedImageError):
        what, actual = f"{what} ({', '.join(FORMATS)})", "another kind of file"
    elif isinstance(first, TooLargeError):
        what, actual, remedy = f"{what} {first.limit}", str(first), remedy.replace("repair", "make it smaller")
    return InputError(f"{shown}: expected {what}, got {actual}; {remedy}")


def usual_size(source: Path | BinaryIO) -> int:
    """The default side of the centre crop: 224 pixels, or the shorter side of this image if that is less."""
    try:
        with opened(source) as file:
            return min(USUAL_SIZE, file.width, file.height)
    except UNREADABLE:
        return USUAL_SIZE


def read_image(source: Path | BinaryIO, size: Size, *, channels: int = 3, name: str | None = None) -> np.ndarray:
    """An image file as uint8 (channels, height, width), see ``decoded``; an ``InputError`` if it cannot be read.

    ``source``: a path, or an open binary file.
    ``size``: in pixels.
    ``channels``: 1 or 3.
    ``name``: how errors call the image; by default the source.
    """
    try:
        return decoded(source, size, channels=channels)
    except UNREADABLE as error:
        absent = isinstance(error, FileNotFoundError | IsADirectoryError)
        raise unreadable({name or str(source): error}, "check the path" if absent else "repair or remove it") from None


def decoded(source: Path | BinaryIO, size: Size, *, channels: int = 3) -> np.ndarray:
    """An encoded image as uint8 (channels, height, width); raises one of ``UNREADABLE`` if it cannot be read.

    An image of another size is scaled to cover 8/7 of ``size`` and cropped to its centre. An image that exceeds the
    bounds of ``decoding`` is refused before it is decoded. Of an animation, the first picture is used. Alpha and EXIF
    rotation are ignored, as in ImageNet's evaluation.
    """
    image = decode(source, "L" if channels == 1 else "RGB", height_and_width(size))
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


class EncodedPixels:
    """Encoded images that are read, resized and cropped on request, several in parallel."""

    def __init__(self, count: int, size: Size, channels: int = 3) -> None:
        require(min(height_and_width(size)) > 0, f"`image_size`: expected a positive number of pixels, got {size}")
        self.count, self.size, self.channels = count, size, channels
        self._readers = ThreadPoolExecutor(os.cpu_count())

    def sources(self, indices: Sequence[int]) -> list[Path | BinaryIO]:
        """Where the encoded images are."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """The name of an image in errors."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(images, channels, height, width)."""
        return self.count, self.channels, *height_and_width(self.size)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """uint8 (len(indices), channels, height, width); an error lists the images that cannot be read."""
        images = list(self._images_or_errors(indices))
        pairs = zip(indices.tolist(), images, strict=True)
        errors = {self.name(index): image for index, image in pairs if isinstance(image, BaseException)}
        if errors:
            raise unreadable(errors)
        return torch.from_numpy(np.stack([image for image in images if isinstance(image, np.ndarray)]))

    def _images_or_errors(self, indices: Tensor) -> Iterator[np.ndarray | BaseException]:
        def attempt(source: Path | BinaryIO) -> np.ndarray | BaseException:
            try:
                return decoded(source, self.size, channels=self.channels)
            except UNREADABLE as error:
                return error

        return self._readers.map(attempt, self.sources(indices.tolist()))

    def broken(self, indices: Tensor, progress: Progress) -> dict[int, str]:
        """The names, by index, of the images among these that cannot be read."""
        names: dict[int, str] = {}
        done = 0
        for some in indices.split(TOGETHER):
            for index, image in zip(some.tolist(), self._images_or_errors(some), strict=True):
                if isinstance(image, BaseException):
                    names[index] = self.name(index)
            done += len(some)
            progress("looking for broken images", done, len(indices), f"{len(names)} found")
        return names


class FolderPixels(EncodedPixels):
    """Image files in a folder and its subfolders."""

    def __init__(self, root: Path, files: Sequence[Path], size: Size) -> None:
        super().__init__(len(files), size)
        self.root, self.files = root, files

    def sources(self, indices: Sequence[int]) -> list[Path | BinaryIO]:
        """The files."""
        return [self.files[index] for index in indices]

    def name(self, index: int) -> str:
        """The path of the file."""
        return str(self.files[index])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names and sizes of the files, and of the size of the crop."""
        listing = "\n".join(f"{file.relative_to(self.root).as_posix()} {file.stat().st_size}" for file in self.files)
        return sha256(f"{self.size}\n{listing}".encode(errors="surrogateescape"))


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """All files below ``folder``, also through links to folders, except links back to a folder above them."""
    real = folder.resolve()
    if real in above:
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files_below(entry, above | {real})
        elif entry.is_file():
            yield entry


def load_folder(path: Path, size: Size | None, class_index: Path | None = None) -> ImageSet:
    """The images below ``path``, in sorted order, cropped to ``size`` or to the ``usual_size`` of the first.

    They are labelled by the class-index file if there is one, else by their subfolder. Images directly in ``path`` have
    no labels.
    """
    require(path.is_dir(), f"imagefolder:{path}: expected a folder of images, got no such folder; check the path")
    files = [file for file in _files_below(path) if file.suffix.lower() in SUFFIXES]
    files.sort(key=lambda file: file.parts)  # not by the rules of the system: Windows ignores case
    require(
        bool(files),
        f"imagefolder:{path}: expected image files ({', '.join(sorted(SUFFIXES))}), got none; check the path",
    )
    labels, names = (
        _subfolders(path, files) if class_index is None else read_class_index(class_index).label(files, path)
    )
    pixels = FolderPixels(path, files, size or usual_size(files[0]))
    return ImageSet.of(f"imagefolder:{path}", pixels, labels, class_names=names)


def _subfolders(path: Path, files: Sequence[Path]) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """The number of the subfolder of each file, and the names of the subfolders; None if a file is in none."""
    inner = [file.relative_to(path).parts for file in files]
    if min(map(len, inner)) == 1:
        return None, None
    names = tuple(sorted({parts[0] for parts in inner}))
    splits = set(names) <= SPLIT_NAMES and min(map(len, inner)) > 2
    require(
        not splits,
        f"imagefolder:{path}: expected one subfolder per class, got the splits {', '.join(names)} of a data set; "
        f"name one of them, as imagefolder:{path / names[0]}",
    )
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[parts[0]] for parts in inner]), names
