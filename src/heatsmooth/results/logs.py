"""Certificates in the tab-separated logs of Cohen, Salman and others. No torch."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import InputError, require
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.guarantees import Basis, BasisKind, Subject
from heatsmooth.results.radii import Radii
from heatsmooth.runs import write_atomically

UNSTATED = Basis(BasisKind.UNSTATED)
BROKEN = (ValueError, OverflowError)
"""What a line raises that cannot be read."""
NUMBER = r"\d+(?:\.\d+)?"
COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")


@dataclass(frozen=True)
class LogRow:
    """One image of a log."""

    index: int
    label: int
    predicted: int
    """−1 is an abstention, which counts as an error."""
    correct: bool
    radius: float | None = None
    """None in a log of PREDICT."""
    seconds: float | None = None
    base_predicted: int | None = None
    """The class of one pass without noise, if the log has it."""
    subject: Subject = Subject.AVERAGE
    basis: Basis = UNSTATED

    @property
    def abstain(self) -> bool:
        """Whether the model abstains."""
        return self.predicted == -1


def write_log(certificates: Iterable[Certificate], path: Path) -> None:
    """Write certificates as Cohen's tab-separated log: abstention is class −1 with radius 0; radii rounded down."""
    lines = ["\t".join(COLUMNS)]
    for item in certificates:
        require(
            item.basis.usual,
            "`tsv`: expected L2 radii of Gaussian noise, got others, which that format cannot express; leave it out",
        )
        require(
            item.predicted == item.target and item.basis.k == 1,
            "`tsv`: expected top-1 certificates, got top-k, which that format cannot express; leave it out",
        )
        fields = (
            item.index,
            -1 if item.label is None else item.label,
            -1 if item.abstain else item.predicted,
            f"{int(item.radius * 1e6) / 1e6:.6f}",
            int(item.correct),
            f"{item.seconds:.4f}",
        )
        lines.append("\t".join(map(str, fields)))
    write_atomically(path, ("\n".join(lines) + "\n").encode())


@dataclass(frozen=True, kw_only=True)
class Log:
    """The images of a log as arrays (images,), and what is unusual about the file."""

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    """−1 is an abstention, which counts as an error."""
    correct: NDArray[np.bool_]
    radii: NDArray[np.float64] | None
    """None in a log of PREDICT."""
    seconds: NDArray[np.float64] | None
    base_predicted: NDArray[np.int64] | None
    """The classes of one pass without noise, if the log has them."""
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Where the model abstains."""
        return np.asarray(self.predicted == -1)

    @property
    def claims(self) -> Radii:
        """The radii; they cover the average, and rest on an α and an n that a log does not state."""
        require(len(self) > 0, "expected rows, got a header alone; leave it out")
        if self.radii is None:
            raise InputError("expected radii, got a log of PREDICT, which has none; leave it out")
        return Radii(
            indices=self.indices,
            radii=np.where(self.abstained, 0.0, self.radii),
            abstained=self.abstained,
            correct=self.correct,
            subject=Subject.AVERAGE,
            basis=UNSTATED,
        )


def read_log(path: Path) -> list[LogRow]:
    """The rows of a tab-separated log, as ``read_log_columns`` reads it."""
    log = read_log_columns(path)
    none = [None] * len(log)
    return [
        LogRow(index, label, predicted, correct, radius, seconds, base)
        for index, label, predicted, correct, radius, seconds, base in zip(
            log.indices.tolist(),
            log.labels.tolist(),
            log.predicted.tolist(),
            log.correct.tolist(),
            none if log.radii is None else log.radii.tolist(),
            none if log.seconds is None else log.seconds.tolist(),
            none if log.base_predicted is None else log.base_predicted.tolist(),
            strict=True,
        )
    ]


def read_log_columns(path: Path) -> Log:
    """A tab-separated log as arrays.

    Certification logs have a radius; PREDICT logs do not. Lines may end in CR LF, the last line may be incomplete, and
    there may be more columns. A log with only a header has no rows.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a tab-separated log, got {error}; check the path") from None
    require(bool(lines), f"{path}: expected a header, got an empty file; leave it out")
    header = lines[0].split("\t")
    known = {"idx", "label", "predict", "correct"} <= set(header)
    require(known, f"{path}: expected columns idx, label, predict, correct, got {header}; is it a log of certificates?")
    remarks = ("its lines end in CR LF; it was read nevertheless",) if b"\r\n" in content else ()
    rows = [line.split("\t") for line in lines[1:]]
    try:
        return _log(header, rows, remarks)
    except BROKEN:
        number = next(number for number, row in enumerate(rows, start=2) if not _whole(header, row))
    require(
        number == len(lines),
        f"{path}:{number}: expected {len(header)} columns of numbers, got {lines[number - 1][:60]!r}; repair the line",
    )
    torn = ("its last line is incomplete and was left out",) if lines[-1].strip() else ()
    return _log(header, rows[:-1], remarks + torn)


def _whole(header: list[str], row: list[str]) -> bool:
    """Whether a line can be read."""
    try:
        _log(header, [row], ())
    except BROKEN:
        return False
    return True


def _log(header: list[str], rows: list[list[str]], remarks: tuple[str, ...]) -> Log:
    """The columns of these rows; one of ``BROKEN`` where one cannot be read."""
    if any(len(row) != len(header) for row in rows):
        raise ValueError("another number of columns")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())

    def whole(name: str) -> NDArray[np.int64]:
        return np.array(list(map(int, columns[name])), dtype=np.int64)

    def real(name: str) -> NDArray[np.float64]:
        return np.array(list(map(_seconds if name == "time" else float, columns[name])), dtype=np.float64)

    predicted, correct = whole("predict"), real("correct")
    if not np.isfinite(correct).all():
        raise ValueError("a flag that is not finite")
    return Log(
        indices=whole("idx"),
        labels=whole("label"),
        predicted=predicted,
        correct=(np.trunc(correct) != 0) & (predicted != -1),
        radii=real("radius") if "radius" in columns else None,
        seconds=real("time") if "time" in columns else None,
        base_predicted=whole("basePredict") if "basePredict" in columns else None,
        remarks=remarks,
    )


def named_sigma(path: Path) -> float | None:
    """The noise level that the path of a log states: the last ``sigma_…``, else the last ``noise_…``; None without.

    >>> [named_sigma(Path(path)) for path in ("noise_1.00/test/sigma_0.50", "cohen/noise_0.25_17", "cohen")]
    [0.5, 0.25, None]
    """
    for word in ("sigma", "noise"):
        for part in reversed(path.parts):
            stated = re.findall(rf"{word}[_=-]?({NUMBER})", part)
            if stated and float(stated[-1]) > 0:
                return float(stated[-1])
    return None


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
