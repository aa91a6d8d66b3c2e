"""Certificates in the tab-separated logs of Cohen, Salman and others. No torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from heatsmooth.errors import InputError, require
from heatsmooth.runs import write_atomically

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")


def write_log(records: Iterable[dict[str, Any]], path: Path) -> None:
    """Write certificates as Cohen's tab-separated log: abstention is class −1 with radius 0; radii rounded down."""
    lines = ["\t".join(COLUMNS)]
    for record in records:
        top_1 = record["class"] == record["target"] and "top-" not in record["basis"]
        require(top_1, "--tsv: expected top-1 certificates, got top-k, which that log cannot tell; leave it out")
        abstain = record["abstain"]
        predicted = -1 if abstain else record["class"]
        right = int(not abstain and record["class"] == record["label"])
        radius = 0.0 if abstain else record["radius"]
        label = -1 if record["label"] is None else record["label"]
        fields = (
            record["index"],
            label,
            predicted,
            f"{int(radius * 1e6) / 1e6:.6f}",
            right,
            f"{record['seconds']:.4f}",
        )
        lines.append("\t".join(map(str, fields)))
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a tab-separated log, as ``index label class radius abstain correct seconds`` (and ``basePredict``).

    Certification logs have a radius; PREDICT logs do not (``radius`` is then None). Lines may end in CR LF, a last
    line may be cut off, columns may be added; a log of a header alone has no rows. A class of −1 is an abstention,
    and an error.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a tab-separated log, got {error}; check the path") from None
    require(bool(lines), f"{path}: expected a header, got an empty file; leave it out")
    header = lines[0].split("\t")
    known = {"idx", "label", "predict", "correct"} <= set(header)
    require(known, f"{path}: expected columns idx, label, predict, correct, got {header}; is it a log of certificates?")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        try:
            require(len(fields) == len(header), f"{len(header)} columns")
            rows.append(_row(dict(zip(header, fields, strict=True))))
        except ValueError:
            if number == len(lines):
                continue
            raise InputError(
                f"{path}:{number}: expected {len(header)} columns of numbers, got {line[:60]!r}; repair the line"
            ) from None
    return rows


def _row(fields: dict[str, str]) -> dict[str, Any]:
    predicted = int(fields["predict"])
    row = {
        "index": int(fields["idx"]),
        "label": int(fields["label"]),
        "class": predicted,
        "radius": float(fields["radius"]) if "radius" in fields else None,
        "abstain": predicted == -1,
        "correct": bool(int(float(fields["correct"]))) and predicted != -1,
        "seconds": _seconds(fields["time"]) if "time" in fields else None,
    }
    return row | ({"basePredict": int(fields["basePredict"])} if "basePredict" in fields else {})


def _seconds(text: str) -> float:
    """Seconds written as such or as H:MM:SS.

    >>> _seconds("0:01:02.5"), _seconds("3.25"), _seconds("1 day, 0:00:01")
    (62.5, 3.25, 86401.0)
    """
    days, _, clock = text.rpartition(",")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds + (86_400 * int(days.split()[0]) if days else 0)
