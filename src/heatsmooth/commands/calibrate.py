"""``heatsmooth calibrate``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.calibration import Coverage
from heatsmooth.commands.command import Command, Summary, facts, show_fields
from heatsmooth.commands.inputs import RUNNING, Network
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.calibration import Calibration
    from heatsmooth.commands.certified import CertifiedRun
    from heatsmooth.models import Classifier


@dataclass(frozen=True, kw_only=True)
class CalibrationSummary(Summary):
    """What was calibrated, and how it does on held-out images."""

    command: str = "calibrate"
    epsilon: float
    basis: str
    largest_radius: float
    held_out: Coverage | None = None


@dataclass(frozen=True, kw_only=True)
class Calibrate(Command):
    """Learn a radius from one pass that is too large for a new image with probability at most ε, plus α.

    The probability is over a new image and the calibration images, which must be of one kind; it is not for each image.
    The radius covers the Gaussian average. `predict` and `one-pass` use it.

    Example: heatsmooth calibrate --from runs/smoothed --certificates runs/certified --out runs/calibrated
    """

    network: Network
    certificates: Path
    """A 'certify' run of this network over calibration images."""
    out: Path
    """Run directory."""
    epsilon: float = 0.01
    """Largest probability, beside α, that a new radius is too large."""
    held_out: Path | None = None
    """Another 'certify' run, to measure the coverage on."""
    seed: int = field(default=0, metadata=RUNNING)
    """Determines which images fit and which correct the radius."""

    def run(self, progress: Progress = silent) -> CalibrationSummary | None:  # noqa: ARG002  # it takes no time
        """Store the calibration with the network in ``out``; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(None, self._calibrated)

    def _calibrated(self) -> CalibrationSummary:
        from heatsmooth.calibration import calibrate
        from heatsmooth.commands.calibrated import CALIBRATION_FILE
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.data.images import size_of
        from heatsmooth.errors import InputError
        from heatsmooth.identity import network_settings
        from heatsmooth.models import identify, is_onnx, save, save_onnx
        from heatsmooth.models.checkpoint import WEIGHTS_FILE
        from heatsmooth.results.certificates import Certificates
        from heatsmooth.runs import Run, write_json
        from heatsmooth.statistics.radii import round_down

        certified = CertifiedRun.read(self.certificates, "certificates")
        channels, height, width = certified.shape
        model = self.network.load(channels=channels)
        model.spec = replace(model.spec, size=model.spec.size or size_of(height, width))
        identity = identify(model, certified.shape)
        if (difference := identity.difference(certified.info.identity())) is not None:
            what, theirs, own = difference
            raise InputError(
                f"`certificates` {self.certificates}: expected those of the model ({what} {own!r}), got another's "
                f"({theirs!r}); certify it first"
            )
        data = certified.info.settings["data"]
        calibration = calibrate(
            Certificates.of(certified.certificates()),
            epsilon=self.epsilon,
            seed=self.seed,
            model_hash=identity.weights,
            network=identity.to_json(),
            data=data,
        )
        settings = {
            **network_settings(model=identity),
            "certificate": certified.info.settings["certificate"],
            "data": data,
            "epsilon": self.epsilon,
            "seed": self.seed,
        }
        with Run(self.out, "calibrate", settings) as run:
            if is_onnx(model):
                save_onnx(model, self.out)
            else:
                save(model, self.out / WEIGHTS_FILE)
            write_json(self.out / CALIBRATION_FILE, calibration.to_json())
            run.update(status="done", model_hash=identity.weights)
        return CalibrationSummary(
            out=str(self.out),
            images=certified.asked,
            epsilon=self.epsilon,
            subject=calibration.subject,
            basis=str(calibration.basis),
            largest_radius=round_down(max((radius for _, radius in calibration.steps), default=0.0), 4),
            held_out=None if self.held_out is None else self._coverage(self.held_out, model, calibration, certified),
        )

    def _coverage(
        self, held_out: Path, model: "Classifier", calibration: "Calibration", certified: "CertifiedRun"
    ) -> Coverage:
        """The coverage on the held-out images that were not calibrated on."""
        from heatsmooth.calibration import coverage
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.errors import require
        from heatsmooth.models import is_known_as
        from heatsmooth.results.certificates import Certificates

        others = CertifiedRun.read(held_out, "held_out")
        alike = is_known_as(model, others.info.identity()) and others.settings == certified.settings
        require(alike, f"`held_out` {held_out}: expected certificates of the same model made alike, got others")
        same_data = others.info.chosen.data.name == certified.info.chosen.data.name
        used = {item.index for item in certified.certificates()} if same_data else set()
        rest = [item for item in others.certificates() if item.index not in used]
        require(bool(rest), f"`held_out` {held_out}: expected images not calibrated on, got none; certify others")
        return coverage(calibration, Certificates.of(rest))

    def show(self, result: Any) -> None:
        """Print the summary, and the coverage."""
        fields = facts(result)
        held_out = fields.pop("held_out", None)
        show_fields(fields)
        if held_out:
            low, high = held_out["interval"]
            covered = f"{held_out['covered']} of {held_out['images']} images covered"
            share = f"{held_out['coverage']:.1%} [{low:.1%}, {high:.1%}]"
            print(f"held out: {covered}, {share}, expected at least {1 - self.epsilon:.1%}")
