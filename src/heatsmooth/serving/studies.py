"""What a visitor sees about an image, as events; each number states which model it covers and what it rests on."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from heatsmooth.attacks import pgd
from heatsmooth.calibration import Calibration
from heatsmooth.certification.certificates import certify_image, selected_class
from heatsmooth.certification.radii import largest_radius, radii_of
from heatsmooth.certification.sampling import CHUNK, Job, Sampler, Tally, drawing
from heatsmooth.certification.settings import Settings
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import (
    DeterministicRadius,
    Voter,
    check_independence,
    count_classes,
    device_of,
    for_inference,
    is_lipschitz,
    probabilities_of,
    votes_of,
)
from heatsmooth.noise import Draw
from heatsmooth.results.guarantees import BasisKind, Subject
from heatsmooth.serving.events import (
    Attack,
    AverageClass,
    Calibrated,
    Claim,
    Copies,
    Done,
    OnePass,
    Predicted,
    Prediction,
    Progress,
    Seen,
)
from heatsmooth.serving.worker import Study
from heatsmooth.statistics.bounds import predict
from heatsmooth.statistics.radii import l_bound, round_down

DIGITS = 4
"""Decimals of a radius, rounded down, and of a distance, rounded up."""
SHOWN_COPIES = 8
SHOWN_CLASSES = 3
TURN = 4 * CHUNK
"""Most samples that a visitor gets in one turn."""
TESTED = 1000
"""Samples that test the average at an attacked image."""
FURTHEST = 50.0
"""Largest L2 distance of an attack, in [0, 1] pixels."""


@dataclass
class ServedNetwork:
    """The network of a server, with the settings of its average; ``model`` in evaluation mode on its device.

    ``settings`` may be None for a network that is Lipschitz by construction: nothing is sampled then.
    """

    model: nn.Module
    settings: Settings | None
    seed: int
    """Of the noise. Secret, because a certificate is valid only if the image does not depend on the noise."""
    shape: tuple[int, int, int]
    """(channels, height, width) of an image of the network."""
    class_names: tuple[str, ...] | None = None
    calibration: Calibration | None = None
    voter: Voter | None = None
    """The head or copy that predicts the votes, if the calibration has one."""
    steps: int = 20
    """Gradient steps of an attack."""
    classes: int = field(init=False)
    proof: DeterministicRadius | None = field(init=False)
    """The deterministic radius, if the network is Lipschitz by construction."""

    def __post_init__(self) -> None:
        if self.sigma is not None and self.calibration is not None:
            known = self.calibration.sigma
            line = f"`sigma`: expected {known:g}, that of the calibration, got {self.sigma:g}; use {known:g}"
            require(known == self.sigma, line)
        proven = self.settings is None or is_lipschitz(self.model)
        self.proof = DeterministicRadius(self.model) if proven else None
        noise = torch.randn(CHUNK, *self.shape, generator=torch.Generator().manual_seed(0))
        self._examples = (0.5 + (self.sigma or 0.0) * noise).to(self.device)
        self.classes = count_classes(self.model, self._examples)
        require(self.classes > 1, "expected a network of at least 2 classes, got 1; use another network")
        check_independence(self.model, self._examples)
        require(
            self.class_names is None or len(self.class_names) == self.classes,
            f"`class_names`: expected {self.classes} names, got {len(self.class_names or ())}; name every class",
        )

    @property
    def sigma(self) -> float | None:
        """Of the noise; None if nothing is sampled."""
        return None if self.settings is None else self.settings.sigma

    @property
    def names(self) -> list[str]:
        """Of the classes, by number."""
        return list(self.class_names or [f"class {number}" for number in range(self.classes)])

    @cached_property
    def device(self) -> torch.device:
        """The device of the network."""
        return device_of(self.model)

    @property
    def largest_radius(self) -> float:
        """The radius of an image for which all samples agree; 0 if nothing is sampled."""
        if self.settings is None:
            return 0.0
        radius = largest_radius(self.settings, self.classes)
        require(
            radius is not None,
            f"`n`: expected enough samples to certify anything at α={self.settings.alpha:g}, got {self.settings.n}; "
            "raise `n`",
        )
        return float(radius or 0.0)

    def sampler(self, batch_size: int | None = None) -> Sampler | None:
        """The sampler of noisy images, with the faster form of the network; None if nothing is sampled."""
        if self.settings is None:
            return None
        fast = for_inference(self.model, self._examples)
        sigma, seed = self.settings.sigma, self.seed
        return Sampler(fast, sigma=sigma, classes=self.classes, seed=seed, batch_size=batch_size)

    @exact_float32()
    def logits(self, images: Tensor) -> Tensor:
        """(images, classes) of one pass on the device of the network; an error if one is not finite."""
        with torch.inference_mode():
            return _finite(self.model(images.to(self.device)))

    @exact_float32()
    def _calibrated(self, images: Tensor, logits: Tensor) -> list[Calibrated | None] | None:
        """The calibrated radii, and the classes that they are for, if the network is calibrated."""
        if (known := self.calibration) is None:
            return None
        votes = logits if self.voter is None else _finite(votes_of(self.model, self.voter, images.to(self.device)))
        radii, classes = known.radius(probabilities_of(votes)).tolist(), votes.argmax(1).tolist()
        return [
            Calibrated(
                radius=round_down(radius, DIGITS), subject=known.subject, basis=str(known.basis), predicted=predicted
            )
            for radius, predicted in zip(radii, classes, strict=True)
        ]

    def probabilities(self, images: Tensor) -> Tensor:
        """(images, classes) of one pass, in double precision on the CPU; an error if a logit is not finite."""
        return probabilities_of(self.logits(images))

    def one_pass(self, images: Tensor) -> list[OnePass]:
        """What one pass says about images (images, channels, height, width), and the radii that need no samples."""
        logits = self.logits(images)
        probabilities = probabilities_of(logits)
        none = [None] * len(images)
        bounds: Sequence[Claim | None] = none
        proven, calibrated = self._proven(images, logits) or none, self._calibrated(images, logits) or none
        if self.sigma is not None:
            bounds = _claims(l_bound(probabilities, sigma=self.sigma), Subject.NETWORK, BasisKind.EXACT_AVERAGE)
        order = logits.double().cpu().topk(min(SHOWN_CLASSES, self.classes)).indices  # probabilities may tie
        return [
            OnePass(
                subject=Subject.NETWORK,
                basis="one forward pass",
                top=[(int(c), float(probabilities[i, c])) for c in order[i]],
                l_bound=bounds[i],
                calibrated=calibrated[i],
                deterministic=proven[i],
            )
            for i in range(len(images))
        ]

    def _proven(self, images: Tensor, logits: Tensor) -> list[Claim | None] | None:
        if self.proof is None:
            return None
        with torch.inference_mode():
            radii = self.proof(images.to(self.device), logits)
        return _claims(radii.cpu().numpy(), Subject.NETWORK, BasisKind.DETERMINISTIC)


def _finite(logits: Tensor) -> Tensor:
    finite = bool(logits.isfinite().all())
    require(finite, "expected finite logits, got NaN or infinity, which give no radius; use another image")
    return logits


def _claims(radii: NDArray[np.float64], subject: Subject, basis: str) -> list[Claim | None]:
    return [Claim(radius=round_down(radius, DIGITS), subject=subject, basis=basis) for radius in radii.tolist()]


def predicting(served: ServedNetwork, images: list[Tensor], names: list[str]) -> Study:
    """One pass of all images together."""
    passes = served.one_pass(torch.stack(images))
    yield Predicted(
        predictions=[
            Prediction(image=name, predicted=one.top[0][0], probability=one.top[0][1], **structs.asdict(one))
            for name, one in zip(names, passes, strict=True)
        ]
    )


def certifying(served: ServedNetwork, image: Tensor, number: int) -> Study:
    """One pass, some noisy copies, and the certificate after every few samples; image in [0, 1].

    Separate samples select the class. The bounds hold for all numbers of samples at once, except with probability α. So
    the largest radius so far is valid, and the visitor may stop at any time. Without noise, it ends after one pass.
    """
    settings = served.settings
    yield Seen(data=png(image), **structs.asdict(served.one_pass(image[None])[0]))
    if settings is None:
        yield Done()
        return
    yield _copies(served, settings, image, number)
    tallies: dict[str, Tally] = {}
    procedure = certify_image(settings)
    ask, radius = next(procedure), -1.0
    while True:
        left, tally = ask.count, None
        while left:
            tally = yield _job(number, image, tallies, ask.stream, min(left, TURN))
            assert tally is not None
            left -= min(left, TURN)
            if ask.stream == "estimation":
                selected = selected_class(tallies)
                radii, abstain = radii_of(tally.counts[None], np.array([selected]), settings)
                radius = max(radius, -1.0 if abstain[0] else float(radii[0]))
                yield _progress(tally, selected, radius, settings)
        assert tally is not None
        try:
            ask = procedure.send(tally)
        except StopIteration:
            break
    yield Done(samples=sum(tally.n for tally in tallies.values()))


def attacking(served: ServedNetwork, image: Tensor, number: int, *, eps: float) -> Study:
    """PGD on the network in one pass within ``eps``, then the class of the average at the attacked image."""
    clean = served.probabilities(image[None])[0]
    before = int(clean.argmax())
    start, label = image[None].to(served.device), torch.tensor([before], device=served.device)
    attack = pgd(served.model, start, label, eps=eps, steps=served.steps)
    adversarial = attack.images[0].cpu()
    shift = adversarial - image
    after = served.probabilities(adversarial[None])[0]
    largest = float(shift.abs().max())
    yield Attack(
        subject=Subject.NETWORK,
        basis=f"PGD, {served.steps} steps, within {eps:g} and the box [0, 1]; a failure proves nothing",
        success=bool(attack.success[0]),
        distance=math.ceil(float(shift.double().norm()) * 10**DIGITS) / 10**DIGITS,
        before=before,
        predicted=int(after.argmax()),
        probability=float(after.max()),
        image=png(adversarial),
        difference=png(0.5 + shift / (2 * largest) if largest else torch.full_like(shift, 0.5)),
        amplified=1 / (2 * largest) if largest else 1.0,
    )
    if served.settings is None:
        return
    tallies: dict[str, Tally] = {}
    for _ in range(0, TESTED, TURN):
        yield _job(number, adversarial, tallies, "prediction", TURN)
    tally, alpha = tallies["prediction"], served.settings.alpha
    classes, abstains = predict(tally.counts[None], alpha=alpha)
    yield AverageClass(
        subject=Subject.AVERAGE,
        basis=f"statistical, PREDICT from {tally.n} samples, alpha={alpha:g}",
        predicted=None if abstains[0] else int(classes[0]),
        counts=most_frequent(tally),
        n=tally.n,
    )


def _copies(served: ServedNetwork, settings: Settings, image: Tensor, number: int) -> Copies:
    """A few noisy copies to show, which are not counted."""
    noise = Draw(served.seed, "shown", number).normal((SHOWN_COPIES, *image.shape))
    copies = image + settings.sigma * noise
    classes = served.probabilities(copies).argmax(1).tolist()
    return Copies(copies=[(png(copy), int(c)) for copy, c in zip(copies, classes, strict=True)])


def _progress(tally: Tally, selected: int, radius: float, settings: Settings) -> Progress:
    return Progress(
        subject=Subject.AVERAGE,
        basis=str(settings.basis),
        n=tally.n,
        predicted=selected,
        radius=round_down(max(radius, 0.0), DIGITS),
        abstain=radius < 0,
        counts=most_frequent(tally),
    )


def _job(number: int, image: Tensor, tallies: dict[str, Tally], stream: str, count: int) -> Job[Tally]:
    """``count`` more samples of ``stream``, added to its tally."""
    return Job(number, image, drawing(stream, count), tallies)


def most_frequent(tally: Tally) -> list[tuple[int, int]]:
    """The most frequent classes with their counts."""
    order = np.argsort(-tally.counts, kind="stable")[:SHOWN_CLASSES]
    return [(int(c), int(tally.counts[c])) for c in order if tally.counts[c]]


def png(image: Tensor) -> str:
    """An image (channels, height, width) as a data URL, clipped to [0, 1] and rounded to 8 bits."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode()


def png_bytes(pixels: np.ndarray) -> bytes:
    """The PNG file of pixels (height, width, channels 1 or 3), uint8."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()
