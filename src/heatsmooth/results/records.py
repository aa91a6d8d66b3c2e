"""Records of a run directory: one JSON line per image, of every shard and process, checked when they are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from heatsmooth.errors import require
from heatsmooth.results.schema import from_json
from heatsmooth.runs import read_records

Record = TypeVar("Record")


def read_each(directory: Path, pattern: str, what: str, kind: type[Record]) -> list[Record]:
    """The records in the files ``pattern`` of ``directory``, each image once, ordered by index.

    An incomplete record, and two different records of one image, raise an ``InputError``, which says ``what`` was
    expected.
    """
    records: dict[int, Any] = {}
    for file in sorted(directory.glob(pattern)):
        for number, line in enumerate(read_records(file), start=1):
            where = f"{file}:{number}: expected {what}"
            record: Any = from_json(kind, line, where, "remove the line")
            known = records.setdefault(record.index, record)
            require(
                known is record or _timeless(known) == _timeless(record),
                f"{where}, got a second, different one for image {record.index}; remove one",
            )
    return [records[index] for index in sorted(records)]


def _timeless(record: Any) -> Any:
    """The record without the time it took."""
    return replace(record, seconds=0.0) if hasattr(record, "seconds") else record
