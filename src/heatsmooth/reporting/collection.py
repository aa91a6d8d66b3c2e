"""What a report is made of, as plain data: what was trained, certified, attacked, audited and compared."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.radii import largest_radius
from heatsmooth.certification.settings import Settings
from heatsmooth.reporting.formats import one_line, plain
from heatsmooth.results.agreement_audit import AgreementAudit
from heatsmooth.results.attacks import AttackResults
from heatsmooth.results.audit import AuditResult
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.comparison import Comparison, Timing
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.results.frontier import FrontierResult
from heatsmooth.results.proof_audit import ProofAudit
from heatsmooth.results.radii import Radii
from heatsmooth.results.run_info import CalibrationChoices, RunInfo
from heatsmooth.statistics.bounds import Flags, Floats

Pixels = NDArray[np.uint8]
GALLERY = ("clean", "noisy", "adversarial")
METHODS = {
    "clean": "undefended",
    "gaussian": "RandomizedSmoothing",
    "smoothadv": "SmoothAdv",
    "adversarial": "L2 adversarial training",
    "distill": "distilled, Lipschitz by construction",
    "consistency": "Consistency without labels",
    "macer": "MACER without labels",
    "smoothmix": "SmoothMix without labels",
    "denoised": "Denoised Smoothing",
}


@dataclass(frozen=True)
class Note:
    """A remark about an input: that it was ``skipped`` and why, or that it is unusual."""

    name: str
    reason: str
    skipped: bool = True


@dataclass(frozen=True)
class ReportedRun:
    """A run directory; several processes may each have written a part of it."""

    name: str
    path: Path
    info: RunInfo
    parts: int

    @property
    def command(self) -> str:
        """What made it."""
        return one_line(self.info.command, 40)


@dataclass(frozen=True)
class _OfRun:
    """What was read of a run."""

    run: ReportedRun

    @property
    def name(self) -> str:
        """That of its run."""
        return self.run.name


@dataclass(frozen=True)
class Training(_OfRun):
    """A ``train``, ``smooth`` or ``distill`` run, with its curves over epochs."""

    curves: dict[str, tuple[Floats, Floats]]

    @property
    def model(self) -> str | None:
        """The hash of the network that it made."""
        return self.run.info.model_hash

    @property
    def teacher(self) -> str | None:
        """The hash of the network that it started from."""
        return self.run.info.chosen.teacher

    @property
    def smoothed(self) -> bool:
        """Whether it was smoothed."""
        return self.run.info.command == "smooth"

    @property
    def unlabelled(self) -> bool:
        """Whether it needed no labels."""
        return self.run.info.command in ("smooth", "distill")

    @property
    def method(self) -> str:
        """How the network was made, in a word or two; empty if unknown."""
        chosen, summary = self.run.info.chosen, self.run.info.summary
        if self.smoothed and chosen.choices.method is None:
            preset = chosen.preset or (summary and summary.preset)
            noise = chosen.heat.distribution
            how = ", ".join([one_line(preset)] * bool(preset) + [f"{noise} noise"] * (noise != "gaussian"))
            return f"HeatSmoothing ({how})" if how else "HeatSmoothing"
        made = "distill" if self.run.info.command == "distill" else ""
        method = chosen.choices.method or (summary and summary.method) or made
        return METHODS.get(method, one_line(method))

    @property
    def sigma(self) -> float | None:
        """The noise level that the network was trained or smoothed for; None without noise."""
        chosen, summary = self.run.info.chosen, self.run.info.summary
        return chosen.heat.sigma or chosen.choices.sigma or (summary and summary.sigma) or None

    @property
    def epochs(self) -> str:
        """How long it was trained, in words."""
        chosen = self.run.info.chosen
        epochs, timesteps = chosen.plan.epochs, chosen.heat.timesteps
        if epochs is None:
            return self.run.command
        return f"{epochs} epoch{'' if epochs == 1 else 's'}" + (f" × {plain(timesteps)}" if timesteps > 1 else "")


@dataclass(frozen=True)
class _Claimed:
    name: str
    model: str | None
    claims: Radii

    @property
    def labelled(self) -> bool:
        """Whether accuracy is known."""
        return self.claims.correct is not None


@dataclass(frozen=True)
class Certification(_Claimed):
    """The certificates of a ``certify`` run, or the radii of a log: they cover the *average* and are statistical."""

    settings: Settings | None = None
    """None where they are not known."""
    seconds: Floats | None = None
    """Per image, (images,)."""
    named_sigma: float | None = None
    """Of a log: the noise level that its name states."""

    @property
    def certificates(self) -> Certificates | None:
        """All that a run records; a log has only radii."""
        return self.claims if isinstance(self.claims, Certificates) else None

    @property
    def sigma(self) -> float | None:
        """The noise level of the average."""
        return None if self.certificates is None else self.certificates.sigma

    @property
    def class_from(self) -> str | None:
        """What selected the class."""
        return None if self.certificates is None else self.certificates.class_from

    @property
    def n(self) -> int | None:
        """Samples that estimate, the maximum if adaptive."""
        return None if self.settings is None else self.settings.n

    @property
    def top_k(self) -> int:
        """Within the radius, the label stays among this many classes."""
        return self.claims.basis.k

    @property
    def acr(self) -> float | None:
        """The average certified radius, 0 where wrong or abstained; None without labels."""
        return self.claims.average_certified_radius if self.labelled else None

    @cached_property
    def cap(self) -> float | None:
        """The radius if all n samples agree: no image can have a larger one."""
        if self.settings is None or self.certificates is None:
            return None
        return largest_radius(self.settings, self.certificates.counts.shape[1], pixels=self.certificates.pixels) or 0.0

    def certified_at(self, radius: float) -> float | None:
        """Certified accuracy at a radius; None without labels, and beyond the largest possible radius."""
        if not self.labelled or (self.cap is not None and radius > self.cap):
            return None
        return float(self.claims.certified_accuracy(radius))


@dataclass(frozen=True)
class Calibrated(_Claimed):
    """Radii from one pass: conformal, not statistical."""

    choices: CalibrationChoices
    clean: float | None = None
    """Accuracy of one pass; None without labels, and where the passes are noisy."""


@dataclass(frozen=True)
class Proven(_Claimed):
    """Deterministic certificates of a network in one pass."""

    claims: NetworkCertificates


@dataclass(frozen=True)
class PredictionLog:
    """A log of Cohen's PREDICT: classes without radii."""

    name: str
    correct: Flags
    abstained: Flags


@dataclass(frozen=True)
class AttackRun(_OfRun):
    """An ``attack`` run."""

    results: AttackResults

    @property
    def model(self) -> str | None:
        """The hash of the attacked network."""
        return self.run.info.network

    @property
    def kind(self) -> str:
        """The name of the attack."""
        return one_line(self.run.info.chosen.attack or "attack").upper()


@dataclass(frozen=True)
class Gallery:
    """Images (images, height, width, channels) of an attack run, and facts (images,) by name."""

    name: str
    model: str | None
    images: dict[str, Pixels]
    facts: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class AuditedModel:
    """The audit of a model."""

    name: str
    model: str | None
    result: AuditResult


@dataclass(frozen=True)
class AuditedProofs:
    """The audit of the deterministic radii of a model."""

    name: str
    model: str | None
    result: ProofAudit


@dataclass
class Collection:
    """Everything that a report is made of."""

    runs: list[ReportedRun] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    certifications: list[Certification] = field(default_factory=list)
    calibrated: list[Calibrated] = field(default_factory=list)
    proven: list[Proven] = field(default_factory=list)
    predictions: list[PredictionLog] = field(default_factory=list)
    attacks: list[AttackRun] = field(default_factory=list)
    galleries: list[Gallery] = field(default_factory=list)
    audits: list[AuditedModel] = field(default_factory=list)
    proof_audits: list[AuditedProofs] = field(default_factory=list)
    agreement_audits: list[tuple[str, str | None, AgreementAudit]] = field(default_factory=list)
    """Audits without attacks: the name of the run, the hash of the model, and the result."""
    timings: list[tuple[str, Timing]] = field(default_factory=list)
    comparisons: list[tuple[str, Comparison]] = field(default_factory=list)
    frontiers: list[tuple[str, FrontierResult]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """Runs, logs, timings, comparisons and frontiers that were read."""
        logs = len(self.predictions) + sum(item.model is None for item in self.certifications)
        return len(self.runs) + logs + len(self.timings) + len(self.comparisons) + len(self.frontiers)

    @property
    def skipped(self) -> list[Note]:
        """Inputs that could not be read."""
        return [note for note in self.notes if note.skipped]

    def sort(self) -> None:
        """Put runs in the order of their start, and what is about a model in the order in which models were made."""
        self.runs.sort(key=lambda run: run.info.started)
        self.trainings.sort(key=lambda training: training.run.info.started)
        models = [training.model for training in self.trainings if training.model]

        def place(item: Certification | AttackRun | Gallery | AuditedModel) -> int:
            return models.index(item.model) if item.model in models else len(models)

        self.certifications.sort(key=place)
        self.attacks.sort(key=place)
        self.galleries.sort(key=place)
        self.audits.sort(key=place)

    def maker(self, model: str | None) -> Training | None:
        """The run that made a model, if it is among the sources."""
        return next((t for t in self.trainings if model is not None and t.model == model), None)

    def is_teacher(self, model: str | None) -> bool:
        """Whether another model was smoothed or distilled from it."""
        return model is not None and any(t.teacher == model for t in self.trainings)

    def certifications_of(self, model: str | None) -> list[Certification]:
        """The top-1 certificates of a model."""
        return [c for c in self.certifications if model is not None and c.model == model and c.top_k == 1]

    def certified(self, model: str | None) -> Certification | None:
        """The top-1 certificates of a model; L2 radii of Gaussian noise first, then those of a fixed n.

        Adaptive ones are exact at few radii only.
        """
        return min(
            self.certifications_of(model),
            key=lambda c: (not c.claims.basis.usual, c.claims.basis.anytime),
            default=None,
        )

    def model_name(self, model: str | None, run: str) -> str:
        """What a model is called: the run that made it, else the file named by --from, else its hash, else ``run``."""
        maker = self.maker(model)
        if maker is not None:
            return maker.name
        source = next((r.info.argument("--from") for r in self.runs if r.name == run), None)
        origin = one_line(Path(source).name, 60) if source else ""
        return origin or (run if model is None else f"model {model[:8]}")
