"""Hugging Face ``datasets``: from the hub, a directory of ``save_to_disk``, or one of image or parquet files.

Images stay encoded, on disk or in the stream, until a batch of them is asked for.
"""

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from heatsmooth.data.decoding import opened
from heatsmooth.data.folder import UNREADABLE, EncodedPixels, decoded, unreadable, usual_size
from heatsmooth.data.images import ImageSet, Size, height_and_width
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.noise import mixed_seed
from heatsmooth.runs import sha256

PREFIX = "hf:"
SPLITS = {"train": ("train",), "test": ("test", "validation", "valid", "val")}
BUFFER = 1_000
"""Encoded images of a stream among which the next one is drawn."""
SAMPLED = 256
"""At most so many images are hashed to tell two data sets apart."""


def load_hub(name: str, split: Literal["train", "test"], size: Size | None, cache: Path | None = None) -> ImageSet:
    """The images of ``hf:NAME[:SPLIT[:LABELS]]``.

    Without SPLIT: "train" to train on, "test" or "validation" to test on, or the only one there is. Without LABELS: the
    column "label" or the only one of type ``ClassLabel``; none is fine. The set is named for the split it is.
    """
    named, rows, image, labels = _opened(name, split, cache, stream=False)
    try:
        column = None if labels is None else torch.tensor(rows[labels][:], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: expected integer labels in {labels!r}, got {first_line(error)}; name another"
        ) from None
    if column is not None and bool((column < 0).all()):
        column = None  # how the hub marks a test set whose labels are kept secret
    names = getattr(rows.features[labels], "names", None) if labels else None
    pixels = HubPixels(rows.select_columns([image]), image, size or usual_size(_encoded(rows[0][image])))
    return ImageSet.of(named, pixels, column, class_names=tuple(names) if names and column is not None else None)


class HubPixels(EncodedPixels):
    """Rows of a data set on disk, decoded when asked for."""

    def __init__(self, rows: Any, column: str, size: Size) -> None:
        super().__init__(len(rows), size, _channels(rows[0][column]))
        self.rows, self.column = rows, column

    def sources(self, indices: Sequence[int]) -> list[Path | BinaryIO]:
        """Where the encoded images are."""
        return [_encoded(cell) for cell in self.rows[list(indices)][self.column]]

    def name(self, index: int) -> str:
        """The file an image comes from, if the data set says so, and its row."""
        path = self.rows[index][self.column]["path"]
        return f"row {index}" + (f" ({path})" if path else "")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the number of rows, of the crop, and of an even sample of the encoded images."""
        some = range(0, self.count, max(1, self.count // SAMPLED))
        content = [source.read_bytes() if isinstance(source, Path) else source.read() for source in self.sources(some)]
        return sha256(f"{self.count} {self.size} {self.channels}".encode(), *content)


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Unlabelled images that are read one after another and never held all at once."""

    name: str
    rows: Any
    column: str
    count: int
    """Images an epoch."""
    size: Size
    channels: int

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return self.channels, *height_and_width(self.size)

    def epoch(self, number: int, seed: int) -> Iterator[Any]:
        """The encoded images of an epoch, in an order that depends on the seed and the epoch alone."""
        order = self.rows.shuffle(seed=mixed_seed(seed, "order", number) % 2**31, buffer_size=BUFFER)
        for row in order.take(self.count):
            yield row[self.column]

    def pixels(self, cells: Sequence[Any]) -> Tensor:
        """Encoded images as uint8 (len(cells), channels, height, width)."""
        try:
            with ThreadPoolExecutor(os.cpu_count()) as readers:
                images = readers.map(lambda cell: decoded(_encoded(cell), self.size, channels=self.channels), cells)
                return torch.from_numpy(np.stack(list(images)))
        except UNREADABLE as error:
            raise unreadable({self.name: error}) from None

    def images(self, count: int) -> Tensor:
        """The first ``count`` images as they come, float32 in [0, 1]."""
        return self.pixels([row[self.column] for row in self.rows.take(count)]).to(torch.float32) / 255

    def describe(self) -> dict[str, Any]:
        """What a run records about its data; the images themselves are not hashed, but the first of them."""
        first = _encoded(next(iter(self.rows))[self.column])
        content = first.read_bytes() if isinstance(first, Path) else first.read()
        return {
            "name": self.name,
            "images": self.count,
            "shape": list(self.shape),
            "rule": f"stream, shuffled in a buffer of {BUFFER}",
            "fingerprint": sha256(f"{self.count}".encode(), content)[:16],
        }


def open_stream(name: str, size: Size | None, *, count: int | None = None, cache: Path | None = None) -> ImageStream:
    """The training images of ``hf:NAME[:SPLIT]`` as a stream, the first ``count`` of each shuffled epoch."""
    named, rows, image, _ = _opened(name, "train", cache, stream=True)
    rows = rows.select_columns([image])
    on_disk = hasattr(rows, "to_iterable_dataset")
    said = getattr((rows.info.splits or {}).get(rows.split), "num_examples", None)
    known, rows = (len(rows), rows.to_iterable_dataset()) if on_disk else (said, rows)
    length = min(count, known) if count and known else count or known
    if not length:
        raise InputError(f"{name}: expected to know how many images an epoch has, got no word of it; say --limit-train")
    first = next(iter(rows), None)
    if first is None:
        raise InputError(f"{name}: expected at least one image, got none; check the name")
    side = size or usual_size(_encoded(first[image]))
    return ImageStream(named, rows, image, int(length), side, _channels(first[image]))


def _opened(name: str, split: str, cache: Path | None, *, stream: bool) -> tuple[str, Any, str, str | None]:
    """``hf:NAME:SPLIT``; the rows, with encoded images; the column of the images; that of the labels, if any."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name}: expected the package datasets, got none; pip install 'heatsmooth[hf]'") from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    place, wanted, labels = [*name.removeprefix(PREFIX).split(":"), "", ""][:3]
    try:
        if Path(place, "dataset_dict.json").is_file() or Path(place, "state.json").is_file():
            found: Any = datasets.load_from_disk(place)
        else:
            directory = None if cache is None else str(cache)
            found = datasets.load_dataset(place, streaming=stream, cache_dir=directory, trust_remote_code=False)
    except Exception as error:  # whatever the builder of the data set raises
        raise InputError(
            f"{name}: expected a directory or a data set on the hub, got {first_line(error)}; check the name"
        ) from None
    named = f"{PREFIX}{place}"
    if isinstance(found, dict):
        part = _split_of(name, list(found), split, wanted)
        named, found = f"{named}:{part}", found[part]
    image, chosen = _columns(name, found.features or {}, datasets, labels)
    return named, found.cast_column(image, datasets.Image(decode=False)), image, chosen


def _split_of(name: str, splits: list[str], split: str, wanted: str) -> str:
    if wanted:
        require(wanted in splits, f"{name}: expected a split among {', '.join(splits)}, got {wanted!r}")
        return wanted
    if len(splits) == 1:
        return splits[0]
    usual = next((known for known in SPLITS[split] if known in splits), None)
    require(
        usual is not None,
        f"{name}: expected a split to {split} with, got {', '.join(splits)}; name it, as {name}:{splits[0]}",
    )
    return str(usual)


def _columns(name: str, features: Any, datasets: Any, wanted: str) -> tuple[str, str | None]:
    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    require(
        len(images) == 1,
        f"{name}: expected one column of images, got {images or list(features)}; keep one with remove_columns",
    )
    require(not wanted or wanted in features, f"{name}: expected labels in one of {list(features)}, got {wanted!r}")
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if wanted or "label" in features:
        return images[0], wanted or "label"
    require(len(labels) < 2, f"{name}: expected one column of labels, got {labels}; name it, as hf:NAME:SPLIT:LABELS")
    return images[0], labels[0] if labels else None


def _encoded(cell: Any) -> Path | BinaryIO:
    return Path(cell["path"]) if cell["bytes"] is None else io.BytesIO(cell["bytes"])


def _channels(cell: Any) -> Literal[1, 3]:
    """1 where the first image is grey, else 3."""
    try:
        with opened(_encoded(cell)) as image:
            return 1 if image.mode in ("1", "L", "I;16") else 3
    except UNREADABLE:
        return 3
