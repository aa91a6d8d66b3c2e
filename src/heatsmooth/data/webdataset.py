"""WebDataset: tar files with an image and perhaps a label per sample."""

import io
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch

from heatsmooth.data.decoding import MOST_MEMORY
from heatsmooth.data.folder import SUFFIXES, usual_size
from heatsmooth.data.hub import channels_of
from heatsmooth.data.images import ImageSet, Size
from heatsmooth.data.shards import ShardPixels, shard_files
from heatsmooth.errors import InputError, require

SCANNERS = 8
"""Shards whose tables of contents are read at the same time."""
MIXED = 20_000
"""Images among which the order is random."""


class Place(NamedTuple):
    """Where an image is inside its shard, in bytes."""

    start: int
    length: int


class TarPixels(ShardPixels):
    """Images in tar files, each at a known place."""

    mixed = MIXED

    def __init__(
        self, files: Sequence[Path], chunks: Sequence[int], places: np.ndarray, size: Size, channels: int
    ) -> None:
        super().__init__(files, chunks, size, channels)
        self.places = places

    def sources(self, indices: Sequence[int]) -> list[Path | BinaryIO]:
        """The encoded images; each file is opened once, and read from its beginning to its end."""
        content: dict[int, bytes] = {}
        wanted = sorted((self.chunk_of(index)[0], int(self.places[index][0]), index) for index in set(indices))
        open_chunk, file = -1, None
        try:
            for chunk, start, index in wanted:
                if chunk != open_chunk or file is None:
                    if file is not None:
                        file.close()
                    open_chunk, file = chunk, self.files[chunk].open("rb")
                file.seek(start)
                content[index] = file.read(int(self.places[index][1]))
        finally:
            if file is not None:
                file.close()
        return [io.BytesIO(content[index]) for index in indices]

    def name(self, index: int) -> str:
        """The shard, and the number of the image in it."""
        chunk, number = self.chunk_of(index)
        return f"{self.files[chunk]}, image {number}"


def load_webdataset(name: str, pattern: str, split: Literal["train", "test"], size: Size | None) -> ImageSet:
    """The images of WebDataset shards: uncompressed tar files with an image and perhaps a ``.cls`` file per sample.

    ``pattern``: a folder of tar files, or their paths with ``*``, ``{000..127}`` and ``{split}``.
    ``size``: of the centre crop, in pixels; None for the ``usual_size`` of the first image.
    """
    files = shard_files(name, pattern, split, ".tar")
    with ThreadPoolExecutor(SCANNERS) as scanners:
        scanned = list(scanners.map(_scanned, files))
    chunks = [len(shard.places) for shard in scanned]
    places = [place for shard in scanned for place in shard.places]
    require(bool(places), f"{name}: expected images ({', '.join(sorted(SUFFIXES))}) in the tar files, got none")
    labels = [label for shard in scanned for label in shard.labels]
    unlabelled = labels.count(None)
    require(
        unlabelled in (0, len(labels)),
        f"{name}: expected a .cls file beside every image or beside none, got {unlabelled} images without; add them",
    )
    table = np.array(places)
    (first,) = TarPixels(files, chunks, table, 1, 3).sources([0])
    channels = channels_of(first)
    pixels = TarPixels(files, chunks, table, size or usual_size(first), channels)
    return ImageSet.of(name, pixels, None if unlabelled else torch.tensor(labels))


class _Shard(NamedTuple):
    """The table of contents of a tar file."""

    places: list[Place]
    labels: list[int | None]


def _scanned(file: Path) -> _Shard:
    """Where the images of a tar file are, and their labels. Files of one sample have the same name up to the dot."""
    places: list[Place] = []
    labels: list[int | None] = []
    sample, label, image = "", None, None
    try:
        with tarfile.open(file, "r:") as tar:
            for key, ending, member in _members(tar):
                if key != sample:
                    _add(places, labels, image, label)
                    sample, label, image = key, None, None
                if ending in SUFFIXES and image is None:
                    image = Place(member.offset_data, member.size)
                elif ending == ".cls" and (content := tar.extractfile(member)) is not None:
                    label = int(content.read(10))
        _add(places, labels, image, label)
    except InputError:
        raise
    except (OSError, tarfile.TarError, ValueError, RecursionError) as error:
        raise InputError(
            f"{file}: expected an uncompressed tar file, with a whole number in each .cls file, got {error}; repair it"
        ) from None
    largest = max((place.length for place in places), default=0)
    require(largest <= MOST_MEMORY, f"{file}: expected images of at most {MOST_MEMORY} bytes, got one of {largest}")
    return _Shard(places, labels)


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """The sample, the ending and the place of each file."""
    for member in tar:
        require(member.size >= 0, f"{tar.name!s}: expected sizes of files, got {member.size} for one; repair it")
        if member.isreg() and not member.issparse():
            path = PurePosixPath(member.name)
            stem, _, _ = path.name.partition(".")
            yield str(path.parent / stem), path.suffix.lower(), member


def _add(places: list[Place], labels: list[int | None], image: Place | None, label: int | None) -> None:
    if image is not None:
        places.append(image)
        labels.append(label)
