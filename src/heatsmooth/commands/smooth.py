"""``heatsmooth smooth``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import Computing, ImageFiles, Network
from heatsmooth.commands.options import grouped
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent
from heatsmooth.training.field import Consistency, Denoising, Macer, Method, Rival, SmoothMix, task
from heatsmooth.training.settings import Heat, HeatChanges, Plan, PlanChanges, Preset, Saving

if TYPE_CHECKING:
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier
    from heatsmooth.results.training import TrainingResult
    from heatsmooth.training.dial import Kept


@dataclass(frozen=True, kw_only=True)
class Smooth(Command):
    """Make a trained network robust to L2 perturbations, or with --noise and --norm to others: one epoch, no labels.

    Example: heatsmooth smooth --data fashion-mini --from runs/baseline --sigma 0.25 --out runs/smoothed
    """

    images: ImageFiles
    network: Network
    sigma: float
    """Standard deviation of the noise, in [0, 1] pixels."""
    out: Path
    """Run directory; repeating the command continues it."""
    preset: Preset | None = None
    """Our own settings of heat (bootcamp, the default), or those of the paper."""
    method: Method = "heat"
    """HeatSmoothing, or what others do, without labels."""
    keep: float | None = None
    """Share of the network's answers on clean images to keep, as 0.9."""
    held_out: str | None = None
    """Images for `keep` that the network has not seen, named like `data`. Of `data` itself, every second test image is
    used, from the second on; certify the others (--stride 2)."""
    limit_train: int | None = None
    """Smooth on a fixed subset of this many images."""
    stream: bool = False
    """Read hf:NAME as a stream, --limit-train images per epoch. Nothing is measured at the end."""
    heat: HeatChanges = field(
        default_factory=HeatChanges, metadata=grouped("Objective", of=Heat, flags={"weight": "--penalty-weight"})
    )
    plan: PlanChanges = field(default_factory=PlanChanges, metadata=grouped("Optimisation", of=Plan))
    consistency: Consistency = field(default=Consistency(), metadata=grouped("Other methods"))
    macer: Macer = field(default=Macer(), metadata=grouped("Other methods"))
    smoothmix: SmoothMix = field(default=SmoothMix(), metadata=grouped("Other methods"))
    denoised: Denoising = field(default=Denoising(), metadata=grouped("Other methods"))
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))
    saving: Saving = field(default=Saving(), metadata=grouped("Running"))

    @property
    def rival(self) -> Rival | None:
        """The settings of a method of others, if one is asked for."""
        held: Rival | None = None if self.method == "heat" else getattr(self, self.method)
        return held

    def run(self, progress: Progress = silent) -> "TrainingResult | None":
        """Smooth the network without labels and leave the result in ``out``."""
        from heatsmooth.commands.training import check_fit, recorded, unlabelled_and_test
        from heatsmooth.identity import network_settings
        from heatsmooth.models import Classifier, identify, normalising_deviation, refuse_lipschitz
        from heatsmooth.models.program import refuse_program
        from heatsmooth.results.training import TrainingResult
        from heatsmooth.training.execution import Execution, few_steps, unlabelled_feed
        from heatsmooth.training.methods import fitted, smoothed

        images, test = unlabelled_and_test(
            self.images, self.network.size, self.limit_train, progress, stream=self.stream
        )
        seed, device = self.computing.seed, self.computing.device
        teacher = self.network.load(images)
        refuse_program(teacher)
        refuse_lipschitz(
            teacher, "it needs no smoothing: use heatsmooth certify without --sigma, or smooth the network it is from"
        )
        deviation = normalising_deviation(teacher)
        chosen = task(
            self.sigma,
            preset=self.preset,
            method=self.rival,
            keep=self.keep,
            deviation=deviation,
            **self.heat,
            **self.plan,
        )
        teacher.spec = replace(teacher.spec, size=teacher.spec.size or images.size)
        held_out = self._held_out(images.name, progress)
        check_fit(teacher, images, *(some for some in (test, held_out) if some is not None))
        chosen = fitted(chosen, teacher, images, seed=seed, device=device)

        def work() -> Classifier:
            execution = Execution(seed=seed, device=device, out=self.out, saving=self.saving, progress=progress)
            return smoothed(teacher, images, chosen, execution, held_out)  # type: ignore[return-value]  # a copy

        def measure(network: Classifier) -> "TrainingResult":
            same = test is not None and test.name == images.name
            result = TrainingResult(
                command="smooth",
                out=str(self.out),
                sigma=self.sigma,
                method=None if chosen.preset else chosen.method,
                preset=chosen.preset,
                few_steps=few_steps(chosen.plan, unlabelled_feed(images, chosen.plan, seed).steps_per_epoch),
                tested_on="the images it was smoothed on" if same else None,
            )
            result = self._with_kept(result, network, held_out)
            return result if test is None else self._measured(result, teacher, network, test, progress)

        settings = {
            "command": "smooth",
            "data": images.describe(),
            **network_settings(teacher=identify(teacher, images.shape)),
            **chosen.describe(),
            **({} if held_out is None else {"held_out": held_out.describe()}),
            "seed": seed,
        }
        return recorded(self.out, settings, device, work, measure)

    def _held_out(self, trained_on: str, progress: Progress) -> "ImageSet | None":
        """The images that the dial measures on; None if the person names none, or those that it is trained on.

        A folder has no test part. Then some of its images are left out of the epoch.
        """
        if self.held_out is None:
            return None
        require(self.keep is not None, "`held_out`: expected `keep` beside it, got none; name a share, as 0.9")
        whole = replace(self.images, data=self.held_out).load(self.network.size, progress=progress).without_labels()
        if whole.name == trained_on:
            return None
        return whole.strided(2, start=1) if self.held_out == self.images.data else whole

    def _with_kept(
        self, result: "TrainingResult", network: "Classifier", held_out: "ImageSet | None"
    ) -> "TrainingResult":
        """The result with the share that the network keeps, if one was asked for."""
        kept: Kept | None = getattr(network, "kept", None)
        if kept is None:
            return result
        left_out = (
            "images left out of the epoch: a network trained on them agrees too easily; name others by --held-out"
        )
        return replace(
            result,
            keep=kept.asked,
            kept=kept.share,
            kept_interval=(kept.low, kept.high),
            kept_images=kept.images,
            kept_on=left_out if held_out is None else held_out.name,
            kept_factor=kept.factor,
            kept_more=kept.more,
        )

    def _measured(
        self,
        result: "TrainingResult",
        teacher: "Classifier",
        network: "Classifier",
        test: "ImageSet",
        progress: Progress,
    ) -> "TrainingResult":
        """The accuracy of both networks on the test images, where those have labels."""
        from heatsmooth.commands.training import accuracies
        from heatsmooth.models import device_of

        result = replace(result, left_out=test.left_out or None)
        if test.labels is None:
            return result
        seed = self.computing.seed
        noise = self.heat.get("noise", "gaussian")
        teacher.to(device_of(network))
        teacher_clean, teacher_noisy = accuracies(teacher, test, self.sigma, seed, progress, noise=noise)
        clean, noisy = accuracies(network, test, self.sigma, seed, progress, noise=noise)
        return replace(
            result,
            test_images=len(test),
            accuracy=clean,
            accuracy_under_noise=noisy,
            teacher_accuracy=teacher_clean,
            teacher_accuracy_under_noise=teacher_noisy,
        )
