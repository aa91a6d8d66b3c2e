"""``heatsmooth audit``."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.command import Command, show_table
from heatsmooth.commands.inputs import Computing, Images, Network
from heatsmooth.commands.options import grouped
from heatsmooth.errors import InputError
from heatsmooth.progress import Progress, silent
from heatsmooth.results.audit import AuditResult, AuditSettings

if TYPE_CHECKING:
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
class Audit(Command):
    """Test whether the certificates of a network hold, and whether they carry over to it in one pass.

    Example: heatsmooth audit --data fashion-mini --from runs/smoothed --sigma 0.25 --images 200 --out runs/audited
    """

    images: Images
    network: Network
    settings: AuditSettings
    out: Path
    """Run directory; a finished audit is not repeated."""
    teacher: Path | None = None
    """The network it was smoothed from."""
    teacher_model: str | None = None
    """Architecture of the teacher, if it needs another --model."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))

    def run(self, progress: Progress = silent) -> AuditSummary | None:
        """Audit the network on these images into ``out``/audit.json; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(self.computing.device, lambda: self._audited(progress))

    def _audited(self, progress: Progress) -> AuditSummary:
        from heatsmooth.auditing import audit
        from heatsmooth.device import accelerator
        from heatsmooth.identity import network_settings
        from heatsmooth.models import identify
        from heatsmooth.runs import Run

        images = self.images.load(self.network.size, progress=progress)
        device, seed = accelerator(self.computing.device).device, self.computing.seed
        model = self.network.load(images).to(device)
        teacher = None if self.teacher is None else self._loaded_teacher(self.teacher, images).to(device)
        settings = {
            "data": images.describe(),
            **network_settings(
                model=identify(model, images.shape),
                teacher=None if teacher is None else identify(teacher, images.shape),
            ),
            "audit": asdict(self.settings),
            "seed": seed,
        }
        with Run(self.out, "audit", settings) as run:
            if not run.done:
                result = audit(model, images, self.settings, teacher=teacher, seed=seed, progress=progress)
                result.write(self.out)
                run.update(status="done", model_hash=settings["model"])
            result = AuditResult.read(self.out)
            return AuditSummary(**vars(result), out=str(self.out), left_out=images.left_out or None)

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
        show_table(_rows(result), f"{result.images} images, σ={result.sigma:g}, n={result.n}")
        print(f"{result.verdict.kind.upper()}. {result.verdict.text}")


def teacher_network(source: Path, network: Network, model: str | None = None) -> Network:
    """The teacher at ``source``: as its own record says, else, for plain weights, as ``network`` is described.

    ``model``: the code of a teacher whose architecture is not that of ``network``.
    """
    from heatsmooth.models import recorded_spec
    from heatsmooth.models.checkpoint import CALLABLE

    if CALLABLE.fullmatch(str(source)):
        return Network(source=source)
    spec = recorded_spec(source)
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
    rows = [
        {"finding": name, "images": f"{count} of {of}", "value": f"{count / max(of, 1):.1%}"}
        for name, count, of in counts
    ]
    approximation = result.approximation
    for whose, distances in (("its own average", approximation.own), ("the teacher's average", approximation.teacher)):
        if distances is not None:
            interval = distances.interval
            ends = "–" if interval is None else f"{interval[0]:.3f}, {interval[1]:.3f}"
            rows.append({"finding": f"distance to {whose}", "images": "", "value": f"{distances.mean:.3f} [{ends}]"})
    survived = f"share of the radius that {survives.share:.0%} survive (empirical)"
    rows.append({"finding": survived, "images": str(survives.images), "value": f"{survives.fraction:.3f}"})
    ratio = f"{result.lipschitz.ratio:.2f}"
    return [*rows, {"finding": "steepest slope / assumed by the L-bound", "images": "", "value": ratio}]
