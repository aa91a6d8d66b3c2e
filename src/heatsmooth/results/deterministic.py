"""Deterministic certificates of a network that is Lipschitz by construction: one per image, and arrays of many."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import InputError
from heatsmooth.results.guarantees import Basis, BasisKind, Subject
from heatsmooth.results.radii import Radii, is_correct, radii_of
from heatsmooth.results.records import read_each
from heatsmooth.results.schema import Json, Real, Whole, as_text, named

DETERMINISTIC = Basis(BasisKind.DETERMINISTIC)
SETTINGS: Json = {"kind": "deterministic"}
"""What a ``certify`` run records as the settings of its certificates: there is nothing to choose."""


@dataclass(frozen=True, kw_only=True)
class NetworkCertificate:
    """The deterministic certificate of one image, from one pass. It has no samples, so no counts and no α.

    Guarantee: one pass of the network has the class ``predicted`` everywhere within ``radius`` (L2, pixels in [0, 1])
    of the image. Where ``abstain``, nothing is claimed.
    """

    index: Whole
    """The image's index in its data set."""
    label: Whole | None
    predicted: Whole | None = field(metadata=named("class"))
    """None where a logit is not finite."""
    radius: Real
    abstain: bool
    subject: Subject = Subject.NETWORK
    basis: Basis = field(default=DETERMINISTIC, metadata=as_text(Basis.read))
    seconds: Real

    def __post_init__(self) -> None:
        kind = self.subject is Subject.NETWORK and self.basis == DETERMINISTIC
        if not kind or self.abstain != (self.radius == 0) or (self.predicted is None and not self.abstain):
            raise InputError("one that contradicts itself")

    @property
    def correct(self) -> bool:
        """Whether the radius covers the label, and the model does not abstain."""
        return is_correct(self.label, self.predicted, self.abstain)


def read_network_certificates(directory: Path) -> list[NetworkCertificate]:
    """All deterministic certificates of a run directory: each image once, ordered by index."""
    return read_each(directory, "certificates*.jsonl", "a deterministic certificate", NetworkCertificate)


@dataclass(frozen=True, kw_only=True)
class NetworkCertificates(Radii):
    """The deterministic certificates of many images, arrays (images,), ordered by index.

    ``radii`` are L2, in [0, 1] pixels. They cover the network itself, in one pass. Where ``abstained``, the radius is 0
    and nothing is claimed.
    """

    labels: NDArray[np.int64] | None
    classes: NDArray[np.int64]
    """−1 where a logit is not finite."""
    seconds: NDArray[np.float64]

    @classmethod
    def of(cls, records: Iterable[NetworkCertificate]) -> Self:
        """The arrays of certificates."""
        rows = sorted(records, key=lambda row: row.index)
        known = all(row.label is not None for row in rows)
        return cls(
            **vars(radii_of(rows)),
            labels=np.array([row.label for row in rows]) if known else None,
            classes=np.array([-1 if row.predicted is None else row.predicted for row in rows]),
            seconds=np.array([row.seconds for row in rows]),
        )

    @classmethod
    def read(cls, directory: Path) -> Self:
        """All deterministic certificates of a run directory."""
        return cls.of(read_network_certificates(directory))

    @property
    def one_pass_correct(self) -> NDArray[np.bool_]:
        """Where one pass has the label, (images,)."""
        if self.labels is None:
            raise InputError("expected labels to measure accuracy, got none; certify labelled images")
        return np.asarray(self.classes == self.labels)
