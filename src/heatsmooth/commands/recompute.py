"""``heatsmooth recompute``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.certification.settings import RecomputedSettings, Settings
from heatsmooth.commands.command import Command
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.commands.certified import CertificationResult, CertifiedRun
    from heatsmooth.results.certificates import Certificate


@dataclass(frozen=True, kw_only=True)
class Recompute(Command):
    """Compute the certificates of a finished run again with other settings, from its counts, without the network.

    Example: heatsmooth recompute --from runs/certified --alpha 0.01 --out runs/certified-alpha
    """

    source: Path = field(metadata={"flag": "--from"})
    """A certified run."""
    out: Path | None = None
    """Run directory for the new certificates (default: only show them)."""
    tsv: Path | None = None
    """Also write a log as Cohen's code does."""
    changes: RecomputedSettings = field(
        default_factory=RecomputedSettings, metadata=grouped("Certificate", of=Settings)
    )

    def run(self, progress: Progress = silent) -> "CertificationResult | None":  # noqa: ARG002  # it takes no time
        """Recompute the certificates, into ``out`` if it is given; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(None, self.recomputed)

    def _counts(self, counted: "CertifiedRun", settings: Settings) -> "list[Certificate]":
        """The stored counts, with what the new norm needs and without what it does not allow."""
        from heatsmooth.results.certificates import read_certificates

        counts = read_certificates(self.source) if self.out is None else counted.all_counts()
        if not settings.basis.usual:
            counts = [counted.sized(item) for item in counts]
        if settings.radius_norm != counted.settings.radius_norm:
            counts = [replace(item, clever=None) for item in counts]
        return counts

    def recomputed(self) -> "CertificationResult":
        from heatsmooth.certification.certificates import certificate
        from heatsmooth.commands.certified import CertifiedRun, summarised
        from heatsmooth.errors import require
        from heatsmooth.results.logs import write_log
        from heatsmooth.results.schema import to_json
        from heatsmooth.runs import Records, Run

        counted = CertifiedRun.read(self.source, "source")
        settings = replace(counted.settings, **self.changes)
        class_from = counted.settings.class_from
        require(
            counted.settings.n_wrong is None or settings.class_from == class_from,
            f"`class_from`: expected {class_from}, which decided the samples of wrong images, got "
            f"{settings.class_from}; leave it out",
        )
        certificates = [certificate(item, settings) for item in self._counts(counted, settings)]
        if self.out is not None:
            made_of = {"certificate": settings.describe(), "counts": str(self.source.resolve())}
            with Run(self.out, "certify", counted.info.settings | made_of) as run:
                with Records(self.out / "certificates.jsonl") as records:
                    records.keep(lambda _: False)
                    for item in certificates:
                        records.append(to_json(item))
                run.update(status="done", model_hash=counted.info.chosen.model)
        if self.tsv is not None:
            write_log(certificates, self.tsv)
        return summarised(certificates, settings, recomputed=str(self.source), asked=counted.asked)
