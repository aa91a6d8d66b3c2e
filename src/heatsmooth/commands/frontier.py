"""``heatsmooth frontier``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.certify import Certify
from heatsmooth.commands.command import Command, show_table
from heatsmooth.commands.inputs import Computing, ImageFiles, Images, Network
from heatsmooth.commands.options import grouped
from heatsmooth.commands.smooth import Smooth
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent
from heatsmooth.training.settings import Plan, PlanChanges

if TYPE_CHECKING:
    from heatsmooth.results.certificates import Certificates
    from heatsmooth.results.frontier import FrontierPoint, FrontierResult
    from heatsmooth.results.training import TrainingResult

AS_IT_IS = "as-it-is"


@dataclass(frozen=True, kw_only=True)
class Frontier(Command):
    """Show what robustness costs one network: smooth it with several --keep, certify each, and recommend one.

    Example: heatsmooth frontier --data fashion-mini --from runs/baseline --sigma 0.25 --out runs/frontier
    """

    images: ImageFiles
    network: Network
    sigma: float
    """Standard deviation of the noise, in [0, 1] pixels."""
    out: Path
    """Directory of all runs; repeating the command continues them."""
    keeps: tuple[float, ...] = (0.97, 0.95, 0.9, 0.85, 0.8)
    """Shares of the network's answers to keep, as 0.95,0.9,0.8."""
    held_out: str | None = None
    """Images that the network has not seen, named like `data` (default: every second test image of `data`)."""
    certified: int = field(default=200, metadata={"flag": "--images"})
    """Test images to certify, evenly spread; none of them is held out."""
    n: int = 1000
    """Noise samples per image."""
    radii: tuple[float, ...] = (0.0, 0.25, 0.5)
    """Radii to compare certified accuracy at."""
    limit_train: int | None = None
    """Smooth on a fixed subset of this many images."""
    plan: PlanChanges = field(default_factory=PlanChanges, metadata=grouped("Optimisation", of=Plan))
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))

    def __post_init__(self) -> None:
        require(bool(self.keeps), "`keeps`: expected shares as 0.95,0.9, got none")
        for keep in self.keeps:
            require(0 < keep < 1, f"`keeps`: expected shares above 0 and below 1, got {keep}")
        require(bool(self.radii), "`radii`: expected radii as 0,0.25,0.5, got none")
        require(self.certified > 0, f"`certified`: expected at least 1 image, got {self.certified}")

    def run(self, progress: Progress = silent) -> "FrontierResult | None":
        """Fill ``out`` with a run per point and the page; None in a process that follows."""
        from heatsmooth.device import accelerator
        from heatsmooth.reporting import build_report
        from heatsmooth.results.frontier import FRONTIER_FILE, FrontierResult, recommended

        trained = {f"keep-{keep:g}": self._smoothed(keep).run(progress) for keep in self.keeps}
        self._certify(AS_IT_IS, self.network, progress)
        for name in trained:
            self._certify(name, replace(self.network, source=self.out / name, mean=None, std=None), progress)
        if not accelerator(self.computing.device).is_main_process:
            return None
        points = (self._point(AS_IT_IS, None), *(self._point(name, result) for name, result in trained.items()))
        certificates = self._certificates(AS_IT_IS)
        images, labelled = len(certificates), certificates.correct is not None
        result = FrontierResult(
            out=str(self.out),
            sigma=self.sigma,
            labelled=labelled,
            images=images,
            n=self.n,
            radii=self.radii,
            points=points,
            recommendation=recommended(points, self.radii, images, labelled=labelled) + self._seen(),
        )
        result.write(self.out / FRONTIER_FILE)
        page = self.out / "report.html"
        build_report([self.out], page, title=f"What robustness costs at σ={self.sigma:g}")
        return replace(result, report=str(page))

    def _smoothed(self, keep: float) -> Smooth:
        return Smooth(
            images=self.images,
            network=self.network,
            sigma=self.sigma,
            out=self.out / f"keep-{keep:g}",
            keep=keep,
            held_out=self.held_out or self.images.data,
            limit_train=self.limit_train,
            plan=self.plan,
            computing=self.computing,
        )

    def _certify(self, name: str, network: Network, progress: Progress) -> None:
        Certify(
            images=self._certified_images(),
            network=replace(network, model=self.network.code),
            settings=Settings(self.sigma, n=self.n, class_from="clean"),
            out=self.out / f"{name}-certified",
            sampling=Sampling(seed=self.computing.seed),
            device=self.computing.device,
        ).run(progress)

    def _certified_images(self) -> Images:
        """Every second test image or fewer, from the first on: those that are not held out."""
        stride = max(1, len(self.images.load(self.network.size)) // self.certified)
        return self.images.every(stride + stride % 2, self.certified)

    def _seen(self) -> str:
        """What the recommendation adds if the certified images were also smoothed on: a folder has no test part."""
        smoothed_on, certified = (
            self.images.load(self.network.size, "train").name,
            self.images.load(self.network.size).name,
        )
        return " The networks were smoothed on the same images that are certified." if smoothed_on == certified else ""

    def _certificates(self, name: str) -> "Certificates":
        from heatsmooth.results.certificates import Certificates

        return Certificates.read(self.out / f"{name}-certified")

    def _point(self, name: str, trained: "TrainingResult | None") -> "FrontierPoint":
        from heatsmooth.results.frontier import FrontierPoint

        held = self._certificates(name)
        kept = None if trained is None else trained.kept
        if held.correct is None:
            certified = [float(((held.radii >= r) & ~held.abstained).mean()) for r in self.radii]
            clean, mean = 1.0 if kept is None else kept, float(held.radii.mean())
        else:
            certified = held.certified_accuracy(self.radii).tolist()
            clean, mean = float(held.one_pass_correct.mean()), held.average_certified_radius
        return FrontierPoint(
            name=name,
            keep=None if trained is None else trained.keep,
            kept=kept,
            kept_interval=None if trained is None else trained.kept_interval,
            clean=clean,
            certified=tuple(certified),
            mean_radius=mean,
        )

    def show(self, result: Any) -> None:
        """Print the table, and the recommendation."""
        from heatsmooth.reporting.frontiers import frontier_rows

        show_table(frontier_rows(result), f"What robustness costs, σ={result.sigma:g}, {result.images} images")
        print(result.recommendation)
        print(f"Report: {result.report}")
