"""Parquet files with a column of encoded images and perhaps one of labels, as ``datasets`` writes them."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatsmooth.data.folder import usual_size
from heatsmooth.data.hub import channels_of, label_column
from heatsmooth.data.images import ImageSet, Size
from heatsmooth.data.shards import ShardPixels, shard_files
from heatsmooth.errors import InputError, require

CACHED = 2**30
"""Bytes of row groups that are held in memory; the order is random among images of half as many."""
LARGEST_GROUP = CACHED // 2
"""Bytes."""


class ParquetPixels(ShardPixels):
    """Images in Parquet files. Row groups are read whole, and the last ones that were read are held in memory."""

    def __init__(self, groups: "Sequence[_RowGroup]", column: str, size: Size, channels: int) -> None:
        super().__init__(list(dict.fromkeys(group.file for group in groups)), [g.rows for g in groups], size, channels)
        self.groups, self.column = groups, column
        mean = max(1, sum(group.size for group in groups) // self.count)
        self.mixed = max(1, LARGEST_GROUP // mean)
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def sources(self, indices: Sequence[int]) -> list[Path | BinaryIO]:
        """The encoded images."""
        rows = [self.chunk_of(index) for index in indices]
        columns = {chunk: self._column(chunk) for chunk in sorted({chunk for chunk, _ in rows})}
        cells = (columns[chunk][row].as_py() for chunk, row in rows)
        return [_stored(cell, self.name(index)) for index, cell in zip(indices, cells, strict=True)]

    def _column(self, chunk: int) -> Any:
        """The images of a row group, encoded."""
        with self._lock:
            if chunk not in self._held:
                self._held[chunk] = self.groups[chunk].read(self.column)
            self._held.move_to_end(chunk)
            while len(self._held) > 1 and sum(self.groups[held].size for held in self._held) > CACHED:
                self._held.popitem(last=False)
            return self._held[chunk]

    def name(self, index: int) -> str:
        """The file and the row of an image."""
        chunk, row = self.chunk_of(index)
        return f"{self.groups[chunk].file}, row {self.groups[chunk].first + row}"


class _RowGroup(NamedTuple):
    """A row group of a Parquet file."""

    file: Path
    metadata: Any
    number: int
    first: int
    """Its first row in the file."""
    rows: int
    size: int
    """Bytes of its images, or more."""

    def read(self, column: str) -> Any:
        """A column, as an array of pyarrow."""
        from pyarrow import chunked_array, parquet

        parts, size = [], 0
        with parquet.ParquetFile(self.file, metadata=self.metadata, memory_map=True) as file:
            for batch in file.iter_batches(64, row_groups=[self.number], columns=[column], use_threads=False):
                parts.append(batch[column])
                size += batch.nbytes  # a value that is stored once may stand in many rows
                _check_size(self.file, size)
        return chunked_array(parts)


def load_parquet(name: str, pattern: str, split: Literal["train", "test"], size: Size | None) -> ImageSet:
    """The images of Parquet files: a column of encoded images, and perhaps one of labels, as ``datasets`` writes them.

    ``pattern``: a folder of Parquet files, or their paths with ``*``, ``{000..127}`` and ``{split}``.
    ``size``: of the centre crop, in pixels; None for the ``usual_size`` of the first image.
    """
    try:
        import datasets
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(f"{name}: expected the package datasets, got none; pip install 'heatsmooth[hf]'") from None
    files = shard_files(name, pattern, split, ".parquet")
    try:
        schema = parquet.read_schema(files[0])
        features = datasets.Features.from_arrow_schema(schema)
        image = _image_column(name, features, datasets.Image)
        label = label_column(name, features, datasets.ClassLabel, "")
        groups = [group for file in files for group in _row_groups(file, image)]
        numbers = None if label is None else _labels(files, label, parquet.read_table)
    except InputError:
        raise
    except (OSError, ArrowException, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{name}: expected Parquet files, got {error}; check the path") from None
    groups = _usable(groups, name)
    cell, first = groups[0].read(image)[0].as_py(), f"{groups[0].file}, row 0"
    pixels = ParquetPixels(groups, image, size or usual_size(_stored(cell, first)), channels_of(_stored(cell, first)))
    names = None if label is None else getattr(features[label], "names", None)
    return ImageSet.of(name, pixels, numbers, class_names=tuple(names) if names else None)


def _usable(groups: Sequence[_RowGroup], name: str) -> list[_RowGroup]:
    """The row groups that have rows, of which none is too large to read at once."""
    filled = [group for group in groups if group.rows]
    require(bool(filled), f"{name}: expected at least one image, got none; check the path")
    largest = max(filled, key=lambda group: group.size)
    _check_size(largest.file, largest.size)
    return filled


def _check_size(file: Path, size: int) -> None:
    require(
        size <= LARGEST_GROUP,
        f"{file}: expected row groups of at most {LARGEST_GROUP >> 20} MB, got {size >> 20} MB or more; "
        "write the file again with a smaller row_group_size",
    )


def _stored(cell: Any, where: str) -> Path | BinaryIO:
    """Where the encoded image of a cell is: its bytes, or an ordinary file that it names, as ``datasets`` writes it."""
    content, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
    if isinstance(content, bytes):
        return io.BytesIO(content)
    if isinstance(path, str) and Path(path).is_file():
        return Path(path)
    raise InputError(f"{where}: expected an image or the path of one, got {path!r}; write the file with the images")


def _labels(files: Sequence[Path], column: str, read: Callable[..., Any]) -> Tensor:
    """The labels of all rows, int64."""
    try:
        return torch.from_numpy(
            np.concatenate([read(file, columns=[column])[column].to_numpy() for file in files]).astype(np.int64)
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{files[0]}: expected whole numbers in {column!r}, got {error}; rename the column") from None


def _row_groups(file: Path, column: str) -> Iterator[_RowGroup]:
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        parts = [group.column(i) for i in range(group.num_columns)]
        size = sum(p.total_uncompressed_size for p in parts if p.path_in_schema.partition(".")[0] == column)
        yield _RowGroup(file, metadata, number, first, group.num_rows, size)
        first += group.num_rows


def _image_column(name: str, features: Any, image_type: Any) -> str:
    """The column of images: of that type, else with encoded bytes."""
    columns = [key for key, kind in features.items() if isinstance(kind, image_type)]
    columns = columns or [key for key, kind in features.items() if _holds_bytes(kind)]
    require(len(columns) == 1, f"{name}: expected one column of images, got {columns or list(features)}; keep one")
    return str(columns[0])


def _holds_bytes(kind: Any) -> bool:
    return getattr(kind, "dtype", "") in ("binary", "large_binary") or (isinstance(kind, dict) and "bytes" in kind)
