"""``heatsmooth audit``."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.command import Command, show_table
from heatsmooth.commands.inputs import Computing, Images, Network
from heatsmooth.commands.options import grouped
from heatsmooth.errors import InputError
from heatsmooth.progress import Progress, silent
from heatsmooth.results.agreement_audit import AgreementAudit
from heatsmooth.results.audit import NEEDS_NOISE, AgreementMeasures, AuditResult, AuditSettings
from heatsmooth.results.proof_audit import ProofAudit

if TYPE_CHECKING:
    import torch

    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier


@dataclass(frozen=True, kw_only=True)
class AuditSummary(AuditResult):
    """The result of an audit, and where it is."""

    command: str = "audit"
    out: str
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""


@dataclass(frozen=True, kw_only=True)
class AgreementSummary(AgreementAudit):
    """The result of an audit without attacks, and where it is."""

    command: str = "audit"
    out: str
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""


@dataclass(frozen=True, kw_only=True)
class ProofAuditSummary(ProofAudit):
    """The result of an audit of deterministic radii, and where it is."""

    command: str = "audit"
    out: str
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""


AnySummary = AuditSummary | AgreementSummary | ProofAuditSummary


@dataclass(frozen=True, kw_only=True)
class Audit(Command):
    """Test whether the certificates of a network hold, and whether they carry over to it in one pass.

    Without --sigma: attack a network made by distill inside its deterministic radii. An ONNX file is not attacked.

    Example: heatsmooth audit --data fashion-mini --from runs/smoothed --sigma 0.25 --images 200 --out runs/audited
    """

    images: Images
    network: Network
    settings: AuditSettings = field(default=AuditSettings())
    out: Path
    """Run directory; repeating the command continues it."""
    teacher: Path | None = None
    """The network it was smoothed from."""
    teacher_model: str | None = None
    """Architecture of the teacher, if it needs another --model."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))

    def run(self, progress: Progress = silent) -> AnySummary | None:
        """Audit the network on these images into ``out``/audit.json; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(self.computing.device, lambda: self._audited(progress))

    def _audited(self, progress: Progress) -> AnySummary:
        from heatsmooth.device import accelerator
        from heatsmooth.identity import network_settings
        from heatsmooth.models import identify
        from heatsmooth.results.proof_audit import read_audit
        from heatsmooth.runs import Run

        images = self.images.load(self.network.size, progress=progress)
        device = accelerator(self.computing.device).device
        model = self.network.load(images).to(device)
        self._check(model)
        teacher = None if self.teacher is None else self._loaded_teacher(self.teacher, images).to(device)
        identity = {
            "data": images.describe(),
            **network_settings(
                model=identify(model, images.shape),
                teacher=None if teacher is None else identify(teacher, images.shape),
            ),
            "audit": self._recorded_settings(),
            "seed": self.computing.seed,
        }
        with Run(self.out, "audit", identity) as run:
            if not run.done:
                self._result(model, images, teacher, progress).write(self.out)
                run.update(status="done", model_hash=identity["model"])
            result = read_audit(self.out)
        kinds: dict[type, Any] = {ProofAudit: ProofAuditSummary, AgreementAudit: AgreementSummary}
        summary = kinds.get(type(result), AuditSummary)
        summarised: AnySummary = summary(**vars(result), out=str(self.out), left_out=images.left_out or None)
        return summarised

    def _check(self, model: "Classifier") -> None:
        """Refuse a network that needs noise where there is none, and a teacher that would not be used."""
        from heatsmooth.errors import require
        from heatsmooth.models import is_lipschitz

        if self.settings.sigma is None:
            require(is_lipschitz(model), NEEDS_NOISE)
            require(self.teacher is None, "`teacher`: expected `sigma` beside it, got none; leave it out")

    def _recorded_settings(self) -> dict[str, Any]:
        """What the result depends on, beside the images and the networks."""
        if self.settings.sigma is not None:
            return asdict(self.settings)
        return {"kind": "deterministic", "steps": self.settings.steps}

    def _result(
        self, model: "Classifier", images: "ImageSet", teacher: "torch.nn.Module | None", progress: Progress
    ) -> AuditResult | AgreementAudit | ProofAudit:
        from heatsmooth.auditing import audit, audit_agreement, audit_proofs
        from heatsmooth.auditing.parts import PARTS_FILE, Parts
        from heatsmooth.models import is_onnx

        with Parts(self.out / PARTS_FILE) as parts:
            how: Any = {"seed": self.computing.seed, "parts": parts, "progress": progress}
            if self.settings.sigma is None:
                return audit_proofs(model, images, self.settings, **how)
            kind = audit_agreement if is_onnx(model) else audit
            return kind(model, images, self.settings, teacher=teacher, **how)

    def _loaded_teacher(self, source: Path, images: "ImageSet") -> "Classifier":
        try:
            return teacher_network(source, self.network, self.teacher_model).load(images)
        except InputError as error:
            if not error.options:
                raise
            message = str(error).replace("--model", "--teacher-model").replace("`model`", "`teacher_model`")
            raise InputError(message, options=("--teacher-model", *error.options[1:])) from None

    def show(self, result: Any) -> None:
        """Print the findings and the verdict."""
        if isinstance(result, ProofAudit):
            show_table(_proof_rows(result), f"{result.images} images, deterministic radii of the network")
        else:
            rows = _agreement_rows(result) if isinstance(result, AgreementAudit) else _rows(result)
            show_table(rows, f"{result.images} images, σ={result.sigma:g}, n={result.n}")
        print(f"{result.verdict.kind.upper()}. {result.verdict.text}")


def teacher_network(source: Path, network: Network, model: str | None = None) -> Network:
    """The teacher at ``source``: as its own record says, else, for plain weights, as ``network`` is described.

    ``model``: the code of a teacher whose architecture is not that of ``network``.
    """
    from heatsmooth.models import recorded_spec
    from heatsmooth.models.checkpoint import CALLABLE
    from heatsmooth.models.onnx_reading import ONNX

    if CALLABLE.fullmatch(str(source)):
        return Network(source=source)
    spec = recorded_spec(source)
    if spec is not None and spec.architecture == ONNX and not source.is_dir():
        return replace(network, source=source, model=None)
    if spec is None:
        return replace(network, source=source, model=model or network.model)
    return Network(source=source, model=model or (network.code if network.code == spec.architecture else None))


def _rows(result: AuditResult) -> list[dict[str, str]]:
    agreement, average, network = result.agreement, result.average_attacks, result.network_attacks
    l_bound, radius, survives = network.inside_l_bound, network.inside_average_radius, network.surviving_fraction
    counts = [
        ("one pass agrees with the average", agreement.count, agreement.images),
        ("average broken inside its certified radius", average.violations, average.attacked),
        ("network broken inside its L-bound", l_bound.broken, l_bound.attacked),
        ("network broken inside the average's radius", radius.broken, radius.attacked),
    ]
    rows = [*map(_count_row, counts), *_distance_rows(result)]
    survived = f"share of the radius that {survives.share:.0%} survive (empirical)"
    rows.append({"finding": survived, "images": str(survives.images), "value": f"{survives.fraction:.3f}"})
    ratio = f"{result.lipschitz.ratio:.2f}"
    return [*rows, {"finding": "steepest slope / assumed by the L-bound", "images": "", "value": ratio}]


def _agreement_rows(result: AgreementAudit) -> list[dict[str, str]]:
    agreement = result.agreement
    row = _count_row(("one pass agrees with the average", agreement.count, agreement.images))
    return [row, *_distance_rows(result)]


def _count_row(counted: tuple[str, int, int]) -> dict[str, str]:
    name, count, of = counted
    return {"finding": name, "images": f"{count} of {of}", "value": f"{count / max(of, 1):.1%}"}


def _distance_rows(result: AgreementMeasures) -> list[dict[str, str]]:
    rows, approximation = [], result.approximation
    for whose, distances in (("its own average", approximation.own), ("the teacher's average", approximation.teacher)):
        if distances is not None:
            interval = distances.interval
            ends = "–" if interval is None else f"{interval[0]:.3f}, {interval[1]:.3f}"
            rows.append({"finding": f"distance to {whose}", "images": "", "value": f"{distances.mean:.3f} [{ends}]"})
    return rows


def _proof_rows(result: ProofAudit) -> list[dict[str, str]]:
    rows = [
        {"finding": f"broken by {name} inside the radius", "images": f"{one.broken} of {one.attacked}", "value": ""}
        for name, one in result.broken.items()
    ]
    close = result.tightness
    if close is None:
        return rows
    rows.append(
        {"finding": "largest share of a margin used up inside", "images": "", "value": f"{close.margin_used:.3f}"}
    )
    for name, ratio in (("smallest", close.nearest), ("median", close.median)):
        if ratio is not None:
            finding = f"{name} distance of an attack / radius"
            rows.append({"finding": finding, "images": str(close.changed), "value": f"{ratio:.3f}"})
    return rows
