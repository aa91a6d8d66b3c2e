"""What a visitor sees of an image, as events: each number with whom it speaks of and what it rests on."""

import base64
import io
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from heatsmooth.attacks import pgd
from heatsmooth.calibrate import Calibration
from heatsmooth.certification.certificates import certify_image, chosen_class
from heatsmooth.certification.sampling import CHUNK, Job, Sampler, Tally, drawing
from heatsmooth.certification.settings import Settings, radii_of
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import check_independence, count_classes, device_of, for_inference, probabilities_of
from heatsmooth.noise import Draw
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.serving.worker import Study
from heatsmooth.statistics.bounds import predict
from heatsmooth.statistics.radii import l_bound, round_down

DIGITS = 4
"""Decimals of a radius, rounded down, and of a distance, rounded up."""
SHOWN_COPIES = 8
SHOWN_CLASSES = 3
A_TURN = 4 * CHUNK
"""The most draws that a visitor gets in one turn."""
TESTED = 1000
"""Draws that test the average at an adversarial image."""
FURTHEST = 50.0
"""The largest distance of an attack."""


@dataclass
class Subject:
    """The network, and the average that certificates speak of; ``model`` in evaluation mode, where it shall run."""

    model: nn.Module
    settings: Settings
    seed: int
    """Of the noise. Kept from visitors: a certificate is about noise that the image was not made for."""
    shape: tuple[int, int, int]
    """(channels, height, width) of what the network takes."""
    names: tuple[str, ...] | None = None
    """Of the classes."""
    calibration: Calibration | None = None
    steps: int = 20
    """Of an attack."""
    classes: int = field(init=False)

    def __post_init__(self) -> None:
        noise = torch.randn(CHUNK, *self.shape, generator=torch.Generator().manual_seed(0))
        self._examples = (0.5 + self.settings.sigma * noise).to(self.device)
        self.classes = count_classes(self.model, self._examples)
        require(self.classes > 1, "expected a network of at least 2 classes, got 1; name another")
        check_independence(self.model, self._examples)
        known = self.settings.sigma if self.calibration is None else self.calibration.sigma
        require(
            self.names is None or len(self.names) == self.classes,
            f"--classes: expected {self.classes} names, one a class, got {len(self.names or ())}; name each class once",
        )
        require(
            known == self.settings.sigma,
            f"--sigma: expected {known:g}, that of the calibration, got {self.settings.sigma:g}; leave both alike",
        )

    @cached_property
    def device(self) -> torch.device:
        """Where the network is."""
        return device_of(self.model)

    @property
    def largest_radius(self) -> float:
        """The radius of an image all of whose draws agree."""
        found = self.settings.largest_radius(self.classes)
        require(
            found is not None,
            f"--n: expected enough draws to certify anything at α={self.settings.alpha:g}, got {self.settings.n}; "
            "raise --n",
        )
        return float(found or 0.0)

    def sampler(self, batch_size: int | None = None) -> Sampler:
        """Of noisy copies, by the faster form of the network."""
        fast = for_inference(self.model, self._examples)
        sigma, seed = self.settings.sigma, self.seed
        return Sampler(fast, sigma=sigma, classes=self.classes, seed=seed, batch_size=batch_size)

    @exact_float32()
    def probabilities(self, images: Tensor) -> Tensor:
        """(images, classes) of one pass, double precision, on the CPU; an error where a logit is not finite."""
        with torch.inference_mode():
            found = probabilities_of(self.model(images.to(self.device)))
        finite = bool(found.isfinite().all())
        require(finite, "expected finite logits, got NaN or infinity, which give no radius; choose another image")
        return found


def certifying(subject: Subject, image: Tensor, number: int) -> Study:
    """One pass, some noisy copies, and the certificate after every few draws, until the last; image in [0, 1].

    The class is chosen by draws of its own. The bounds hold at all times at once, except with probability α, so the
    largest radius so far holds too, and the visitor may stop at any of them.
    """
    settings = subject.settings
    yield {"kind": "image", "data": png(image)} | _one_pass(subject, image)
    yield _copies(subject, image, number)
    tallies: dict[str, Tally] = {}
    procedure = certify_image(settings)
    ask, radius = next(procedure), -1.0
    while True:
        left, tally = ask.count, None
        while left:
            tally = yield _job(number, image, tallies, ask.stream, min(left, A_TURN))
            assert tally is not None
            left -= min(left, A_TURN)
            if ask.stream == "estimation":
                chosen = chosen_class(tallies)
                found, abstain = radii_of(tally.counts[None], np.array([chosen]), settings)
                radius = max(radius, -1.0 if abstain[0] else float(found[0]))
                yield _progress(tally, chosen, radius, settings)
        assert tally is not None
        try:
            ask = procedure.send(tally)
        except StopIteration:
            break
    yield {"kind": "done", "samples": sum(tally.n for tally in tallies.values())}


def attacking(subject: Subject, image: Tensor, number: int, *, eps: float) -> Study:
    """PGD on the network in one pass within ``eps``, then the class of the average at what it found."""
    clean = subject.probabilities(image[None])[0]
    before = int(clean.argmax())
    start, label = image[None].to(subject.device), torch.tensor([before], device=subject.device)
    found = pgd(subject.model, start, label, eps=eps, steps=subject.steps)
    adversarial = found.images[0].cpu()
    shift = adversarial - image
    after = subject.probabilities(adversarial[None])[0]
    largest = float(shift.abs().max())
    yield {
        "kind": "attack",
        "subject": "network",
        "basis": f"PGD, {subject.steps} steps, within {eps:g} and the box [0, 1]; a failure proves nothing",
        "success": bool(found.success[0]),
        "distance": math.ceil(float(shift.double().norm()) * 10**DIGITS) / 10**DIGITS,
        "before": before,
        "class": int(after.argmax()),
        "probability": float(after.max()),
        "image": png(adversarial),
        "difference": png(0.5 + shift / (2 * largest) if largest else torch.full_like(shift, 0.5)),
        "amplified": 1 / (2 * largest) if largest else 1.0,
    }
    tallies: dict[str, Tally] = {}
    for _ in range(0, TESTED, A_TURN):
        yield _job(number, adversarial, tallies, "prediction", A_TURN)
    tally = tallies["prediction"]
    named, abstains = predict(tally.counts[None], alpha=subject.settings.alpha)
    yield {
        "kind": "average",
        "subject": "average",
        "basis": f"statistical, PREDICT from {tally.n} draws, alpha={subject.settings.alpha:g}",
        "class": None if abstains[0] else int(named[0]),
        "counts": most_frequent(tally),
        "n": tally.n,
    }


def _one_pass(subject: Subject, image: Tensor) -> dict[str, Any]:
    probabilities = subject.probabilities(image[None])
    top = probabilities[0].topk(min(SHOWN_CLASSES, subject.classes))
    bound = float(l_bound(probabilities, sigma=subject.settings.sigma)[0])
    facts: dict[str, Any] = {
        "subject": "network",
        "basis": "one forward pass",
        "top": [[int(c), float(p)] for c, p in zip(top.indices, top.values, strict=True)],
        "l_bound": {"radius": round_down(bound, DIGITS), "subject": "network", "basis": BasisKind.EXACT_AVERAGE},
    }
    if subject.calibration is not None:
        radius = round_down(float(subject.calibration.radius(probabilities)[0]), DIGITS)
        known = subject.calibration
        facts["calibrated"] = {"radius": radius, "subject": known.subject, "basis": str(known.basis)}
    return facts


def _copies(subject: Subject, image: Tensor, number: int) -> dict[str, Any]:
    """A few noisy copies to look at, beside those that are counted."""
    noise = Draw(subject.seed, "shown", number).normal((SHOWN_COPIES, *image.shape))
    copies = image + subject.settings.sigma * noise
    seen = subject.probabilities(copies).argmax(1).tolist()
    return {"kind": "copies", "copies": [[png(copy), int(c)] for copy, c in zip(copies, seen, strict=True)]}


def _progress(tally: Tally, chosen: int, radius: float, settings: Settings) -> dict[str, Any]:
    return {
        "kind": "radius",
        "subject": "average",
        "basis": str(settings.basis),
        "n": tally.n,
        "class": chosen,
        "radius": round_down(max(radius, 0.0), DIGITS),
        "abstain": radius < 0,
        "counts": most_frequent(tally),
    }


def _job(number: int, image: Tensor, tallies: dict[str, Tally], stream: str, count: int) -> Job[Tally]:
    """``count`` more draws of ``stream``, added to its tally."""
    return Job(number, image, drawing(stream, count), tallies)


def most_frequent(tally: Tally) -> list[list[int]]:
    """The classes drawn most often, with their counts."""
    order = np.argsort(-tally.counts, kind="stable")[:SHOWN_CLASSES]
    return [[int(c), int(tally.counts[c])] for c in order if tally.counts[c]]


def png(image: Tensor) -> str:
    """A data address of an image (channels, height, width), clipped to [0, 1] and rounded to 8 bits."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode()


def png_bytes(pixels: np.ndarray) -> bytes:
    """The PNG file of pixels (height, width, channels 1 or 3), uint8."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()
