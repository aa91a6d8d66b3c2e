"""``heatsmooth check``."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.command import Command, facts, show_fields
from heatsmooth.commands.inputs import Computing, Network, SomeImages
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent
from heatsmooth.settings import check_at_least, check_positive

if TYPE_CHECKING:
    from heatsmooth.checking import NetworkCheck


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Show what heatsmooth understood of a network, and warn of what looks wrong with it, its inputs or its labels.

    Example: heatsmooth check --from weights.pt --model resnet50 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
    """

    network: Network
    images: SomeImages = field(default=SomeImages())
    sigma: float = 0.25
    """Standard deviation of the noise to try, in [0, 1] pixels."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))

    def __post_init__(self) -> None:
        check_positive(self, "sigma")
        check_at_least(self.images, 1, "count")

    def run(self, progress: Progress = silent) -> "NetworkCheck":
        """Inspect the network, and try it on images if the person names a data set."""
        from heatsmooth.checking import NetworkCheck, Trial, examples_for, inspect, try_out
        from heatsmooth.device import accelerator, exact_float32
        from heatsmooth.models import device_of

        files = self.images.files
        images = None
        if files is not None:
            images = files.load(self.network.size, progress=progress).sampled(self.images.count)
        model = self.network.load(images).to(accelerator(self.computing.device).device)
        with exact_float32():
            examples = examples_for(model, images, self.network.image_size).to(device_of(model))
            network, warnings = inspect(model, examples)
            trial = Trial()
            if images is not None:
                trial, more = try_out(model, images, sigma=self.sigma, seed=self.computing.seed, progress=progress)
                warnings += more
        return NetworkCheck(
            source=str(self.network.source),
            data=self.images.data,
            warnings=tuple(warnings),
            **vars(network),
            **vars(trial),
        )

    def show(self, result: Any) -> None:
        """Print the facts and the warnings."""
        fields = facts(result)
        warnings = fields.pop("warnings")
        show_fields(fields)
        for warning in warnings:
            print(f"warning: {warning}")
