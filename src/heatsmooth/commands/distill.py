"""``heatsmooth distill``."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import Computing, ImageFiles, Network
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent
from heatsmooth.training.settings import DISTILLING, Distillation, Plan, Saving

if TYPE_CHECKING:
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier
    from heatsmooth.results.training import TrainingResult


@dataclass(frozen=True, kw_only=True)
class Distill(Command):
    """Teach a student whose radius is proven in one pass, from any trained network, without labels.

    The student is Lipschitz by construction. So certify needs no noise for it, and its certificates cover the network
    itself and cannot be false.

    Example: heatsmooth distill --data fashion-mini --from runs/baseline --out runs/student
    """

    images: ImageFiles
    network: Network
    out: Path
    """Run directory; repeating the command continues it."""
    student: str = "lipschitz-small"
    """Architecture of the student: lipschitz-tiny, -small or -large. Naming it as --model works too."""
    choices: Distillation = field(default=Distillation(), metadata=grouped("Objective", main=("radius",)))
    plan: Plan = field(default=DISTILLING, metadata=grouped("Optimisation", main=("epochs",)))
    limit_train: int | None = None
    """Distil on a fixed subset of this many images."""
    stream: bool = False
    """Read hf:NAME as a stream, --limit-train images per epoch. Nothing is measured at the end."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))
    saving: Saving = field(default=Saving(), metadata=grouped("Running"))

    def run(self, progress: Progress = silent) -> "TrainingResult | None":
        """Distil the network without labels and leave the student in ``out``."""
        from heatsmooth.commands.training import check_fit, recorded, unlabelled_and_test
        from heatsmooth.identity import network_settings
        from heatsmooth.models import count_classes, identify
        from heatsmooth.training.execution import Execution
        from heatsmooth.training.students import Lesson, distilled, first_images, new_student

        network, name = self._names()
        images, test = unlabelled_and_test(self.images, network.size, self.limit_train, progress, stream=self.stream)
        seed = self.computing.seed
        teacher = network.load(images)
        check_fit(teacher, images, *(() if test is None else (test,)))
        classes = count_classes(teacher, first_images(images))
        student = new_student(name, classes, images.shape, self.choices, seed)

        def work() -> "Classifier":
            execution = Execution(
                seed=seed, device=self.computing.device, out=self.out, saving=self.saving, progress=progress
            )
            return distilled(teacher, student, images, Lesson(self.choices, self.plan), execution)

        settings = {
            "command": "distill",
            "data": images.describe(),
            **network_settings(teacher=identify(teacher, images.shape)),
            "student": student.spec.describe(),
            "distillation": asdict(self.choices),
            "plan": self.plan.describe(),
            "seed": seed,
        }
        return recorded(
            self.out, settings, self.computing.device, work, lambda made: self._measured(teacher, made, test, progress)
        )

    def _names(self) -> tuple[Network, str]:
        """The teacher, and the architecture of the student, which may also be named as ``model``."""
        from heatsmooth.models.lipschitz import LIPSCHITZ

        if self.network.model in LIPSCHITZ:
            return replace(self.network, model=None), self.network.model
        return self.network, self.student

    def _measured(
        self, teacher: "Classifier", student: "Classifier", test: "ImageSet | None", progress: Progress
    ) -> "TrainingResult":
        """The clean accuracy of both networks on the test images, where those have labels."""
        from heatsmooth.evaluate import accuracy
        from heatsmooth.models import device_of
        from heatsmooth.results.training import TrainingResult

        result = TrainingResult(command="distill", out=str(self.out))
        if test is None or test.labels is None:
            return result if test is None else replace(result, left_out=test.left_out or None)
        return replace(
            result,
            left_out=test.left_out or None,
            test_images=len(test),
            accuracy=accuracy(student, test, progress=progress),
            teacher_accuracy=accuracy(teacher.to(device_of(student)), test, progress=progress),
        )
