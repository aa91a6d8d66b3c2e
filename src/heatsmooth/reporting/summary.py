"""The model that the summary of a report is about. The sentences are in ``summary.html``."""

import math
from dataclasses import dataclass
from typing import Self, TypeVar

from heatsmooth.reporting.collection import Certification, Collection, Training
from heatsmooth.reporting.naming import Names
from heatsmooth.results.audit import AuditResult
from heatsmooth.results.training import TrainingResult
from heatsmooth.statistics.accuracy import false_certificates

Item = TypeVar("Item")
RHO = 0.001
"""The share of false certificates is bounded except with this probability."""


@dataclass(frozen=True)
class MainModel:
    """The model that the summary is about.

    It is the row ``bootcamp`` of a comparison, else the last smoothed model that is certified, else the last one that
    was made, else the first certified one.
    """

    name: str
    maker: Training | None = None
    teacher: Training | None = None
    certified: Certification | None = None
    before: Certification | None = None
    """The certificates of the network that it was made from, at the same noise level."""
    origin: str = ""
    """The name of the network that it was made from, if that is in the report."""

    @classmethod
    def of(cls, collection: Collection, names: Names) -> Self:
        """The main model of a collection."""
        labelled = [c for c in collection.certifications if c.labelled and c.top_k == 1]
        maker = _last_made(collection, labelled)
        if maker is not None:
            return cls._made(maker, collection, names)
        first = _first([*sorted(labelled, key=lambda c: not c.claims.basis.usual), *collection.certifications])
        return cls(names.model_of(first), certified=first) if first else cls("")

    @classmethod
    def _made(cls, maker: Training, collection: Collection, names: Names) -> Self:
        certified, teacher = collection.certified(maker.model), collection.maker(maker.teacher)
        if certified is None:
            return cls(maker.name, maker, teacher, origin=teacher.name if teacher else "")
        of_teacher = [c for c in collection.certifications_of(maker.teacher) if c.labelled]
        origin = teacher.name if teacher else _first([names.model_of(c) for c in of_teacher])
        before = _first([c for c in of_teacher if _noise_and_norm(c) == _noise_and_norm(certified)])
        return cls(maker.name, maker, teacher, certified, before, origin or "")

    @property
    def result(self) -> TrainingResult | None:
        """What its training measured."""
        return self.maker.run.info.summary if self.maker else None

    @property
    def radius(self) -> float:
        """The radius of the summary: the noise level; for L∞ 1/255."""
        if self.certified is not None and self.certified.claims.basis.norm == "linf":
            return 1 / 255
        return (self.certified.sigma if self.certified else None) or 0.25

    def audit(self, collection: Collection) -> AuditResult | None:
        """Its audit."""
        audits = (audit for audit in collection.audits if self.maker is None or audit.model == self.maker.model)
        return next((audit.result for audit in audits), None)

    def certified_on_training_data(self, collection: Collection) -> bool:
        """Whether it was certified on the data that it was trained on."""
        if self.maker is None or self.certified is None:
            return False
        data = [run.info.chosen.data.name for run in collection.runs if run.name == self.certified.name]
        return data == [self.maker.run.info.chosen.data.name]


def _last_made(collection: Collection, labelled: list[Certification]) -> Training | None:
    smoothed = [t for t in collection.trainings if t.smoothed and t.model]
    certified = [t for t in smoothed if any(c.model == t.model for c in labelled)]
    compared = [t for t in certified if collection.comparisons and t.name.rsplit("/", 1)[-1] == "bootcamp"]
    return _first([*compared, *certified[::-1], *smoothed[::-1], *collection.trainings[::-1]])


def _noise_and_norm(item: Certification) -> tuple[float | None, str, str]:
    return item.sigma, item.claims.basis.noise, item.claims.basis.norm


def _first(items: list[Item]) -> Item | None:
    return items[0] if items else None


def most_false(item: Certification) -> float | None:
    """The share of the certificates that may be false, except with probability ``RHO``, rounded up."""
    alpha = item.claims.basis.alpha
    if alpha is None or not 0 < alpha < 0.5:
        return None
    return math.ceil(1000 * false_certificates(len(item.claims), alpha=alpha, rho=RHO)) / 1000
