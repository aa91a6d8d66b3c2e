"""``heatsmooth demo``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.attack import Attack, AttackSummary
from heatsmooth.commands.audit import Audit
from heatsmooth.commands.certified import CertificationResult
from heatsmooth.commands.certify import Certify
from heatsmooth.commands.command import Command, show_table
from heatsmooth.commands.distill import Distill
from heatsmooth.commands.inputs import Computing, ImageFiles, Network
from heatsmooth.commands.options import grouped
from heatsmooth.commands.smooth import Smooth
from heatsmooth.commands.train import Train
from heatsmooth.progress import Progress, Stages, brief, silent
from heatsmooth.results.audit import AuditResult, AuditSettings
from heatsmooth.results.training import TrainingResult
from heatsmooth.training.settings import DISTILLING, Plan

FILES, SIGMA = ImageFiles(data="fashion-mini"), 0.25
BEFORE, AFTER, STUDENT = "baseline", "smoothed", "distilled"
TRAINING, SMOOTHING, AUDITING = "training a baseline", "smoothing it without labels", "auditing the certificates"
TESTING = {name: f"certifying and attacking the {name} network" for name in (BEFORE, AFTER)}
PROVING = "distilling a student with a proven radius"
STAGES = (TRAINING, SMOOTHING, *TESTING.values(), AUDITING, PROVING)
"""What the demo does, in order; one line of progress each."""
TAUGHT = 60
"""Training images of the student, per image that is certified by sampling."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the demo found; by network, ``baseline`` and ``smoothed``."""

    command: str = "demo"
    smoothing: TrainingResult
    certified: dict[str, CertificationResult]
    attacked: dict[str, AttackSummary]
    audit: AuditResult
    proven: CertificationResult
    """Of the student that is distilled from the baseline."""
    report: str


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Tell the whole story on the embedded images: train, smooth, certify, attack, audit, distil, report.

    Example: heatsmooth demo --out heatsmooth-demo
    """

    out: Path = Path("heatsmooth-demo")
    """Directory of the runs; repeating the command continues them."""
    epochs: int = 5
    """Epochs of the baseline."""
    images: int = 100
    """Number of test images to certify and attack."""
    verbose: bool = False
    """Show the progress of every step, also where there is no terminal."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))

    def run(self, progress: Progress = silent) -> Story | None:
        """Run every step; None in a process that follows."""
        from heatsmooth.reporting import build_report

        out, computing = self.out, self.computing
        stages, steps = Stages(progress, "demo", STAGES), progress if self.verbose else brief(progress)
        plan = Plan(epochs=self.epochs, lr=0.2, warmup=0.15, weight_decay=5e-4)
        stages.begin(TRAINING)
        Train(images=FILES, plan=plan, out=out / BEFORE, computing=computing).run(steps)
        stages.begin(SMOOTHING)
        smoothing = Smooth(
            network=Network(source=out / BEFORE), images=FILES, sigma=SIGMA, out=out / AFTER, computing=computing
        ).run(steps)
        certified, attacked = {}, {}
        for name in (BEFORE, AFTER):
            stages.begin(TESTING[name])
            network, images = Network(source=out / name), FILES.every(10, self.images)
            certified[name] = Certify(
                network=network,
                images=images,
                settings=Settings(SIGMA, n=1000),
                out=out / f"{name}-certified",
                sampling=Sampling(seed=computing.seed),
                device=computing.device,
            ).run(steps)
            attacked[name] = Attack(
                network=network, images=images, out=out / f"{name}-attacked", computing=computing
            ).run(steps)
        stages.begin(AUDITING)
        audit = Audit(
            network=Network(source=out / AFTER),
            images=FILES.every(20, max(1, self.images // 2)),
            settings=AuditSettings(sigma=SIGMA, n=500, steps=20, noise_samples=16),
            teacher=out / BEFORE,
            out=out / f"{AFTER}-audited",
            computing=computing,
        ).run(steps)
        stages.begin(PROVING)
        proven = self._proven(steps)
        if smoothing is None or proven is None or not isinstance(audit, AuditResult):
            return None
        build_report([out], out / "report.html", title="heatsmooth demo")
        stages.end()
        return Story(
            smoothing=smoothing,
            certified={name: result for name, result in certified.items() if result is not None},
            attacked={name: result for name, result in attacked.items() if result is not None},
            audit=audit,
            proven=proven,
            report=str(out / "report.html"),
        )

    def _proven(self, progress: Progress) -> CertificationResult | None:
        """Distil a student whose radius is proven, and certify all test images in one pass each."""
        Distill(
            network=Network(source=self.out / BEFORE),
            images=FILES,
            student="lipschitz-tiny",
            plan=replace(DISTILLING, epochs=3, batch_size=64),
            limit_train=TAUGHT * self.images,
            out=self.out / STUDENT,
            computing=self.computing,
        ).run(progress)
        return Certify(
            network=Network(source=self.out / STUDENT),
            images=FILES.every(1, None),
            out=self.out / f"{STUDENT}-certified",
            device=self.computing.device,
        ).run(progress)

    def show(self, result: Any) -> None:
        """Print both networks side by side, and the verdict of the audit."""
        story: Story = result
        smoothing = story.smoothing
        accuracies = {
            BEFORE: (smoothing.teacher_accuracy, smoothing.teacher_accuracy_under_noise),
            AFTER: (smoothing.accuracy, smoothing.accuracy_under_noise),
        }
        rows = [_row(name, *accuracies[name], story.certified[name], story.attacked[name]) for name in (BEFORE, AFTER)]
        show_table(rows, f"{FILES.data}, σ={SIGMA}, {self.images} test images certified and attacked")
        print(
            "Accuracies: the network in one pass. Certified: its Gaussian average, false for an image with probability "
            "at most 0.001; abstentions count as errors. Attacked: the median L2 distance of DDN on the network."
        )
        print(f"Audit of the smoothed network: {story.audit.verdict.text}")
        show_table([_proven_row(story.proven)], f"{FILES.data}, {story.proven.images} test images, one pass each")
        print(
            "Proven: the distilled network itself keeps its class within the radius. The proof follows from its "
            "weights, without noise. It has no probability of error. It is about another network than the table above."
        )
        print(f"Report: {story.report}")


def _row(
    name: str, clean: float | None, noisy: float | None, certified: CertificationResult, attacked: AttackSummary
) -> dict[str, str]:
    from heatsmooth.statistics.radii import round_down

    distance = attacked.median_distance_of_attacked
    return {
        "network": name,
        "clean": f"{clean:.1%}",
        "under noise": f"{noisy:.1%}",
        "certified ≥ 0.25": f"{(certified.certified_accuracy or {})['0.25']:.1%}",
        "mean radius (ACR)": f"{round_down(certified.average_certified_radius or 0.0, 3):.3f}",
        "attacked at": "beyond reach" if distance is None else f"{distance:.3f}",
    }


def _proven_row(proven: CertificationResult) -> dict[str, str]:
    from heatsmooth.statistics.radii import round_down

    return {
        "network": STUDENT,
        "clean": f"{proven.one_pass_accuracy:.1%}",
        "proven ≥ 0.25": f"{(proven.certified_accuracy or {})['0.25']:.1%}",
        "mean radius (ACR)": f"{round_down(proven.average_certified_radius or 0.0, 3):.3f}",
    }
