"""``heatsmooth calibrate``."""

import copy
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.calibration import Coverage
from heatsmooth.commands.command import Command, Summary, facts, show_fields
from heatsmooth.commands.inputs import RUNNING, Network
from heatsmooth.commands.options import grouped
from heatsmooth.commands.voting import Again, Votes, any_chosen
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.calibration import Calibration
    from heatsmooth.commands.certified import CertifiedRun
    from heatsmooth.identity import Identity
    from heatsmooth.models import Classifier, Voter
    from heatsmooth.results.certificates import Certificate, Certificates
    from heatsmooth.under_attack import AttackCalibration


COPY = "learnt-votes"
"""The run of a copy that learns votes, inside that of the calibration."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The attacker that a radius must withstand, and the noisy passes that it takes."""

    under_attack: float | None = None
    """Make a radius that holds for images changed within this L2 distance ρ."""
    passes: int = 1
    """Noisy passes per image; more than half must agree. Five keep more of the radius than one; two can
    keep less."""
    noise: float | None = None
    """Standard deviation of their noise (default: ρ, for several passes ρ/2, but from σ/4 to σ)."""
    noise_samples: int = 1000
    """Noisy passes per calibration image."""

    def __post_init__(self) -> None:
        named = self.under_attack is not None or not any_chosen(self)
        require(named, "`under_attack`: expected it beside options for noisy passes, got none; name the distance ρ")


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
    head: str | None = None
    """Hash of the head, or the copy of the network, that predicts the classes of noisy copies."""
    few_steps: str | None = None
    """Where a copy had too few steps to learn much: a sentence that says so."""
    agreement: float | None = None
    """With one of them: how often it names the most frequent class of the noisy copies of a calibration image."""
    agreement_of_network: float | None = None
    """The same for the network itself."""


@dataclass(frozen=True, kw_only=True)
class Calibrate(Command):
    """Learn a radius from one pass that is too large for a new image with probability at most ε, plus α.

    The probability is over a new image and the calibration images, which must be of one kind; it is not for each image.
    The radius covers the Gaussian average. It holds for attacked images only with --under-attack, from passes with
    secret noise. With --learn-votes it is for the predicted class of the average.

    Example: heatsmooth calibrate --from runs/smoothed --certificates runs/certified --epsilon 0.1 --out runs/calibrated
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
    """Determines which images fit and which correct the radius, the noise of the calibration images, and how votes are
    learnt."""
    attack: Attack = field(default=Attack(), metadata=grouped("Under attack", main=("under_attack",)))
    votes: Votes = field(default=Votes(), metadata=grouped("Votes", main=("learn_votes", "votes_from")))
    again: Again = field(default=Again(), metadata=grouped("Image files"))

    def __post_init__(self) -> None:
        attacked, voting = self.attack.under_attack is not None, self.votes.wanted
        require(not (attacked and voting), "`learn_votes`: expected no `under_attack` beside it, got both; choose one")
        require(
            attacked or voting or not any_chosen(self.again, but=("device",)),
            "`under_attack`: expected it or `learn_votes` beside options for reading images again, got none; name one",
        )

    def run(self, progress: Progress = silent) -> CalibrationSummary | None:
        """Store the calibration with the network in ``out``; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(self.again.device, lambda: self._calibrated(progress))

    def _calibrated(self, progress: Progress) -> CalibrationSummary:
        from heatsmooth.calibration import FITTED, allowed_errors
        from heatsmooth.commands.calibrated import ATTACK_FILE, CALIBRATION_FILE
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.commands.voting import few_vote_steps
        from heatsmooth.data.images import size_of
        from heatsmooth.identity import network_settings
        from heatsmooth.models import identify, is_onnx, save, save_onnx
        from heatsmooth.models.checkpoint import WEIGHTS_FILE
        from heatsmooth.models.votes import VOTES_FILE, save_voter
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
        others = self._held_out(model, certified)
        images = len(certified.certificates())
        allowed_errors(images - math.floor(images * FITTED), self.epsilon, images=images)
        attacked, voting = self.attack.under_attack is not None, self.votes.wanted
        settings = {
            **network_settings(model=identity),
            "certificate": certified.info.settings["certificate"],
            "data": certified.info.settings["data"],
            "epsilon": self.epsilon,
            "seed": self.seed,
            **(asdict(self.attack) if attacked else {}),
            **(self.votes.as_learnt().describe() if voting else {}),
        }
        with Run(self.out, "calibrate", settings) as run:
            head = self._head(model, [certified, *([] if others is None else [others])], progress)
            certificates = self._examples(model, head, certified, certified.certificates(), progress)
            calibration = self._radius(model, identity, certified, certificates, head, progress)
            if is_onnx(model):
                save_onnx(model, self.out)
            else:
                save(model, self.out / WEIGHTS_FILE)
            if head:
                save_voter(head, self.out / VOTES_FILE)
            write_json(self.out / (ATTACK_FILE if attacked else CALIBRATION_FILE), calibration.to_json())
            run.update(status="done", model_hash=identity.weights)
        return CalibrationSummary(
            out=str(self.out),
            images=certified.asked,
            epsilon=self.epsilon,
            subject=calibration.subject,
            basis=str(calibration.basis),
            largest_radius=round_down(max((radius for _, radius in calibration.steps), default=0.0), 4),
            held_out=self._coverage(model, calibration, certified, others, head, progress),
            rho=self.attack.under_attack,
            passes=self.attack.passes if attacked else None,
            head=calibration.head,
            few_steps=few_vote_steps(self.out / COPY, self.votes),
            agreement=_agreement(certificates) if head else None,
            agreement_of_network=_agreement(Certificates.of(certified.certificates())) if head else None,
        )

    def _head(self, model: "Classifier", unseen: "list[CertifiedRun]", progress: Progress) -> "Voter | None":
        """The head or copy that was asked for, learnt."""
        from heatsmooth.commands.voting import learnt_votes

        if not self.votes.wanted:
            return None
        return learnt_votes(
            model, unseen, self.votes, self.again, seed=self.seed, out=self.out / COPY, progress=progress
        )

    def _examples(
        self,
        model: "Classifier",
        head: "Voter | None",
        run: "CertifiedRun",
        some: "list[Certificate]",
        progress: Progress,
    ) -> "Certificates":
        """Certificates of a run beside the probabilities that are calibrated: the network's, or those of the head."""
        import torch

        from heatsmooth.commands.voting import certified_images, predicted_votes
        from heatsmooth.results.certificates import Certificates

        certificates = Certificates.of(some)
        if head is None:
            return certificates
        whole = certified_images(run, [item.index for item in run.certificates()], self.again, progress)
        asked = replace(whole, indices=torch.from_numpy(certificates.indices))
        return certificates.with_one_pass(predicted_votes(model, head, asked, self.again.device))

    def _radius(
        self,
        model: "Classifier",
        identity: "Identity",
        certified: "CertifiedRun",
        certificates: "Certificates",
        head: "Voter | None",
        progress: Progress,
    ) -> "Calibration | AttackCalibration":
        """The calibration that was asked for."""
        from heatsmooth.calibration import Recorded, calibrate
        from heatsmooth.certification.noisy_passes import noisy_passes
        from heatsmooth.commands.voting import certified_images
        from heatsmooth.device import accelerator
        from heatsmooth.models.votes import voter_hash
        from heatsmooth.under_attack import calibrate_under_attack, check_attack, check_images, usual_noise

        about = Recorded(
            seed=self.seed,
            model_hash=identity.weights,
            network=identity.to_json(),
            data=certified.info.settings["data"],
            head=None if head is None else voter_hash(head),
        )
        rho = self.attack.under_attack
        if rho is None:
            return calibrate(certificates, epsilon=self.epsilon, **about)
        noise = (
            usual_noise(rho, certificates.sigma, self.attack.passes) if self.attack.noise is None else self.attack.noise
        )
        votes, samples = self.attack.passes, self.attack.noise_samples
        check_attack(rho, noise, votes, samples)
        check_images(len(certificates), samples, rho / noise, votes, epsilon=self.epsilon, rho=rho)
        passes = noisy_passes(
            copy.deepcopy(model).to(accelerator(self.again.device).device),
            certified_images(certified, certificates.indices.tolist(), self.again, progress),
            noise=noise,
            count=samples,
            seed=self.seed,
            progress=progress,
        )
        return calibrate_under_attack(certificates, passes, rho=rho, epsilon=self.epsilon, votes=votes, **about)

    def _held_out(self, model: "Classifier", certified: "CertifiedRun") -> "CertifiedRun | None":
        """The run to measure the coverage on, if one is named; it must be of the same network, made alike."""
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.models import is_known_as

        if (held_out := self.held_out) is None:
            return None
        attacked = self.attack.under_attack is not None
        require(not attacked, "`held_out`: expected none beside `under_attack`, got one; leave it out")
        others = CertifiedRun.read(held_out, "held_out")
        alike = is_known_as(model, others.info.identity()) and others.settings == certified.settings
        require(alike, f"`held_out` {held_out}: expected certificates of the same model made alike, got others")
        rest = _not_calibrated_on(others, certified)
        require(bool(rest), f"`held_out` {held_out}: expected images not calibrated on, got none; certify others")
        return others

    def _coverage(
        self,
        model: "Classifier",
        calibration: "Calibration | AttackCalibration",
        certified: "CertifiedRun",
        others: "CertifiedRun | None",
        head: "Voter | None",
        progress: Progress,
    ) -> Coverage | None:
        """The coverage on the held-out images that were not calibrated on, if there are held-out images."""
        from heatsmooth.calibration import Calibration, coverage

        if others is None or not isinstance(calibration, Calibration):
            return None
        rest = _not_calibrated_on(others, certified)
        return coverage(calibration, self._examples(model, head, others, rest, progress))

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


def _not_calibrated_on(others: "CertifiedRun", certified: "CertifiedRun") -> "list[Certificate]":
    """The certificates of the one run whose images are not among those of the other."""
    same_data = others.info.chosen.data.name == certified.info.chosen.data.name
    used = {item.index for item in certified.certificates()} if same_data else set()
    return [item for item in others.certificates() if item.index not in used]


def _agreement(certificates: "Certificates") -> float:
    """How often one pass names the most frequent class of the noisy copies."""
    return float((certificates.clean_classes == certificates.average_classes).mean())
