"""Rows of a board: by data, found by the labels, then by noise level; and how the images of a row differ."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatsmooth.reporting.board.entries import AVERAGE, Entry, at_same_samples
from heatsmooth.reporting.board.naming import common_words, names_of, words_of
from heatsmooth.reporting.certificate_tables import RADII
from heatsmooth.reporting.figures import BAND
from heatsmooth.reporting.formats import count_text, one_line, plain
from heatsmooth.statistics.bounds import Floats

SAME = 0.98
"""Two logs are about the same data if at least this share of their common images have the same label."""

FEW = 0.2
"""A row with a smaller share of the number of images of most rows is not drawn when the page opens: by chance, a few
images may be all certified."""


@dataclass(frozen=True)
class Row:
    """One line of the table and one of the figure."""

    key: str
    name: str
    entry: Entry
    images: str
    """How its images differ from those of most rows; empty if they do not."""
    drawn: bool = True
    """Whether it is drawn, and in the envelope, when the page opens."""

    def at(self, radii: Sequence[float]) -> list[tuple[float, float, float] | None]:
        """Certified accuracy at each radius, with its 95 % interval; None beyond what n and α allow."""
        share = self.entry.claims.certified_accuracy(radii)
        low, high = self.entry.claims.certified_accuracy_band(radii, alpha=BAND)
        known = [self.entry.cap is None or radius <= self.entry.cap for radius in radii]
        three = zip(share.tolist(), low.tolist(), high.tolist(), strict=True)
        return [values if allowed else None for allowed, values in zip(known, three, strict=True)]

    @property
    def remarks(self) -> list[str]:
        """How its images differ, what is odd, and what was computed anew."""
        return [*([self.images] if self.images else []), *self.entry.remarks, *self.entry.changes]

    @property
    def acr(self) -> float:
        """Average certified radius."""
        return self.entry.claims.average_certified_radius


@dataclass(frozen=True)
class Group:
    """Rows of the same data, noise level and kind of guarantee."""

    key: str
    about: str
    sigma: float | None
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """What its rows share."""
        if self.about != AVERAGE:
            return self.about
        return "σ not stated" if self.sigma is None else f"σ {plain(self.sigma)}"

    def envelope(self, radii: Sequence[float] | Floats) -> Floats:
        """The best certified accuracy of the rows that are drawn, at each radius."""
        drawn = [row.entry.claims.certified_accuracy(radii) for row in self.rows if row.drawn]
        return np.max(drawn, axis=0) if drawn else np.zeros(len(radii))


@dataclass
class DataSet:
    """All rows about the same images."""

    key: str
    name: str
    images: str
    """The images of most rows."""
    groups: tuple[Group, ...]

    @property
    def rows(self) -> list[Row]:
        """Of all groups."""
        return [row for group in self.groups for row in group.rows]

    @property
    def largest(self) -> float:
        """The largest radius of any image."""
        return max(float(row.entry.claims.radii.max()) for row in self.rows)

    @property
    def radii(self) -> list[float]:
        """The fixed radii of its table."""
        return [radius for radius in RADII if radius <= self.largest]


@dataclass
class _Labelled:
    """Entries whose common images have the same labels."""

    indices: NDArray[np.int64]
    """Of the images that some entry has, ordered."""
    labels: NDArray[np.int64]
    entries: list[Entry]

    def fits(self, entry: Entry) -> bool:
        """Whether an entry has images in common with the others, and the same labels there."""
        _, here, there = np.intersect1d(self.indices, entry.claims.indices, assume_unique=True, return_indices=True)
        return here.size > 0 and float((self.labels[here] == entry.labels[there]).mean()) >= SAME

    def add(self, entry: Entry) -> None:
        """Take in an entry and its images."""
        together = np.concatenate([self.indices, entry.claims.indices])
        self.indices, first = np.unique(together, return_index=True)
        self.labels = np.concatenate([self.labels, entry.labels])[first]
        self.entries.append(entry)


def by_data(entries: Sequence[Entry], *, n: int | None, alpha: float) -> list[DataSet]:
    """The entries in groups, those with counts for the same samples; data sets with more rows come first.

    ``n``: samples per image; None: the smallest number of a run about the same data. ``alpha``: of the certificates.
    """
    found: list[_Labelled] = []
    for entry in sorted(entries, key=lambda entry: -len(entry.claims)):
        home = next((one for one in found if one.fits(entry)), None)
        if home is None:
            found.append(_Labelled(entry.claims.indices, entry.labels, [entry]))
        else:
            home.add(entry)
    order = {id(entry): place for place, entry in enumerate(entries)}
    kept = [sorted(one.entries, key=lambda entry: order[id(entry)]) for one in found]
    kept.sort(key=lambda same: (-len(same), order[id(same[0])]))
    everywhere = set(common_words(entries))
    unnamed = "Images {}" if len(kept) > 1 else "All logs and runs"
    return [
        _data_set(at_same_samples(same, n=n, alpha=alpha), number, everywhere, unnamed)
        for number, same in enumerate(kept, start=1)
    ]


def _data_name(entries: list[Entry], everywhere: set[str]) -> str:
    """What a run recorded, else what the paths of these entries share and others do not; empty if neither."""
    if recorded := [entry.data for entry in entries if entry.data]:
        return Counter(recorded).most_common(1)[0][0]
    shared = common_words(entries) if len(entries) > 1 else words_of(entries[0])
    return one_line("/".join(word for word in shared if word not in everywhere), 60)


def _data_set(entries: list[Entry], number: int, everywhere: set[str], unnamed: str) -> DataSet:
    names = dict(zip(map(id, entries), names_of(entries, sorted(everywhere)), strict=True))
    usual = _usual_images(entries)
    kinds = sorted(
        {(entry.about != AVERAGE, entry.about, entry.sigma is None, entry.sigma or 0.0) for entry in entries}
    )
    groups = []
    for place, (_, about, unknown, sigma) in enumerate(kinds):
        wanted = None if unknown else sigma
        same = [entry for entry in entries if (entry.about, entry.sigma) == (about, wanted)]
        rows = [_row(entry, names[id(entry)], f"d{number}g{place}r{line}", usual) for line, entry in enumerate(same)]
        groups.append(Group(f"d{number}g{place}", about, wanted, tuple(rows)))
    name = _data_name(entries, everywhere) or unnamed.format(number)
    return DataSet(f"data-{number}", name, images_text(usual), tuple(groups))


def _row(entry: Entry, name: str, key: str, usual: NDArray[np.int64]) -> Row:
    indices = entry.claims.indices
    if np.array_equal(indices, usual):
        return Row(key, name, entry, "")
    if len(indices) < len(usual) and np.array_equal(indices, usual[: len(indices)]):
        stops = f"only the first {count_text(len(indices))} of {count_text(len(usual))} images: unfinished or truncated"
        return Row(key, name, entry, stops, drawn=False)
    others = f"other images: {images_text(indices)}"
    if len(indices) < FEW * len(usual):
        return Row(key, name, entry, f"{others}; too few to compare", drawn=False)
    return Row(key, name, entry, others)


def _usual_images(entries: list[Entry]) -> NDArray[np.int64]:
    """The indices that most entries have; of equally frequent ones the most."""
    counted = Counter(entry.claims.indices.tobytes() for entry in entries)
    best = max(counted, key=lambda content: (counted[content], len(content), content))
    return np.frombuffer(best, dtype=np.int64)


def images_text(indices: NDArray[np.int64]) -> str:
    """How many images, and which.

    >>> images_text(np.array([0, 20, 40])), images_text(np.array([0, 1, 5])), images_text(np.array([3]))
    ('3 images, 0 to 40, every 20th', '3 images from 0 to 5', '1 image, 3')
    """
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)
    if count == 1:
        return f"1 image, {first}"
    steps = np.unique(np.diff(indices))
    if len(steps) > 1:
        return f"{count_text(count)} images from {first} to {last}"
    every = "" if steps[0] == 1 else f", every {_ordinal(int(steps[0]))}"
    return f"{count_text(count)} images, {first} to {last}{every}"


def _ordinal(number: int) -> str:
    """2nd, 3rd, 20th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
