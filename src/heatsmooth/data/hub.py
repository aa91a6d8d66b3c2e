"""Hugging Face ``datasets``: from the hub, a directory of ``save_to_disk``, or one of image or parquet files.

Images stay encoded, on disk or in the stream, until a batch needs them.
"""

import io
import os
import re
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
"""Encoded images of a stream among which the next one is selected at random."""
HASHED = 256
"""Most images that are hashed to tell two data sets apart."""


@dataclass(frozen=True, kw_only=True)
class HubTable:
    """One split of a data set of Hugging Face, with encoded images."""

    name: str
    """``hf:NAME``, or ``hf:NAME:SPLIT`` if the data set has splits."""
    rows: Any
    image: str
    """Column of the images."""
    label: str | None
    """Column of the labels, if any."""


def load_hub(name: str, split: Literal["train", "test"], size: Size | None, cache: Path | None = None) -> ImageSet:
    """The images of ``hf:NAME[:SPLIT[:LABELS]]``.

    Without SPLIT, "train" is used to train, and "test" or "validation" to test; a data set with one split needs no
    name. Without LABELS, the column "label" is used, or the only column of type ``ClassLabel``; there may be none. The
    name of the set ends in its split.

    ``size``: of the centre crop, in pixels; None for the ``usual_size`` of the first image.
    ``cache``: the directory of downloads.
    """
    table = _table(name, split, cache, stream=False)
    rows = table.rows
    try:
        labels = None if table.label is None else torch.tensor(rows[table.label][:], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: expected integer labels in {table.label!r}, got {first_line(error)}; name another column"
        ) from None
    if labels is not None and bool((labels < 0).all()):
        labels = None  # the hub marks test sets with secret labels like this
    names = None if labels is None else getattr(rows.features[table.label], "names", None)
    images = rows.select_columns([table.image])
    pixels = HubPixels(images, table.image, size or usual_size(encoded(rows[0][table.image])))
    return ImageSet.of(table.name, pixels, labels, class_names=tuple(names) if names else None)


class HubPixels(EncodedPixels):
    """Rows of a data set on disk, decoded on request."""

    def __init__(self, rows: Any, column: str, size: Size) -> None:
        super().__init__(len(rows), size, channels_of(encoded(rows[0][column])))
        self.rows, self.column = rows, column

    def sources(self, indices: Sequence[int]) -> list[Path | BinaryIO]:
        """Where the encoded images are."""
        return [encoded(cell) for cell in self.rows[list(indices)][self.column]]

    def name(self, index: int) -> str:
        """The row of an image, and its file if the data set records it."""
        path = self.rows[index][self.column]["path"]
        return f"row {index}" + (f" ({path})" if path else "")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the number of rows, of the crop, and of evenly spaced encoded images."""
        some = range(0, self.count, max(1, self.count // HASHED))
        content = [_bytes(source) for source in self.sources(some)]
        return sha256(f"{self.count} {self.size} {self.channels}".encode(), *content)


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Unlabelled images that are read one after another and never held all at once."""

    name: str
    rows: Any
    column: str
    count: int
    """Images per epoch."""
    size: Size
    channels: int

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return self.channels, *height_and_width(self.size)

    def epoch(self, number: int, seed: int) -> Iterator[Any]:
        """The encoded images of an epoch, in an order that depends only on the seed and the epoch."""
        order = self.rows.shuffle(seed=mixed_seed(seed, "order", number) % 2**31, buffer_size=BUFFER)
        for row in order.take(self.count):
            yield row[self.column]

    def pixels(self, cells: Sequence[Any]) -> Tensor:
        """Encoded images as uint8 (len(cells), channels, height, width)."""
        try:
            with ThreadPoolExecutor(os.cpu_count()) as readers:
                images = readers.map(lambda cell: decoded(encoded(cell), self.size, channels=self.channels), cells)
                return torch.from_numpy(np.stack(list(images)))
        except UNREADABLE as error:
            raise unreadable({self.name: error}) from None

    def images(self, count: int) -> Tensor:
        """The first ``count`` images in the order of the source, float32 in [0, 1]."""
        return self.pixels([row[self.column] for row in self.rows.take(count)]).to(torch.float32) / 255

    def describe(self) -> dict[str, object]:
        """What a run records about its data, as JSON. Only the first image is hashed."""
        first = _bytes(encoded(next(iter(self.rows))[self.column]))
        return {
            "name": self.name,
            "images": self.count,
            "shape": list(self.shape),
            "rule": f"stream, shuffled in a buffer of {BUFFER}",
            "fingerprint": sha256(f"{self.count}".encode(), first)[:16],
        }


def open_stream(name: str, size: Size | None, *, count: int | None = None, cache: Path | None = None) -> ImageStream:
    """The training images of ``hf:NAME[:SPLIT]`` as a stream.

    ``size``: of the centre crop, in pixels; None for the ``usual_size`` of the first image.
    ``count``: use the first ``count`` images of each shuffled epoch; None for all.
    ``cache``: the directory of downloads.
    """
    table = _table(name, "train", cache, stream=True)
    rows, image = table.rows.select_columns([table.image]), table.image
    known: int | None
    if hasattr(rows, "to_iterable_dataset"):  # it is on disk
        known, rows = len(rows), rows.to_iterable_dataset()
    else:
        known = getattr((rows.info.splits or {}).get(rows.split), "num_examples", None)
    length = min(count, known) if count and known else count or known
    if not length:
        raise InputError(
            f"{name}: expected a data set that states its number of images, got none; give it as `limit_train`"
        )
    first = next(iter(rows), None)
    if first is None:
        raise InputError(f"{name}: expected at least one image, got none; check the name")
    crop = size or usual_size(encoded(first[image]))
    return ImageStream(table.name, rows, image, int(length), crop, channels_of(encoded(first[image])))


def _table(name: str, split: str, cache: Path | None, *, stream: bool) -> HubTable:
    """The split of the data set ``hf:NAME[:SPLIT[:LABELS]]`` to train or test with."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name}: expected the package datasets, got none; pip install 'heatsmooth[hf]'") from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    place, named_split, named_label = _parts(name)
    try:
        if Path(place, "dataset_dict.json").is_file() or Path(place, "state.json").is_file():
            rows: Any = datasets.load_from_disk(place)
        else:
            directory = None if cache is None else str(cache)
            rows = datasets.load_dataset(place, streaming=stream, cache_dir=directory, trust_remote_code=False)
    except Exception as error:  # whatever the builder of the data set raises
        raise InputError(
            f"{name}: expected a directory or a data set on the hub, got {first_line(error)}; check the name"
        ) from None
    full_name = f"{PREFIX}{place}"
    if isinstance(rows, dict):
        part = _split_of(name, list(rows), split, named_split)
        full_name, rows = f"{full_name}:{part}", rows[part]
    features = rows.features or {}
    image = _image_column(name, features, datasets.Image)
    label = label_column(name, features, datasets.ClassLabel, named_label)
    rows = rows.cast_column(image, datasets.Image(decode=False))
    return HubTable(name=full_name, rows=rows, image=image, label=label)


def _parts(name: str) -> tuple[str, str, str]:
    """Place, split and labels of ``hf:NAME[:SPLIT[:LABELS]]``; a drive of Windows belongs to the place.

    >>> _parts("hf:food101:train"), _parts("hf:C:/food:train")
    (('food101', 'train', ''), ('C:/food', 'train', ''))
    """
    rest = name.removeprefix(PREFIX)
    drive = rest[:2] if re.match(r"[A-Za-z]:[\\/]", rest) else ""
    place, split, labels = [*rest[len(drive) :].split(":"), "", ""][:3]
    return drive + place, split, labels


def _split_of(name: str, splits: list[str], split: str, named: str) -> str:
    if named:
        require(named in splits, f"{name}: expected a split among {', '.join(splits)}, got {named!r}")
        return named
    if len(splits) == 1:
        return splits[0]
    usual = next((known for known in SPLITS[split] if known in splits), None)
    if usual is None:
        raise InputError(
            f"{name}: expected a split to {split} with, got {', '.join(splits)}; name it, as {name}:{splits[0]}"
        )
    return usual


def _image_column(name: str, features: Any, image_type: Any) -> str:
    columns = [key for key, kind in features.items() if isinstance(kind, image_type)]
    require(
        len(columns) == 1,
        f"{name}: expected one column of images, got {columns or list(features)}; keep one with remove_columns",
    )
    return str(columns[0])


def label_column(name: str, features: Any, label_type: Any, named: str) -> str | None:
    """The column of labels: ``named``, "label", or the only one of that type; None if there is none."""
    require(not named or named in features, f"{name}: expected labels in one of {list(features)}, got {named!r}")
    if named or "label" in features:
        return named or "label"
    columns = [str(key) for key, kind in features.items() if isinstance(kind, label_type)]
    require(len(columns) < 2, f"{name}: expected one column of labels, got {columns}; name it, as hf:NAME:SPLIT:LABELS")
    return columns[0] if columns else None


def encoded(cell: Any) -> Path | BinaryIO:
    """Where the encoded image of a cell is: its bytes, or a file that it names."""
    if isinstance(cell, bytes):
        return io.BytesIO(cell)
    return Path(cell["path"]) if cell["bytes"] is None else io.BytesIO(cell["bytes"])


def _bytes(source: Path | BinaryIO) -> bytes:
    return source.read_bytes() if isinstance(source, Path) else source.read()


def channels_of(source: Path | BinaryIO) -> Literal[1, 3]:
    """1 if the image is grey, else 3."""
    try:
        with opened(source) as image:
            return 1 if image.mode in ("1", "L", "I;16") else 3
    except UNREADABLE:
        return 3
    finally:
        if not isinstance(source, Path):
            source.seek(0)
