"""What every command is, and how its result is shown."""

import json
from dataclasses import dataclass
from typing import Any

from heatsmooth.progress import Progress, silent
from heatsmooth.results.guarantees import Subject

ACCURACIES = ("certified_accuracy", "claimed_accuracy")
"""Fields of results that are shares by radius."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """The fields are the options. The docstring is the help, and ends in a line ``Example: …``."""

    def run(self, progress: Progress = silent) -> Any:
        """Do the work; the result, or None in a process that follows another."""
        raise NotImplementedError

    def show(self, result: Any) -> None:
        """Print the result for people: one line per field, and shares by radius as tables."""
        fields = facts(result)
        tables = {name: fields.pop(name) for name in ACCURACIES if name in fields}
        show_fields(fields)
        for name, shares in tables.items():
            rows = [{"radius ≥": at, name.replace("_", " "): f"{share:.1%}"} for at, share in shares.items()]
            show_table(rows)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What commands that write one record per image say about all of them."""

    command: str
    out: str
    """The run directory."""
    images: int
    subject: Subject
    """The model that the radii or distances are about."""
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""


def facts(result: Any) -> dict[str, Any]:
    """A result as JSON: its fields by name, without those that do not apply."""
    from heatsmooth.results.schema import to_json

    return to_json(result)


def show_json(result: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(facts(result)))


def show_fields(fields: dict[str, Any]) -> None:
    """Print one line per field: its name, and its value with four decimals; radii rounded down."""
    for name, value in fields.items():
        print(f"{name.replace('_', ' '):<40} {_text(name, value)}")


def _text(name: str, value: Any) -> str:
    from heatsmooth.statistics.radii import round_down

    if not isinstance(value, float):
        return str(value)
    is_rounded = abs(value - round(value, 4)) < 1e-9
    return f"{round_down(value, 4) if 'radius' in name and not is_rounded else value:.4f}"


def show_table(rows: list[dict[str, str]], title: str = "") -> None:
    """Print rows with the same keys as a table; nothing without rows."""
    from heatsmooth.table import Column, Table

    if not rows:
        return
    columns = tuple(Column(name) for name in rows[0])
    print(Table(title, columns, tuple(tuple(row.values()) for row in rows)).text(), end="")
