"""The finished parts of an audit, on disk: an audit that is interrupted and repeated continues after them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from heatsmooth.runs import Records, read_records

PARTS_FILE = "audit.jsonl"
"""In a run directory: what the audit found, part by part."""


class Parts:
    """Results of parts of the work, as JSON, by what was done and to which images.

    ``file``: where they are recorded, and read from if it exists; None: only in memory.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._known = {} if file is None else {_key(one["what"], one["images"]): one for one in read_records(file)}
        self._records = None if file is None else Records(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._records is not None:
            self._records.__exit__()

    def of(self, what: str) -> list[Any]:
        """The results of what was done so far."""
        return [part["result"] for part in self._known.values() if part["what"] == what]

    def add(self, what: str, images: list[int], result: Any) -> None:
        """Record a result. ``images``: their positions."""
        part = {"what": what, "images": images, "result": result}
        self._known[_key(what, images)] = part
        if self._records is not None:
            self._records.append(part)

    def get(self, what: str, positions: Tensor, work: Callable[[Tensor], Any]) -> Any:
        """The result of ``work`` on these images, which is done only if it is not known."""
        images = positions.tolist()
        if _key(what, images) not in self._known:
            self.add(what, images, work(positions))
        return self._known[_key(what, images)]["result"]


def _key(what: str, images: list[int]) -> tuple[object, ...]:
    return (what, *images)


def listed(values: Tensor) -> list[float | None]:
    """Numbers as JSON, which has no infinity: None instead."""
    return [value if math.isfinite(value) else None for value in values.double().flatten().tolist()]


def unlisted(values: list[float | None]) -> list[float]:
    """The numbers that ``listed`` wrote."""
    return [math.inf if value is None else value for value in values]
