"""What a report is made of, as plain data: what was trained, certified, attacked and audited."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.settings import Settings
from heatsmooth.report.files import Note, Run
from heatsmooth.report.values import number, one_line, text
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.radii import Radii
from heatsmooth.statistics.bounds import Flags, Floats

Pixels = NDArray[np.uint8]
GALLERY = ("clean", "noisy", "adversarial")


@dataclass(frozen=True)
class Training:
    """A ``train`` or ``smooth`` run, with its curves over epochs."""

    run: Run
    model: str | None
    curves: dict[str, tuple[Floats, Floats]]


@dataclass(frozen=True)
class Certification:
    """The certificates of a ``certify`` run, or the radii of a log: they cover the *average* and are statistical."""

    name: str
    model: str | None
    claims: Radii
    settings: Settings | None = None
    """None where they are not known."""
    seconds: Floats | None = None
    """Per image, (images,)."""

    @property
    def certificates(self) -> Certificates | None:
        """All that a run records; a log has the radii alone."""
        return self.claims if isinstance(self.claims, Certificates) else None

    @property
    def sigma(self) -> float | None:
        """The noise certified with."""
        return None if self.certificates is None else self.certificates.sigma

    @property
    def class_from(self) -> str | None:
        """What chose the class."""
        return None if self.certificates is None else self.certificates.class_from

    @property
    def n(self) -> int | None:
        """Samples that estimate, the most of them if adaptive."""
        return None if self.settings is None else self.settings.n

    @property
    def top_k(self) -> int:
        """The label stays among this many classes within the radius."""
        return self.claims.basis.k

    @cached_property
    def cap(self) -> float | None:
        """The radius if all n samples agree: no image can get more."""
        if self.settings is None or self.certificates is None:
            return None
        return self.settings.largest_radius(self.certificates.counts.shape[1]) or 0.0


@dataclass(frozen=True)
class Calibrated:
    """Radii from one pass: conformal, not statistical."""

    name: str
    model: str | None
    claims: Radii
    sigma: float | None
    epsilon: float | None
    alpha: float | None


@dataclass(frozen=True)
class Prediction:
    """A log of Cohen's PREDICT: classes without radii."""

    name: str
    correct: Flags
    abstained: Flags


@dataclass(frozen=True)
class Attack:
    """An ``attack`` run."""

    run: Run
    model: str | None
    kind: str
    results: AttackResults

    @property
    def name(self) -> str:
        """That of its run."""
        return self.run.name

    def setting(self, name: str) -> float | None:
        """A number that the attack was run with, if it is recorded."""
        return number(self.run.info, "settings", name)


@dataclass(frozen=True)
class Gallery:
    """Images (images, height, width, channels) of an attack run, and facts (images,) by name."""

    name: str
    model: str | None
    images: dict[str, Pixels]
    facts: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Audit:
    """What ``audit.json`` holds."""

    name: str
    model: str | None
    facts: dict[str, Any]


@dataclass
class Collection:
    """Everything a report is made of."""

    runs: list[Run] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    certifications: list[Certification] = field(default_factory=list)
    calibrated: list[Calibrated] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    attacks: list[Attack] = field(default_factory=list)
    galleries: list[Gallery] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    timings: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    comparisons: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def put_in_order(self) -> None:
        """Runs as they were started, and what is about a model in the order in which the models were made."""
        self.runs.sort(key=lambda run: text(run.info, "started") or "")
        self.trainings.sort(key=lambda training: text(training.run.info, "started") or "")
        models = [training.model for training in self.trainings if training.model]

        def place(item: Certification | Attack | Gallery | Audit) -> int:
            return models.index(item.model) if item.model in models else len(models)

        self.certifications.sort(key=place)
        self.attacks.sort(key=place)
        self.galleries.sort(key=place)
        self.audits.sort(key=place)

    def maker(self, model: str | None) -> Training | None:
        """The run that made a model, if it is among the sources."""
        return next((t for t in self.trainings if model is not None and t.model == model), None)

    def is_teacher(self, model: str | None) -> bool:
        """Whether another model was smoothed from it."""
        return model is not None and any(text(t.run.info, "settings", "teacher") == model for t in self.trainings)

    def certified(self, model: str | None) -> Certification | None:
        """The top-1 certificates of a model; those of a fixed n, as adaptive ones are decided at few radii only."""
        own = [c for c in self.certifications if model is not None and c.model == model and c.top_k == 1]
        return min(own, key=lambda c: c.claims.basis.anytime, default=None)

    def model_name(self, model: str | None, run: str) -> str:
        """What a model is called: the run that made it, else what ``--from`` named, else its hash, else ``run``."""
        maker = self.maker(model)
        if maker is not None:
            return maker.run.name
        named = next((r for r in self.runs if r.name == run), None)
        arguments = named.info.get("arguments") if named else None
        if isinstance(arguments, list) and "--from" in arguments[:-1]:
            origin = one_line(Path(str(arguments[arguments.index("--from") + 1])).name, 60)
            if origin:
                return origin
        return run if model is None else f"model {model[:8]}"
