"""Classes and radii of image files: from one pass, and by Cohen's PREDICT from noisy samples."""

import math
import secrets
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.calibration import Calibration
from heatsmooth.certification.noisy_passes import secret_passes
from heatsmooth.certification.sampling import CHUNK, Job, Sampler, drawing
from heatsmooth.data import as_unit_interval
from heatsmooth.data.folder import read_image, usual_size
from heatsmooth.data.images import Size, height_and_width
from heatsmooth.device import exact_float32
from heatsmooth.models import (
    Classifier,
    DeterministicRadius,
    Voter,
    checked_classes,
    device_of,
    for_inference,
    images_of_a_pass,
    is_lipschitz,
    one_pass_and_votes,
    probabilities_of,
    require_voter,
)
from heatsmooth.progress import Progress, silent
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.results.noisy_passes import Claims
from heatsmooth.results.predictions import (
    AttackClaim,
    Prediction,
    Predictions,
    PredictionSettings,
    SampledPrediction,
)
from heatsmooth.runs import sha256
from heatsmooth.statistics.bounds import predict as class_of_average
from heatsmooth.statistics.radii import l_bound, round_down
from heatsmooth.under_attack import AttackCalibration


def one_pass_class(probabilities: Tensor) -> int | None:
    """The class of one image's probabilities (classes,); None where they are NaN."""
    return int(probabilities.argmax()) if bool(probabilities.isfinite().all()) else None


def claims_under_attack(model: nn.Module, images: Tensor, calibration: AttackCalibration) -> tuple[Claims, list[str]]:
    """Class and radius of each image from noisy passes, as ``calibration`` guarantees; and the keys of the noise.

    Every call draws fresh secret noise, so it may give another answer for the same image. The guarantee is for the
    first answer about an image, not for the best of several. The keys may be published with the answers: with
    ``certification.noisy_passes.keyed_passes`` and ``calibration.claims``, everybody can repeat them.

    ``model``: the calibrated network, in evaluation mode. ``images``: (images, channels, height, width) in [0, 1].
    """
    with exact_float32():
        probabilities, keys = secret_passes(model, images, noise=calibration.noise, count=calibration.passes)
    return calibration.claims(probabilities), keys


def predict(
    model: Classifier,
    files: Sequence[Path | str],
    settings: PredictionSettings | None = None,
    *,
    image_size: Size | None = None,
    calibration: Calibration | AttackCalibration | None = None,
    head: Voter | None = None,
    progress: Progress = silent,
) -> Predictions:
    """Class, probability and radii of each image file.

    ``model``: as ``heatsmooth.load`` gives it. ``settings``: the noise of the L-bound, and how many samples find the
    class of the average. ``image_size``: of the centre crop; None: that which the network records, or the usual one.
    ``calibration``: of this network, for calibrated one-pass radii, or for radii that hold under attack. The latter
    take further passes, with fresh secret noise. ``head``: that of the calibration, if it has one.

    Files are read, evaluated and dropped a few at a time. The prediction of a file does not depend, but for rounding,
    on the other files.
    """
    require_voter(calibration.head if calibration else None, head)
    placed = None if head is None else head.to(device_of(model))
    predictor = _Predictor(model.eval(), settings or PredictionSettings(), calibration, placed)
    known_size = image_size or model.spec.size
    predictions: list[Prediction] = []
    with exact_float32():
        for size, some in groupby(map(Path, files), lambda file: known_size or usual_size(file)):
            for batch in predictor.of_one_size(list(some), size):
                predictions += batch
                progress("predicting", len(predictions), len(files))
    return Predictions(predictions=tuple(predictions))


def _with_proof(predictions: list[Prediction], logits: Tensor, radii: list[float] | None) -> list[Prediction]:
    """The predictions with the deterministic radii of the network, if it has them.

    A radius is for the class of the logits (images, classes). It is 0 where the probabilities, which may tie, show
    another class.
    """
    if radii is None:
        return predictions
    classes = logits.argmax(1).tolist()
    return [
        replace(
            prediction,
            certified_radius=round_down(radius, 4) if prediction.predicted == proven else 0.0,
            certified_basis=BasisKind.DETERMINISTIC,
        )
        for prediction, proven, radius in zip(predictions, classes, radii, strict=True)
    ]


@dataclass(frozen=True)
class _Predictor:
    model: Classifier
    settings: PredictionSettings
    calibration: Calibration | AttackCalibration | None
    head: Voter | None

    def of_one_size(self, files: list[Path], size: Size) -> Iterator[list[Prediction]]:
        """The predictions of files whose images get the same size, some at a time."""
        channels, device = self.model.spec.channels, device_of(self.model)
        shape = (channels, *height_and_width(size))
        classes = checked_classes(self.model, shape)
        sampler = self._sampler(shape, classes) if self.settings.noise_samples else None
        proven = DeterministicRadius(self.model) if is_lipschitz(self.model) else None
        together = images_of_a_pass(device, math.prod(shape)) or CHUNK
        for first in range(0, len(files), together):
            some = files[first : first + together]
            pixels = np.stack([read_image(file, size, channels=channels) for file in some])
            images = as_unit_interval(torch.from_numpy(pixels))
            with torch.inference_mode():
                logits, votes = one_pass_and_votes(self.model, self.head, images.to(device))
                radii = None if proven is None else proven(images.to(device), logits).tolist()
            predictions = _with_proof(
                self._one_pass(some, probabilities_of(logits), probabilities_of(votes)), logits, radii
            )
            predictions = self._under_attack(predictions, images)
            yield predictions if sampler is None else self._averaged(predictions, images, sampler)

    def _sampler(self, shape: tuple[int, int, int], classes: int) -> Sampler:
        settings, device = self.settings, device_of(self.model)
        assert settings.sigma is not None
        count = images_of_a_pass(device, math.prod(shape)) or CHUNK
        noise = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
        fast = for_inference(self.model, (0.5 + settings.sigma * noise).to(device))
        seed = secrets.randbits(48) if settings.seed is None else settings.seed
        return Sampler(fast, sigma=settings.sigma, classes=classes, seed=seed, batch_size=settings.batch_size)

    def _one_pass(self, files: Sequence[Path], probabilities: Tensor, votes: Tensor) -> list[Prediction]:
        """What one pass says about these files; ``votes``: the probabilities that are calibrated."""
        predictions = []
        for file, row in zip(files, probabilities, strict=True):
            predicted = one_pass_class(row)
            probability = None if predicted is None else float(row[predicted])
            predictions.append(Prediction(image=str(file), predicted=predicted, probability=probability))
        if self.settings.sigma is not None:
            bounds = [round_down(float(radius), 4) for radius in l_bound(probabilities, sigma=self.settings.sigma)]
            predictions = [
                replace(prediction, l_bound=bound, basis=BasisKind.EXACT_AVERAGE)
                for prediction, bound in zip(predictions, bounds, strict=True)
            ]
        if isinstance(self.calibration, Calibration):
            basis = str(self.calibration.basis)
            radii = [round_down(float(radius), 4) for radius in self.calibration.radius(votes)]
            classes = [None] * len(radii) if self.head is None else [one_pass_class(row) for row in votes]
            predictions = [
                replace(prediction, one_pass_radius=radius, one_pass_basis=basis, one_pass_class=covered)
                for prediction, radius, covered in zip(predictions, radii, classes, strict=True)
            ]
        return predictions

    def _under_attack(self, predictions: list[Prediction], images: Tensor) -> list[Prediction]:
        """The predictions with what noisy passes claim, if the calibration is for attacked images."""
        if not isinstance(self.calibration, AttackCalibration):
            return predictions
        claims, keys = claims_under_attack(self.model, images, self.calibration)
        answers = zip(claims.classes.tolist(), claims.radii, claims.received_radii, keys, strict=True)
        found = [
            AttackClaim(
                predicted=None if predicted < 0 else predicted,
                radius=round_down(float(radius), 4),
                received_radius=round_down(float(received), 4),
                subject=self.calibration.subject,
                basis=str(self.calibration.basis),
                rho=self.calibration.rho,
                noise_key=key,
            )
            for predicted, radius, received, key in answers
        ]
        return [replace(prediction, under_attack=claim) for prediction, claim in zip(predictions, found, strict=True)]

    def _averaged(self, predictions: list[Prediction], images: Tensor, sampler: Sampler) -> list[Prediction]:
        """The predictions with the class of the average; None where it abstains, or one pass has no class.

        The noise of an image depends on its pixels and the seed alone.
        """
        places = defaultdict[int, list[int]](list)
        jobs = {}
        for place, (prediction, image) in enumerate(zip(predictions, images, strict=True)):
            if prediction.predicted is not None:
                index = int(sha256(image.numpy().tobytes())[:12], 16)
                places[index].append(place)
                jobs[index] = Job(index, image, drawing("prediction", self.settings.noise_samples))
        classes: dict[int, int | None] = {}
        for job, tally in sampler.run(jobs.values()):
            average_class, abstains = class_of_average(tally.counts[None], alpha=self.settings.alpha)
            for place in places[job.index]:
                classes[place] = None if abstains[0] else int(average_class[0])
        basis = f"statistical, 1-alpha={1 - self.settings.alpha:.10g}"
        return [
            SampledPrediction(
                **vars(prediction), average_class=classes.get(place), seed=sampler.seed, average_basis=basis
            )
            for place, prediction in enumerate(predictions)
        ]
