"""Class-index files: the class of an image, or of a folder of images."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heatsmooth.errors import InputError, require

FORMS = (
    '.json ({"name": 3}, {"3": ["name", …]} or ["name", …]), .csv (name,class) or .txt (name class, or names in order)'
)


@dataclass(frozen=True)
class ClassIndex:
    """Class numbers by the name of a folder or of an image."""

    path: Path
    numbers: dict[str, int]

    def label(self, files: Sequence[Path], root: Path) -> tuple[Tensor, tuple[str, ...] | None]:
        """The class of each file (files,), and the names of the classes if they are names of folders.

        A file is looked up by its path below ``root``, its name, and its name without suffix. Then come the names of
        its folders, the innermost first.
        """
        inner = [file.relative_to(root) for file in files]
        keys = [self._key(file) for file in inner]
        missing = [str(file) for file, key in zip(inner, keys, strict=True) if key is None]
        require(
            not missing,
            f"`class_index` {self.path}: expected every image or its folder, got {len(missing)} not in it "
            f"(first: {(missing or [''])[0]}); add them, or use another file",
        )
        labels = torch.tensor([self.numbers[str(key)] for key in keys])
        by_folder = not any(key in _own_names(file) for file, key in zip(inner, keys, strict=True))
        return labels, self._names() if by_folder else None

    def _key(self, file: Path) -> str | None:
        return next((key for key in [*_own_names(file), *file.parts[-2::-1]] if key in self.numbers), None)

    def _names(self) -> tuple[str, ...] | None:
        """One name per class, if the classes are numbered without gaps and each has one name."""
        names = {number: name for name, number in self.numbers.items()}
        complete = sorted(names) == list(range(len(self.numbers)))
        return tuple(names[i] for i in range(len(names))) if complete else None


def _own_names(file: Path) -> tuple[str, str, str]:
    return file.as_posix(), file.name, file.stem


def read_class_index(path: Path) -> ClassIndex:
    """The class index of a file in one of the ``FORMS``.

    The class may be a name instead of a number, as in ImageNet's ``LOC_val_solution.csv``. Then the first word counts,
    and the classes are numbered in the sorted order of their names, as folders are.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            numbers = _from_json(json.loads(text))
        elif path.suffix == ".csv":
            numbers = _from_pairs([row[:2] for row in csv.reader(text.splitlines()) if row])
        else:
            numbers = _from_lines([line.split() for line in text.splitlines() if line.strip()])
        if not numbers:
            raise ValueError("no entries")
    except (OSError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(
            f"`class_index` {path}: expected {FORMS}, got {type(error).__name__}: {error}; repair the file"
        ) from None
    least = min(numbers.values())
    require(least >= 0, f"`class_index` {path}: expected classes from 0, got {least}; number the classes from 0")
    return ClassIndex(path, numbers)


def _from_json(content: Any) -> dict[str, int]:
    if isinstance(content, list):
        return {str(name): i for i, name in enumerate(content)}
    if all(isinstance(value, list) for value in content.values()):
        return {str(value[0]): int(key) for key, value in content.items()}
    return {str(key): int(value) for key, value in content.items()}


def _from_pairs(rows: list[list[str]]) -> dict[str, int]:
    numbered = [row for row in rows if row[1].strip().isdecimal()]
    if numbered and len(numbered) >= len(rows) - 1:
        return {name.strip(): int(number) for name, number in numbered}
    header = rows[0][1].split()[0] not in {row[1].split()[0] for row in rows[1:]}
    classes = {name.strip(): value.split()[0] for name, value in rows[header:]}
    order = {name: i for i, name in enumerate(sorted(set(classes.values())))}
    return {name: order[value] for name, value in classes.items()}


def _from_lines(rows: list[list[str]]) -> dict[str, int]:
    if all(len(row) == 2 and row[1].isdecimal() for row in rows):
        return {name: int(number) for name, number in rows}
    return {row[0]: i for i, row in enumerate(rows)}
