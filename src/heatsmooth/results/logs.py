"""Certificates in the tab-separated logs of Cohen, Salman and others. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from heatsmooth.errors import InputError, require
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.guarantees import Basis, BasisKind, Subject
from heatsmooth.runs import write_atomically

UNSTATED = Basis(BasisKind.UNSTATED)
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


def read_log(path: Path) -> list[LogRow]:
    """The rows of a tab-separated log.

    Certification logs have a radius; PREDICT logs do not. Lines may end in CR LF, the last line may be incomplete, and
    there may be more columns. A log with only a header has no rows.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
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


def _row(fields: dict[str, str]) -> LogRow:
    predicted = int(fields["predict"])
    return LogRow(
        index=int(fields["idx"]),
        label=int(fields["label"]),
        predicted=predicted,
        correct=bool(int(float(fields["correct"]))) and predicted != -1,
        radius=float(fields["radius"]) if "radius" in fields else None,
        seconds=_seconds(fields["time"]) if "time" in fields else None,
        base_predicted=int(fields["basePredict"]) if "basePredict" in fields else None,
    )


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
