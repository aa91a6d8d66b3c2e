"""What a record must be to be believed: its fields, their types and ranges, and that they agree with each other.

No torch: reports need only this.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heatsmooth.errors import InputError, require
from heatsmooth.runs import read_records

Check = Callable[[Any], bool]
COMPARISON_FILE = "comparison.json"
"""What ``compare`` writes beside its runs."""
LARGEST = 2**53
"""Whole numbers up to here are exact wherever JSON is read."""


def whole(value: Any) -> bool:
    """A whole number, 0 or more."""
    return type(value) is int and 0 <= value <= LARGEST


def real(value: Any) -> bool:
    """A finite number, 0 or more."""
    return type(value) in (int, float) and 0 <= value <= LARGEST


def truth(value: Any) -> bool:
    """True or false."""
    return type(value) is bool


def word(value: Any) -> bool:
    """Text."""
    return type(value) is str


def none_or(check: Check) -> Check:
    """Nothing, or what ``check`` takes."""
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    """At least one, each of which ``check`` takes."""
    return lambda value: type(value) is list and bool(value) and all(map(check, value))


CERTIFICATE: Mapping[str, Check] = {
    "index": whole,
    "label": none_or(whole),
    "class": whole,
    "target": whole,
    "radius": real,
    "abstain": truth,
    "n0": whole,
    "n": whole,
    "counts": list_of(whole),
    "selection": none_or(list_of(whole)),
    "clean_class": whole,
    "clean_probabilities": list_of(lambda value: real(value) and value <= 1),
    "samples": whole,
    "seconds": real,
    "sigma": lambda value: real(value) and value > 0,
    "adaptive": truth,
    "basis": word,
}
ATTACK: Mapping[str, Check] = {
    "index": whole,
    "label": whole,
    "success": truth,
    "distance": none_or(real),
}


def read_certificates(directory: Path) -> list[dict[str, Any]]:
    """All certificates of a run directory, of every shard and process, each image once, ordered by index."""
    return _read(directory, "certificate", CERTIFICATE, _certificate_agrees)


def read_attacks(directory: Path) -> list[dict[str, Any]]:
    """All attacks of a run directory, of every shard and process, each image once, ordered by index."""
    return _read(directory, "attack", ATTACK, lambda record: record["success"] == (record["distance"] is not None))


def _read(
    directory: Path, kind: str, fields: Mapping[str, Check], agrees: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    article = "an" if kind[0] in "aeiou" else "a"
    found: dict[int, dict[str, Any]] = {}
    for file in sorted(directory.glob(f"{kind}s*.jsonl")):
        for number, record in enumerate(read_records(file), start=1):
            where = f"{file}:{number}: expected {article} {kind}"
            missing = sorted(fields.keys() - record.keys())
            require(not missing, f"{where}, got one without {missing}; remove the line")
            for name, good in fields.items():
                if not good(record[name]):
                    raise InputError(f"{where}, got {name} {str(record[name])[:40]}; remove the line")
            require(agrees(record), f"{where}, got one that contradicts itself; remove the line")
            known = found.setdefault(record["index"], record)
            require(_same(known, record), f"{where}, got a second, other one of image {record['index']}; remove one")
    return [found[index] for index in sorted(found)]


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two records say the same, whatever time they took."""
    return one | {"seconds": 0} == other | {"seconds": 0}


def _certificate_agrees(record: dict[str, Any]) -> bool:
    """Whether the numbers of a certificate fit together."""
    classes, selection = len(record["counts"]), record["selection"]
    named = all(record[name] < classes for name in ("class", "target", "clean_class"))
    counted = sum(record["counts"]) == record["n"] > 0
    selected = selection is None or (len(selection) == classes and sum(selection) == record["n0"])
    sure = math.isclose(sum(record["clean_probabilities"]), 1, abs_tol=1e-3)
    claims = not record["abstain"] or record["radius"] == 0
    return named and counted and selected and len(record["clean_probabilities"]) == classes and sure and claims
