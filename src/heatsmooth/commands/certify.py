"""``heatsmooth certify``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.certification.settings import SAMPLING, Budget, Sampling, Settings
from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import RUNNING, WHICH, Images, Network, Shard
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heatsmooth.certification.spending import Task
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
    budget: Budget | None = field(default=None, metadata={"group": "Certificate"})
    """Samples or time for all images together. It is spent where it decides most of the `radii`. An image gets at most
    `n` samples. Shards share the samples; each has all of the time."""
    prior: Path | None = field(default=None, metadata=SAMPLING)
    """A certified run with another `seed`: if its images are similar, `radii` need fewer samples. It cannot make a
    certificate false."""
    tsv: Path | None = field(default=None, metadata={"group": "Certificate"})
    """Also write a log as Cohen's code does."""
    sampling: Sampling = field(default=Sampling(), metadata=grouped("Running"))
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def run(self, progress: Progress = silent) -> "CertificationResult | None":
        """Certify the images, or this shard's part of them, into ``out``; None in a process that follows."""
        return replace(self, settings=self._complete_settings())._run(progress)

    def _complete_settings(self) -> Settings | None:
        """The settings with what ``budget`` and ``prior`` add to them."""
        from heatsmooth.commands.certified import prior_of
        from heatsmooth.errors import require

        extra = next((name for name in ("budget", "prior") if getattr(self, name) is not None), None)
        if self.settings is None:
            require(extra is None, f"`{extra}`: expected `sigma` beside it, got none; name it")
            return None
        settings, adaptive = self.settings, self.settings.adaptive or self.budget is not None
        if extra is None:
            used = adaptive or not settings.radii
            require(used, "`radii`: expected `adaptive` or `budget` beside it, got neither; add one, or leave it out")
            return settings
        needed = "`radii`" if self.budget is not None else "`adaptive` and `radii`"
        decides = adaptive and bool(settings.radii)
        require(decides, f"`{extra}`: expected {needed} beside it, got none; add them, as --radii 0.25,0.5")
        prior = None if self.prior is None else prior_of(self.prior, settings, self.sampling.seed)
        return replace(settings, adaptive=adaptive, prior=prior)

    def _run(self, progress: Progress) -> "CertificationResult | None":
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
        task = self._task(images, shard)
        with Run(self.out, "certify", identity, part=part) as run:
            items = (
                self._certificates(model, images, mine, progress)
                if task is None
                else self._within_budget(model, task, self.out / f"rounds{part}.jsonl", progress)
            )
            with Records(self.out / f"certificates{part}.jsonl") as records:
                for item in items:
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
            **({} if self.budget is None else {"budget": str(self.budget)}),
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

    def _task(self, images: "ImageSet", shard: Shard) -> "Task | None":
        """What a shard certifies within its share of the budget; None without a budget."""
        from heatsmooth.certification.spending import Task, positions_of

        if self.budget is None or self.settings is None:
            return None
        mine = positions_of(images, range(shard.part - 1, len(images), shard.of))
        task = Task(images, mine, self.settings, self.sampling, self.budget.share(shard.part, shard.of))
        task.check()
        return task

    def _within_budget(
        self, model: "Classifier", task: "Task", path: Path, progress: Progress
    ) -> "Iterator[Certificate]":
        """The certificates of a task that are not there yet, after its budget is spent.

        Each round is recorded in ``path`` before the next one is drawn. A command that is repeated continues after the
        last one.
        """
        from heatsmooth.certification.spending import certify_within
        from heatsmooth.results.certificates import read_certificates
        from heatsmooth.results.rounds import read_rounds
        from heatsmooth.results.schema import to_json
        from heatsmooth.runs import Records

        known = {item.index for item in read_certificates(self.out)}
        if task.positions.keys() <= known:
            return
        with Records(path) as rounds:
            drawn = read_rounds(path)
            for item in certify_within(
                model, task, rounds=drawn, record=lambda new: rounds.append(to_json(new)), progress=progress
            ):
                if item.index not in known:
                    yield item

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
