"""Shards: many encoded images in a few large files.

Images stay in their files until a batch needs them. Each is read by its place. So a run starts and continues anywhere
at once, and any number of processes sees the same order.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from heatsmooth.data.folder import EncodedPixels
from heatsmooth.data.images import Size
from heatsmooth.errors import InputError
from heatsmooth.runs import sha256

SPLIT = "{split}"
SPLITS = {"train": ("train", "training"), "test": ("test", "val", "validation", "valid")}
"""What ``{split}`` in a pattern stands for; the first that matches a file is used."""


class ShardPixels(EncodedPixels):
    """Images in chunks that are best read together: the shards of a WebDataset, the row groups of Parquet files."""

    chunks: tuple[int, ...]
    """Images per chunk."""
    mixed: int
    """Images among which the order of an epoch is random. Their chunks are read at about the same time."""

    def __init__(self, files: Sequence[Path], chunks: Sequence[int], size: Size, channels: int) -> None:
        super().__init__(sum(chunks), size, channels)
        self.files, self.chunks = files, tuple(chunks)
        self._ends = np.cumsum(chunks)

    def chunk_of(self, index: int) -> tuple[int, int]:
        """The chunk of an image, and its number in the chunk."""
        chunk = int(np.searchsorted(self._ends, index, side="right"))
        return chunk, index - int(self._ends[chunk] - self.chunks[chunk])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names and sizes of the shards, of their chunks, and of the size of the crop."""
        listing = "\n".join(f"{file.name} {file.stat().st_size}" for file in self.files)
        return sha256(f"{self.size} {self.channels} {self.chunks}\n{listing}".encode(errors="surrogateescape"))


def shard_files(name: str, pattern: str, split: str, suffix: str) -> list[Path]:
    """The shards that a pattern names, in the order of their names."""
    for word in SPLITS[split] if SPLIT in pattern else ("",):
        place = Path(pattern.replace(SPLIT, word)).expanduser()
        paths = place.glob(f"*{suffix}") if place.is_dir() else map(Path, _matching(str(place)))
        if files := sorted((path for path in paths if path.is_file()), key=lambda path: path.parts):
            return files
    raise InputError(f"{name}: expected a folder of {suffix} files, or their paths with * or {{000..127}}, got none")


def _matching(pattern: str) -> Iterator[str]:
    """The files that a pattern names."""
    for expanded in braces(pattern):
        yield from glob.glob(expanded) or ([expanded] if Path(expanded).exists() else [])  # noqa: PTH207


def braces(pattern: str) -> list[str]:
    """The patterns that one with braces stands for.

    >>> braces("a-{08..10}-{x,y}.tar")
    ['a-08-x.tar', 'a-08-y.tar', 'a-09-x.tar', 'a-09-y.tar', 'a-10-x.tar', 'a-10-y.tar']
    """
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(part) if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def _choices(inside: str) -> list[str]:
    """What may stand in place of braces with this inside."""
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if ends is None:
        return inside.split(",")
    low, high = ends.groups()
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
