"""``heatsmooth one-pass``."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.commands.command import Command, Summary
from heatsmooth.commands.inputs import RUNNING, Images, Network
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from torch import Tensor

    from heatsmooth.calibration import Calibration
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier, Voter
    from heatsmooth.results.one_pass import OnePassResult
    from heatsmooth.under_attack import AttackCalibration

RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Radii of the claimed accuracies in a summary."""


@dataclass(frozen=True, kw_only=True)
class OnePassSummary(Summary):
    """What the one-pass radii of a run say together."""

    command: str = "one-pass"
    sigma: float
    basis: str
    abstained: int
    mean_claimed_radius: float | None = None
    """0 counts where the class is wrong or abstained from."""
    claimed_accuracy: dict[str, float] | None = None
    """By radius, where there are labels."""


@dataclass(frozen=True, kw_only=True)
class OnePass(Command):
    """State the class and the calibrated radius of each image from one pass. The network must be calibrated.

    The radius covers the Gaussian average. For an image like the calibration images, it is too large with probability
    at most ε + α. After `calibrate --learn-votes`, the class is that which is predicted for the average. With
    --under-attack, this also holds for images that were changed within the ρ of the calibration.

    Example: heatsmooth one-pass --data fashion-mini --from runs/calibrated --out runs/one-pass
    """

    images: Images
    network: Network
    out: Path
    """Run directory."""
    under_attack: bool = False
    """Give the radius that holds for attacked images, from passes with secret noise (see calibrate)."""
    batch_size: int = field(default=200, metadata=RUNNING)
    """Images evaluated together."""
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def run(self, progress: Progress = silent) -> OnePassSummary | None:
        """Write one record per image to ``out``/one_pass.jsonl; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(self.device, lambda: self._radii(progress))

    def _radii(self, progress: Progress) -> OnePassSummary:
        from heatsmooth.commands.calibrated import read_voter
        from heatsmooth.commands.certified import shares
        from heatsmooth.device import accelerator, exact_float32
        from heatsmooth.identity import network_settings
        from heatsmooth.models import checked_classes, identify
        from heatsmooth.results.one_pass import RADII_FILE
        from heatsmooth.results.radii import radii_of
        from heatsmooth.results.schema import to_json
        from heatsmooth.runs import Records, Run
        from heatsmooth.statistics.radii import round_down

        images = self.images.load(self.network.size, progress=progress)
        model = self.network.load(images)
        calibration = self._calibration(model)
        head = read_voter(self.network.source, model, calibration)
        model.to(accelerator(self.device).device)
        images.check_classes(checked_classes(model, images.shape))
        settings = {
            "data": images.describe(),
            **network_settings(model=identify(model, images.shape)),
            "calibration": calibration.to_json(),
        }
        results: list[OnePassResult] = []
        with exact_float32(), Run(self.out, "one-pass", settings) as run:
            with Records(self.out / RADII_FILE) as records:
                records.keep(lambda _: False)
                for some in self._batches(model, images, calibration, head):
                    for result in some:
                        records.append(to_json(result))
                    results += some
                    progress("one pass", len(results), len(images))
            run.update(status="done", model_hash=settings["model"])
        summary = OnePassSummary(
            out=str(self.out),
            images=len(results),
            sigma=calibration.sigma,
            subject=calibration.subject,
            basis=str(calibration.basis),
            abstained=sum(result.abstain for result in results),
            left_out=images.left_out or None,
        )
        if images.labels is None:
            return summary
        claimed = radii_of(results)
        return replace(
            summary,
            mean_claimed_radius=round_down(claimed.average_certified_radius, 6),
            claimed_accuracy=shares(RADII, claimed.certified_accuracy),
        )

    def _calibration(self, model: "Classifier") -> "Calibration | AttackCalibration":
        """The calibration that was asked for; an error without it."""
        from heatsmooth.commands.calibrated import read_attack_calibration, read_calibration
        from heatsmooth.errors import InputError
        from heatsmooth.models import refuse_lipschitz

        if self.under_attack:
            return read_attack_calibration(self.network.source, model)
        calibration = read_calibration(self.network.source, model)
        if calibration is None:
            refuse_lipschitz(model, "it needs no calibration: use heatsmooth certify or predict, without --sigma")
            raise InputError(
                f"`source` {self.network.source}: expected a calibrated model, got another; run heatsmooth calibrate"
            )
        return calibration

    def _batches(
        self,
        model: "Classifier",
        images: "ImageSet",
        calibration: "Calibration | AttackCalibration",
        head: "Voter | None",
    ) -> "Iterator[list[OnePassResult]]":
        """The results of the images, batch by batch."""
        import torch

        from heatsmooth.models import device_of, probabilities_of, votes_of
        from heatsmooth.under_attack import AttackCalibration

        placed = None if head is None else head.to(device_of(model))
        for positions in torch.arange(len(images)).split(self.batch_size):
            if isinstance(calibration, AttackCalibration):
                yield list(_results_under_attack(model, images, positions, calibration))
                continue
            votes = votes_of(model, placed, images.images(positions).to(device_of(model)))
            yield list(_results(images, positions, probabilities_of(votes), calibration))


def _results(
    images: "ImageSet", positions: "Tensor", probabilities: "Tensor", calibration: "Calibration"
) -> "Iterator[OnePassResult]":
    from heatsmooth.predicting import one_pass_class
    from heatsmooth.results.one_pass import OnePassResult
    from heatsmooth.statistics.radii import round_down

    labels = images.labels_at(positions)
    for i, radius in enumerate(calibration.radius(probabilities)):
        yield OnePassResult(
            index=int(images.indices[positions[i]]),
            label=None if labels is None else int(labels[i]),
            predicted=one_pass_class(probabilities[i]),
            radius=round_down(float(radius), 9),
            abstain=bool(radius == 0),
            subject=calibration.subject,
            basis=calibration.basis,
        )


def _results_under_attack(
    model: "Classifier", images: "ImageSet", positions: "Tensor", calibration: "AttackCalibration"
) -> "Iterator[OnePassResult]":
    """From passes with fresh secret noise."""
    from heatsmooth.predicting import claims_under_attack
    from heatsmooth.results.one_pass import OnePassResult
    from heatsmooth.statistics.radii import round_down

    labels = images.labels_at(positions)
    claims, keys = claims_under_attack(model, images.images(positions), calibration)
    for i, predicted in enumerate(claims.classes.tolist()):
        yield OnePassResult(
            index=int(images.indices[positions[i]]),
            label=None if labels is None else int(labels[i]),
            predicted=None if predicted < 0 else predicted,
            radius=round_down(float(claims.radii[i]), 9),
            abstain=bool(claims.radii[i] == 0),
            subject=calibration.subject,
            basis=calibration.basis,
            received_radius=round_down(float(claims.received_radii[i]), 9),
            noise_key=keys[i],
        )
