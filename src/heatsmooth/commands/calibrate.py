"""``heatsmooth calibrate``."""

import copy
import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.calibration import Coverage
from heatsmooth.commands.command import Command, Summary, facts, show_fields
from heatsmooth.commands.inputs import FILES, RUNNING, Network
from heatsmooth.commands.options import grouped
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.calibration import Calibration
    from heatsmooth.commands.certified import CertifiedRun
    from heatsmooth.data import ImageSet
    from heatsmooth.identity import Identity
    from heatsmooth.models import Classifier
    from heatsmooth.under_attack import AttackCalibration


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The attacker that a radius must withstand, and the noisy passes that it takes."""

    under_attack: float | None = None
    """Make a radius that holds for images changed within this L2 distance ρ."""
    passes: int = 1
    """Noisy passes per new image; more than half of them must agree. More passes keep more of the radius."""
    noise: float | None = None
    """Standard deviation of their noise (default: ρ, for several passes ρ/2, but from σ/4 to σ)."""
    noise_samples: int = 1000
    """Noisy passes per calibration image."""
    data: str | None = None
    """The data of the certificates, if their record does not name it: imagefolder:PATH, …"""
    data_root: Path | None = None
    """Directory of the files of the data set."""
    class_index: Path | None = field(default=None, metadata=FILES)
    """Classes of an imagefolder, as the certificates were made with."""
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def __post_init__(self) -> None:
        chosen = any(getattr(self, item.name) != item.default for item in fields(self) if item.name != "device")
        named = self.under_attack is not None or not chosen
        require(named, "`under_attack`: expected it beside options for noisy passes, got none; name the distance ρ")

    def describe(self) -> dict[str, object]:
        """What the radius depends on, as JSON."""
        return {name: getattr(self, name) for name in ("under_attack", "passes", "noise", "noise_samples")}


@dataclass(frozen=True, kw_only=True)
class CalibrationSummary(Summary):
    """What was calibrated, and how it does on held-out images."""

    command: str = "calibrate"
    epsilon: float
    basis: str
    largest_radius: float
    held_out: Coverage | None = None
    rho: float | None = None
    """Under attack: how far an image may have been changed."""
    passes: int | None = None
    """Under attack: noisy passes per image."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(Command):
    """Learn a radius from one pass that is too large for a new image with probability at most ε, plus α.

    The probability is over a new image and the calibration images, which must be of one kind; it is not for each image.
    The radius covers the Gaussian average. `predict` and `one-pass` use it. It does not hold for attacked images; with
    --under-attack it does, and takes passes with secret noise: see `predict --under-attack`.

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
    """Determines which images fit and which correct the radius, and the noise of the calibration images."""
    attack: Attack = field(default=Attack(), metadata=grouped("Under attack", main=("under_attack",)))

    def run(self, progress: Progress = silent) -> CalibrationSummary | None:
        """Store the calibration with the network in ``out``; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(self.attack.device, lambda: self._calibrated(progress))

    def _calibrated(self, progress: Progress) -> CalibrationSummary:
        from heatsmooth.calibration import Calibration
        from heatsmooth.commands.calibrated import ATTACK_FILE, CALIBRATION_FILE
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.data.images import size_of
        from heatsmooth.identity import network_settings
        from heatsmooth.models import identify, is_onnx, save, save_onnx
        from heatsmooth.models.checkpoint import WEIGHTS_FILE
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
        calibration = self._radius(model, identity, certified, progress)
        attacked = not isinstance(calibration, Calibration)
        settings = {
            **network_settings(model=identity),
            "certificate": certified.info.settings["certificate"],
            "data": certified.info.settings["data"],
            "epsilon": self.epsilon,
            "seed": self.seed,
            **(self.attack.describe() if attacked else {}),
        }
        with Run(self.out, "calibrate", settings) as run:
            if is_onnx(model):
                save_onnx(model, self.out)
            else:
                save(model, self.out / WEIGHTS_FILE)
            write_json(self.out / (ATTACK_FILE if attacked else CALIBRATION_FILE), calibration.to_json())
            run.update(status="done", model_hash=identity.weights)
        return CalibrationSummary(
            out=str(self.out),
            images=certified.asked,
            epsilon=self.epsilon,
            subject=calibration.subject,
            basis=str(calibration.basis),
            largest_radius=round_down(max((radius for _, radius in calibration.steps), default=0.0), 4),
            held_out=self._coverage(model, calibration, certified) if isinstance(calibration, Calibration) else None,
            rho=self.attack.under_attack,
            passes=self.attack.passes if attacked else None,
        )

    def _radius(
        self, model: "Classifier", identity: "Identity", certified: "CertifiedRun", progress: Progress
    ) -> "Calibration | AttackCalibration":
        """The calibration that was asked for."""
        from heatsmooth.calibration import FITTED, Recorded, allowed_errors, calibrate
        from heatsmooth.certification.noisy_passes import noisy_passes
        from heatsmooth.device import accelerator
        from heatsmooth.results.certificates import Certificates
        from heatsmooth.under_attack import calibrate_under_attack, check_attack, usual_noise

        certificates = Certificates.of(certified.certificates())
        about = Recorded(
            seed=self.seed,
            model_hash=identity.weights,
            network=identity.to_json(),
            data=certified.info.settings["data"],
        )
        rho = self.attack.under_attack
        if rho is None:
            return calibrate(certificates, epsilon=self.epsilon, **about)
        require(self.held_out is None, "`held_out`: expected none beside `under_attack`, got one; leave it out")
        noise = (
            usual_noise(rho, certificates.sigma, self.attack.passes) if self.attack.noise is None else self.attack.noise
        )
        check_attack(rho, noise, self.attack.passes, self.attack.noise_samples)
        images = len(certificates)
        allowed_errors(images - math.floor(images * FITTED), self.epsilon, images=images)
        passes = noisy_passes(
            copy.deepcopy(model).to(accelerator(self.attack.device).device),
            self._images(certified, certificates.indices.tolist(), progress),
            noise=noise,
            count=self.attack.noise_samples,
            seed=self.seed,
            progress=progress,
        )
        votes = self.attack.passes
        return calibrate_under_attack(certificates, passes, rho=rho, epsilon=self.epsilon, votes=votes, **about)

    def _images(self, certified: "CertifiedRun", indices: list[int], progress: Progress) -> "ImageSet":
        """The certified images: the same ones, or an error."""
        import torch

        from heatsmooth.data import load_images
        from heatsmooth.data.images import size_of

        recorded = certified.info.chosen.data
        name = self.attack.data or str(recorded.name).removesuffix("/test")
        whole = load_images(
            name,
            "test",
            root=self.attack.data_root,
            image_size=size_of(*certified.shape[1:]),
            class_index=self.attack.class_index,
            progress=progress,
        )
        there = whole.shape == certified.shape and max(indices) < int(whole.pixels.shape[0])
        same = replace(whole, indices=torch.tensor(indices)) if there else whole
        known = recorded.fingerprint
        require(
            same.fingerprint == known,
            f"`data` {name}: expected the images of the certificates ({known}), got others ({same.fingerprint}); name "
            "the data that was certified",
        )
        return same

    def _coverage(self, model: "Classifier", calibration: "Calibration", certified: "CertifiedRun") -> Coverage | None:
        """The coverage on the held-out images that were not calibrated on, if there are held-out images."""
        from heatsmooth.calibration import coverage
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.models import is_known_as
        from heatsmooth.results.certificates import Certificates

        if (held_out := self.held_out) is None:
            return None
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
