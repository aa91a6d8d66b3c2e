"""The radii of many images as arrays, for every basis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heatsmooth.errors import InputError, require
from heatsmooth.results.guarantees import Basis, Subject
from heatsmooth.results.shown import Shown
from heatsmooth.statistics import accuracy


def is_correct(label: int | None, covered: int | None, abstain: bool) -> bool:
    """Whether a radius counts in certified accuracy: it covers the label, and the model does not abstain."""
    return label is not None and label == covered and not abstain


class Claim(Protocol):
    """The radius of one image."""

    @property
    def index(self) -> int: ...
    @property
    def label(self) -> int | None: ...
    @property
    def radius(self) -> float | None: ...
    @property
    def abstain(self) -> bool: ...
    @property
    def correct(self) -> bool: ...
    @property
    def subject(self) -> Subject: ...
    @property
    def basis(self) -> Basis: ...


@dataclass(frozen=True, kw_only=True)
class Radii(Shown):
    """The radii of many images, arrays (images,).

    ``radii`` are L2, in [0, 1] pixels. They cover ``subject`` and rest on ``basis``. Where ``abstained``, the radius is
    0 and nothing is claimed.
    """

    indices: NDArray[np.int64]
    radii: NDArray[np.float64]
    abstained: NDArray[np.bool_]
    correct: NDArray[np.bool_] | None
    """Where the radius covers the label and the model does not abstain; None without labels."""
    subject: Subject
    basis: Basis

    def __len__(self) -> int:
        return len(self.radii)

    @property
    def known_correct(self) -> NDArray[np.bool_]:
        """``correct``; an error where there are no labels."""
        if self.correct is None:
            raise InputError("expected labels to measure accuracy, got none; certify labelled images")
        return self.correct

    def certified_accuracy(self, at: ArrayLike) -> NDArray[np.float64]:
        """The share of all images that are correct with a radius of at least r, for each r of ``at``."""
        return accuracy.certified_accuracy(self.radii, self.known_correct, at)

    def certified_accuracy_band(
        self, at: ArrayLike, *, alpha: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Clopper–Pearson bounds on the certified accuracy over all images like these."""
        return accuracy.certified_accuracy_band(self.radii, self.known_correct, at, alpha=alpha)

    @property
    def average_certified_radius(self) -> float:
        """ACR: the mean radius over all images, 0 where wrong or abstained."""
        return accuracy.average_certified_radius(self.radii, self.known_correct)


def radii_of(rows: Sequence[Claim]) -> Radii:
    """The radii of images, in this order; all must cover the same model and have the same basis."""
    require(bool(rows), "expected certified images, got none; certify some first")
    kinds = sorted({f"{row.subject}: {row.basis}" for row in rows})
    require(len(kinds) == 1, f"expected radii of one kind, got {kinds}; read them separately")
    abstained = np.array([row.abstain for row in rows])
    labelled = all(row.label is not None for row in rows)
    return Radii(
        indices=np.array([row.index for row in rows]),
        radii=np.where(abstained, 0.0, np.array([row.radius for row in rows], dtype=np.float64)),
        abstained=abstained,
        correct=np.array([row.correct for row in rows]) if labelled else None,
        subject=rows[0].subject,
        basis=rows[0].basis,
    )
