"""Which files a report is made of: run directories and logs below the sources a user names."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.identity import first_difference
from heatsmooth.report.values import number, one_line
from heatsmooth.results import COMPARISON_FILE
from heatsmooth.runs import read_json

LEVELS = ("", "*/", "*/*/")
"""A source is searched this deep."""


@dataclass(frozen=True)
class Note:
    """What a reader must know about an input: that it was ``skipped``, or only that it is odd; and why."""

    name: str
    reason: str
    skipped: bool = True


@dataclass(frozen=True)
class Place:
    """A run directory or a log, under the shortest name that no other input of the report has."""

    name: str
    path: Path


@dataclass(frozen=True)
class Found:
    """The inputs below the sources, each once."""

    runs: list[Place]
    logs: list[Place]
    timings: list[Place]
    comparisons: list[Place]
    notes: list[Note]


def find(sources: Iterable[Path]) -> Found:
    """Run directories, tab-separated logs, timings and comparisons among the sources and two levels below them.

    A log inside a run directory repeats its certificates: it is read only if it is named itself.
    """
    runs: dict[Path, None] = {}
    logs: dict[Path, None] = {}
    timings: dict[Path, None] = {}
    comparisons: dict[Path, None] = {}
    notes = []
    for source in sources:
        if source.is_file() and source.name == COMPARISON_FILE:
            comparisons[source.resolve()] = None
        elif source.is_file():
            logs[source.resolve()] = None
        elif source.is_dir():
            within = _below(source, "run*.json")
            directories = {file.parent.resolve(): None for file in within}
            beside = {log.resolve(): None for log in _below(source, "*.tsv") if log.parent.resolve() not in directories}
            measured = {file.resolve(): None for file in _below(source, "timing.json")}
            compared = {file.resolve(): None for file in _below(source, COMPARISON_FILE)}
            if not (directories or beside or measured or compared):
                notes.append(
                    Note(str(source), "expected run directories, a comparison or .tsv logs, got a directory with none")
                )
            runs, logs, timings = runs | directories, logs | beside, timings | measured
            comparisons |= compared
        else:
            notes.append(Note(str(source), "expected a run directory or a log, got nothing there; check the path"))
    names = short_names([*runs, *logs, *(path.parent for path in (*timings, *comparisons))])
    return Found(
        [Place(names[path], path) for path in runs],
        [Place(names[path], path) for path in logs],
        [Place(names[path.parent], path) for path in timings],
        [Place(names[path.parent], path) for path in comparisons],
        notes,
    )


def _below(directory: Path, pattern: str) -> list[Path]:
    try:
        found = [file for level in LEVELS for file in sorted(directory.glob(level + pattern))]
    except OSError:
        return []
    return [file for file in found if not any(part.startswith(".") for part in file.relative_to(directory).parts)]


def short_names(paths: Iterable[Path]) -> dict[Path, str]:
    """The shortest end of each path that no other one has; without .tsv.

    >>> list(short_names([Path("/a/x/s.tsv"), Path("/a/y/s.tsv"), Path("/b/t")]).values())
    ['x/s', 'y/s', 't']
    """
    unique = list(dict.fromkeys(paths))
    ends = {path: [*path.parts[:-1], path.name.removesuffix(".tsv")] for path in unique}
    names: dict[Path, str] = {}
    for path in unique:
        for length in range(1, len(ends[path]) + 1):
            end = ends[path][-length:]
            if sum(other[-length:] == end for other in ends.values()) == 1:
                break
        names[path] = one_line("/".join(end), 120) or "?"
    return names


@dataclass(frozen=True)
class Run:
    """What ``run*.json`` says of a run directory; several processes may each have written a part."""

    name: str
    path: Path
    command: str
    info: dict[str, Any]
    parts: int
    seconds: float | None
    done: bool


def read_run(place: Place) -> Run:
    """The facts of a run: those of its first part, the seconds of all, done when all are."""
    parts = [read_json(file) for file in sorted(place.path.glob("run*.json"))]
    info = parts[0]
    command = info.get("command")
    require(isinstance(command, str), f"{place.path}: expected a run with a command, got {command!r}; is it a run?")
    for part in parts[1:]:
        one, other = (each.get("settings") for each in (info, part))
        alike = not (isinstance(one, dict) and isinstance(other, dict)) or first_difference(one, other) is None
        require(alike, f"{place.path}: expected parts of one run, got parts with other settings; read them apart")
    spent = [number(part, "seconds") for part in parts]
    return Run(
        place.name,
        place.path,
        one_line(command, 40),
        info,
        len(parts),
        sum(s or 0.0 for s in spent) if any(s is not None for s in spent) else None,
        all(part.get("status") == "done" for part in parts),
    )


def reason(error: Exception, path: Path) -> str:
    """Why an input could not be read, on one line, without its path: the report names it already."""
    if isinstance(error, InputError):
        line = first_line(error)
        return one_line(line.removeprefix(str(path)).removeprefix("/").removeprefix(": "))
    return one_line(f"expected the records of a run, got {type(error).__name__}: {first_line(error)}")
