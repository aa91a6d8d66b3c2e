"""What a visitor sees about an image, as events; each number states which model it covers and what it rests on."""

import base64
import io
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
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
from heatsmooth.models import check_independence, count_classes, device_of, for_inference, probabilities_of
from heatsmooth.noise import Draw
from heatsmooth.results.guarantees import BasisKind
from heatsmooth.serving.worker import Event, Study
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
    """The network of a server, with the settings of its average; ``model`` in evaluation mode on its device."""

    model: nn.Module
    settings: Settings
    seed: int
    """Of the noise. Secret, because a certificate is valid only if the image does not depend on the noise."""
    shape: tuple[int, int, int]
    """(channels, height, width) of an image of the network."""
    class_names: tuple[str, ...] | None = None
    calibration: Calibration | None = None
    steps: int = 20
    """Gradient steps of an attack."""
    classes: int = field(init=False)

    def __post_init__(self) -> None:
        noise = torch.randn(CHUNK, *self.shape, generator=torch.Generator().manual_seed(0))
        self._examples = (0.5 + self.settings.sigma * noise).to(self.device)
        self.classes = count_classes(self.model, self._examples)
        require(self.classes > 1, "expected a network of at least 2 classes, got 1; use another network")
        check_independence(self.model, self._examples)
        known = self.settings.sigma if self.calibration is None else self.calibration.sigma
        require(
            self.class_names is None or len(self.class_names) == self.classes,
            f"`class_names`: expected {self.classes} names, got {len(self.class_names or ())}; name every class",
        )
        require(
            known == self.settings.sigma,
            f"`sigma`: expected {known:g}, that of the calibration, got {self.settings.sigma:g}; use {known:g}",
        )

    @cached_property
    def device(self) -> torch.device:
        """The device of the network."""
        return device_of(self.model)

    @property
    def largest_radius(self) -> float:
        """The radius of an image for which all samples agree."""
        radius = largest_radius(self.settings, self.classes)
        require(
            radius is not None,
            f"`n`: expected enough samples to certify anything at α={self.settings.alpha:g}, got {self.settings.n}; "
            "raise `n`",
        )
        return float(radius or 0.0)

    def sampler(self, batch_size: int | None = None) -> Sampler:
        """The sampler of noisy images, with the faster form of the network."""
        fast = for_inference(self.model, self._examples)
        sigma, seed = self.settings.sigma, self.seed
        return Sampler(fast, sigma=sigma, classes=self.classes, seed=seed, batch_size=batch_size)

    @exact_float32()
    def probabilities(self, images: Tensor) -> Tensor:
        """(images, classes) of one pass, in double precision on the CPU; an error if a logit is not finite."""
        with torch.inference_mode():
            probabilities = probabilities_of(self.model(images.to(self.device)))
        finite = bool(probabilities.isfinite().all())
        require(finite, "expected finite logits, got NaN or infinity, which give no radius; use another image")
        return probabilities


def certifying(served: ServedNetwork, image: Tensor, number: int) -> Study:
    """One pass, some noisy copies, and the certificate after every few samples; image in [0, 1].

    Separate samples select the class. The bounds hold for all numbers of samples at once, except with probability α. So
    the largest radius so far is valid, and the visitor may stop at any time.
    """
    settings = served.settings
    yield {"kind": "image", "data": png(image)} | _one_pass(served, image)
    yield _copies(served, image, number)
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
    yield {"kind": "done", "samples": sum(tally.n for tally in tallies.values())}


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
    yield {
        "kind": "attack",
        "subject": "network",
        "basis": f"PGD, {served.steps} steps, within {eps:g} and the box [0, 1]; a failure proves nothing",
        "success": bool(attack.success[0]),
        "distance": math.ceil(float(shift.double().norm()) * 10**DIGITS) / 10**DIGITS,
        "before": before,
        "class": int(after.argmax()),
        "probability": float(after.max()),
        "image": png(adversarial),
        "difference": png(0.5 + shift / (2 * largest) if largest else torch.full_like(shift, 0.5)),
        "amplified": 1 / (2 * largest) if largest else 1.0,
    }
    tallies: dict[str, Tally] = {}
    for _ in range(0, TESTED, TURN):
        yield _job(number, adversarial, tallies, "prediction", TURN)
    tally = tallies["prediction"]
    classes, abstains = predict(tally.counts[None], alpha=served.settings.alpha)
    yield {
        "kind": "average",
        "subject": "average",
        "basis": f"statistical, PREDICT from {tally.n} samples, alpha={served.settings.alpha:g}",
        "class": None if abstains[0] else int(classes[0]),
        "counts": most_frequent(tally),
        "n": tally.n,
    }


def _one_pass(served: ServedNetwork, image: Tensor) -> Event:
    probabilities = served.probabilities(image[None])
    top = probabilities[0].topk(min(SHOWN_CLASSES, served.classes))
    bound = float(l_bound(probabilities, sigma=served.settings.sigma)[0])
    facts: Event = {
        "subject": "network",
        "basis": "one forward pass",
        "top": [[int(c), float(p)] for c, p in zip(top.indices, top.values, strict=True)],
        "l_bound": {"radius": round_down(bound, DIGITS), "subject": "network", "basis": BasisKind.EXACT_AVERAGE},
    }
    if served.calibration is not None:
        radius = round_down(float(served.calibration.radius(probabilities)[0]), DIGITS)
        calibration = served.calibration
        facts["calibrated"] = {"radius": radius, "subject": calibration.subject, "basis": str(calibration.basis)}
    return facts


def _copies(served: ServedNetwork, image: Tensor, number: int) -> Event:
    """A few noisy copies to show, which are not counted."""
    noise = Draw(served.seed, "shown", number).normal((SHOWN_COPIES, *image.shape))
    copies = image + served.settings.sigma * noise
    classes = served.probabilities(copies).argmax(1).tolist()
    return {"kind": "copies", "copies": [[png(copy), int(c)] for copy, c in zip(copies, classes, strict=True)]}


def _progress(tally: Tally, selected: int, radius: float, settings: Settings) -> Event:
    return {
        "kind": "radius",
        "subject": "average",
        "basis": str(settings.basis),
        "n": tally.n,
        "class": selected,
        "radius": round_down(max(radius, 0.0), DIGITS),
        "abstain": radius < 0,
        "counts": most_frequent(tally),
    }


def _job(number: int, image: Tensor, tallies: dict[str, Tally], stream: str, count: int) -> Job[Tally]:
    """``count`` more samples of ``stream``, added to its tally."""
    return Job(number, image, drawing(stream, count), tallies)


def most_frequent(tally: Tally) -> list[list[int]]:
    """The most frequent classes with their counts."""
    order = np.argsort(-tally.counts, kind="stable")[:SHOWN_CLASSES]
    return [[int(c), int(tally.counts[c])] for c in order if tally.counts[c]]


def png(image: Tensor) -> str:
    """An image (channels, height, width) as a data URL, clipped to [0, 1] and rounded to 8 bits."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode()


def png_bytes(pixels: np.ndarray) -> bytes:
    """The PNG file of pixels (height, width, channels 1 or 3), uint8."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()
