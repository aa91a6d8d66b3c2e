"""``heatsmooth train``."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import FILES, NETWORK, Computing, ImageFiles, check_normalisation
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent
from heatsmooth.training.settings import Baseline, Plan, Saving

if TYPE_CHECKING:
    from heatsmooth.results.training import TrainingResult


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a network with labels: a baseline to smooth, or a method to compare with.

    Example: heatsmooth train --data fashion-mini --model small --epochs 4 --out runs/baseline
    """

    images: ImageFiles
    out: Path
    """Run directory; repeating the command continues it."""
    model: str = "small"
    """Architecture: small, …, package.module:callable, hf:, timm: or torchvision:NAME."""
    choices: Baseline = field(
        default=Baseline(), metadata=grouped("smoothadv and adversarial", main=("method", "sigma"))
    )
    plan: Plan = field(
        default=Plan(epochs=20, lr=0.2, warmup=0.15, weight_decay=5e-4),
        metadata=grouped("Optimisation", main=("epochs",)),
    )
    limit_train: int | None = None
    """Train on a fixed subset of this many images."""
    image_size: int | None = field(default=None, metadata=FILES)
    """Side of the centre crop, in pixels (default: at most 224)."""
    mean: tuple[float, ...] | None = field(default=None, metadata=NETWORK)
    """Mean of the normalisation inside the network, as 0.5 or 0.49,0.48,0.45 (default: that of the images)."""
    std: tuple[float, ...] | None = field(default=None, metadata=NETWORK)
    """Standard deviation of the normalisation inside the network."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))
    saving: Saving = field(default=Saving(), metadata=grouped("Running"))

    def __post_init__(self) -> None:
        check_normalisation(self.mean, self.std)

    def run(self, progress: Progress = silent) -> "TrainingResult | None":
        """Train the network and leave it in ``out``."""
        import torch

        from heatsmooth.commands.training import accuracies, check_fit, recorded, train_and_test
        from heatsmooth.models import Classifier, NetworkSpec, build
        from heatsmooth.noise import mixed_seed
        from heatsmooth.results.training import TrainingResult
        from heatsmooth.training.methods import train

        images, test = train_and_test(self.images, self.image_size, self.limit_train, progress)
        seed, device = self.computing.seed, self.computing.device
        mean, std = images.statistics()
        classes = int(images.known_labels().max()) + 1
        spec = NetworkSpec(self.model, classes, images.shape[0], self.mean or mean, self.std or std, images.size)

        def work() -> Classifier:
            torch.manual_seed(mixed_seed(seed, "weights"))
            network = build(spec)
            check_fit(network, images, test)
            how = {"seed": seed, "device": device, "out": self.out, "saving": self.saving, "progress": progress}
            return train(network, images, choices=self.choices, plan=self.plan, **how)  # type: ignore[arg-type, return-value]  # a copy

        def measure(network: Classifier) -> TrainingResult:
            clean, noisy = accuracies(network, test, self.choices.sigma, seed, progress)
            return TrainingResult(
                command="train",
                out=str(self.out),
                method=self.choices.method,
                test_images=len(test),
                accuracy=clean,
                accuracy_under_noise=noisy,
            )

        settings = {
            "command": "train",
            "data": images.describe(),
            "network": spec.describe(),
            "choices": asdict(self.choices),
            "plan": self.plan.describe(),
            "seed": seed,
        }
        return recorded(self.out, settings, device, work, measure)
