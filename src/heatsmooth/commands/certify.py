"""``heatsmooth certify``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import RUNNING, WHICH, Images, Network, Shard
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heatsmooth.commands.certified import CertificationResult
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier
    from heatsmooth.results.certificates import Certificate
    from heatsmooth.results.deterministic import NetworkCertificate

MAIN_SETTINGS = ("sigma", "n", "n0", "alpha")


@dataclass(frozen=True, kw_only=True)
class Certify(Command):
    """Certify the radius of each image: of the average over noise, or without --sigma of a network made by distill.

    Example: heatsmooth certify --data fashion-mini --from runs/smoothed --sigma 0.25 --images 100 --out runs/certified
    """

    images: Images
    network: Network
    settings: Settings | None = field(default=None, metadata=grouped("Certificate", main=MAIN_SETTINGS))
    """None: deterministic certificates."""
    out: Path
    """Run directory; repeating the command continues it."""
    shard: Shard = field(default=Shard(), metadata=WHICH)
    """Part I of N parts of the images, for job arrays."""
    tsv: Path | None = field(default=None, metadata={"group": "Certificate"})
    """Also write a log as Cohen's code does."""
    sampling: Sampling = field(default=Sampling(), metadata=grouped("Running"))
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def run(self, progress: Progress = silent) -> "CertificationResult | None":
        """Certify the images, or this shard's part of them, into ``out``; None in a process that follows."""
        from heatsmooth.commands.sharing import finish, share_of
        from heatsmooth.device import accelerator
        from heatsmooth.identity import network_settings
        from heatsmooth.models import identify
        from heatsmooth.results.schema import to_json
        from heatsmooth.runs import Records, Run

        images = self.images.load(self.network.size, progress=progress)
        model = self.network.load(images)
        self._check(model)
        processes = accelerator(self.device)
        model.to(processes.device)
        shard, part = share_of(processes, self.shard)
        mine = range(shard.part - 1, len(images), shard.of)
        identity = {
            "data": images.describe(),
            **network_settings(model=identify(model, images.shape)),
            **self._recorded_settings(),
        }
        with Run(self.out, "certify", identity, part=part) as run:
            with Records(self.out / f"certificates{part}.jsonl") as records:
                for item in self._certificates(model, images, mine, progress):
                    records.append(to_json(item))
            finish(run, processes, str(identity["model"]))
        processes.wait_for_everyone()
        return self._summary(images) if processes.is_main_process else None

    def _check(self, model: "Classifier") -> None:
        """Refuse what deterministic certificates do not have: another kind of network, and Cohen's log."""
        from heatsmooth.errors import require
        from heatsmooth.models import DeterministicRadius

        if self.settings is None:
            DeterministicRadius(model)
            require(self.tsv is None, "`tsv`: expected `sigma` beside it, got none; that log cannot state a proof")

    def _recorded_settings(self) -> dict[str, object]:
        """What the certificates depend on, beside the images and the network."""
        from heatsmooth.certification.sampling import CHUNK
        from heatsmooth.results.deterministic import SETTINGS

        if self.settings is None:
            return {"certificate": SETTINGS}
        return {
            "certificate": self.settings.describe(),
            "means": self.sampling.means,
            "compiled": self.sampling.compiled,
            "chunk": CHUNK,
            "seed": self.sampling.seed,
            **({"clever": self.sampling.clever} if self.sampling.clever else {}),
        }

    def _certificates(
        self, model: "Classifier", images: "ImageSet", mine: range, progress: Progress
    ) -> "Iterator[Certificate] | Iterator[NetworkCertificate]":
        """The certificates of the images at the positions ``mine`` that are not there yet."""
        from heatsmooth.certification.certificates import certify_each
        from heatsmooth.certification.deterministic import certify_network
        from heatsmooth.results.certificates import read_certificates
        from heatsmooth.results.deterministic import read_network_certificates

        if self.settings is None:
            proven = {item.index: item for item in read_network_certificates(self.out)}
            return certify_network(model, images, known=proven, positions=mine, progress=progress)
        known = {item.index: item for item in read_certificates(self.out)}
        return certify_each(model, images, self.settings, self.sampling, positions=mine, known=known, progress=progress)

    def _summary(self, images: "ImageSet") -> "CertificationResult":
        """What all certificates of the run say together."""
        from heatsmooth.commands.certified import other_noise, proven_summary, summarised
        from heatsmooth.results.certificates import read_certificates
        from heatsmooth.results.deterministic import read_network_certificates
        from heatsmooth.results.logs import write_log

        run: dict[str, Any] = {"out": str(self.out), "asked": len(images), "left_out": images.left_out or None}
        if self.settings is None:
            return proven_summary(read_network_certificates(self.out), **run)
        certificates = read_certificates(self.out)
        if self.tsv is not None:
            write_log(certificates, self.tsv)
        note = other_noise(self.network.source, self.settings)
        return summarised(certificates, self.settings, note=note, **run)
