"""What a run with a budget has drawn so far, round by round, so that it continues where it was killed."""

from dataclasses import dataclass
from pathlib import Path

from heatsmooth.results.certificates import Counts, Probabilities
from heatsmooth.results.schema import Real, Whole, from_json
from heatsmooth.runs import read_records


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The samples that one image got in a round."""

    index: Whole
    """The image's index in its data set."""
    counts: Counts
    """Samples per class that this round added to those that estimate."""
    seconds: Real
    selection: Counts | None = None
    """In the first round of an image: the samples that select its class; None if one pass selects it."""
    clean_class: Whole | None = None
    """In the first round of an image: its class in one pass."""
    clean_probabilities: Probabilities | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """Samples that were chosen together, from the counts of all rounds before."""

    number: Whole
    """From 0: a line that is repeated or lost is noticed."""
    draws: tuple[Draws, ...]
    seconds: Real
    """The time that the round took."""


def read_rounds(path: Path) -> list[Round]:
    """All whole rounds of a file; none if there is no file."""
    return [
        from_json(Round, record, f"{path}:{number}: expected a round of samples", "certify into another directory")
        for number, record in enumerate(read_records(path), start=1)
    ]
