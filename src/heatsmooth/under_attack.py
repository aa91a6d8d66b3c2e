"""A radius from a few noisy passes, with a conformal guarantee that holds for attacked images; no torch.

Let x be the image before an attack, y = x + δ the image that is received, ‖δ‖ ≤ ρ, and z = y + η the input of a noisy
pass, with secret η ~ N(0, τ²I). The pass claims its class c(z) and a radius h(z). R_c(x) is the statistical radius of
the average for class c at the image x *before* the attack; 0 for all classes but the certified one. The claim is false
if z lies in A_x = {z : h(z) > R_c(z)(x)}. This set depends on x, but on neither δ nor η. So the attack raises the
probability p_x = P(x + η ∈ A_x) to Φ(Φ⁻¹(p_x) + ρ/τ) at most, see ``statistics.attacked``.

From k passes, the radius of a class is the j-th largest of the radii that these passes claim for it, j > k/2. So a
false radius needs at least j passes in A_x. Its probability under attack is F(p_x) at most. For k > 1, A_x is split:
claims of the certified class that are too large, and claims of other classes. A false radius needs j passes in
one of the two, so F of the one plus F of the other is a bound too, and usually a smaller one.

h belongs to the same family of radii as in ``calibration``, fitted on noisy passes of one part of the images. For the
other part, many noisy passes of each image give an estimate ψ_i of F(p_i) that is not too small in expectation. The
least price λ with (Σ ψ_i + B)/(m + 1) ≤ ε is selected, where no ψ_i exceeds B: 1, or 2 for the sum of two. This is
conformal risk control: a new image has E F(p_x) ≤ ε.
"""

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from heatsmooth.calibration import (
    FITTED,
    RadiusFamily,
    Recorded,
    allowed_errors,
    require_certificates,
    split_parts,
)
from heatsmooth.errors import require
from heatsmooth.learnt_radius import LearntRadius, doubt_of, level_of, radius_at
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.noisy_passes import Claims, NoisyPasses
from heatsmooth.statistics.attacked import SLACK, risks_by_count
from heatsmooth.statistics.bounds import Floats, Integers
from heatsmooth.statistics.radii import without_nan

FITTING_PASSES = 10
"""Passes per image that fit the model."""
MOST_SAMPLES = 5000
"""Largest number of noisy passes per calibration image."""


@dataclass(frozen=True, kw_only=True)
class AttackCalibration(LearntRadius):
    """A map from the probabilities of k noisy passes to a class and a radius of the *average* over N(0, σ²I).

    Guarantee: let x be exchangeable with the calibration images, and let an attacker, who knows everything but the
    noise of the passes, change it by at most ρ in L2. Then P(radius > R) ≤ ε. R is the statistical radius of the
    average at x, *the image before the attack*, for the claimed class; it is itself false with probability ≤ α. So the
    average keeps the class within ``radius`` of x, and within ``radius`` − ρ of the received image, except with
    probability ε + α.

    The guarantee is marginal over images and calibration set, as that of ``Calibration``. It needs fresh noise, drawn
    after the image was received and unknown until then. It is for one query per image: among q queries, one claim is
    false with probability up to q(ε + α). It does not say that an attacked image gets a radius.
    """

    rho: float
    """Largest L2 change ρ by the attacker, in [0, 1] pixels."""
    noise: float
    """Standard deviation τ of the noise of the passes, in [0, 1] pixels."""
    passes: int
    """Noisy passes k per image."""
    needed: int
    """How many of them, j, must claim the class and the radius; more than half."""
    samples: int
    """Noisy passes per calibration image."""

    def __post_init__(self) -> None:
        check_attack(self.rho, self.noise, self.passes, self.samples)
        sound = self.passes < 2 * self.needed <= 2 * self.passes
        require(sound, f"`needed`: expected more than half of {self.passes} passes, got {self.needed}")
        require(not self.runner_up, f"calibration: expected no weight of the runner-up, got {self.runner_up}")

    @property
    def basis(self) -> Basis:
        """What the radius rests on."""
        confidence = 1 - self.epsilon - self.alpha
        return Basis(BasisKind.UNDER_ATTACK, confidence=confidence, rho=self.rho, passes=self.passes)

    def claims(self, probabilities: Any) -> Claims:
        """Class and radius of each image from the ``probabilities`` (images, passes, classes) of its noisy passes.

        The passes must have been made with fresh, secret noise of the standard deviation ``noise``. A pass with NaN,
        the softmax of logits that are not finite, claims nothing.
        """
        values, unknown = without_nan(probabilities)
        require(
            values.ndim == 3 and values.shape[1] == self.passes,
            f"`probabilities`: expected (images, {self.passes} passes, classes), got {values.shape}; use as many noisy "
            "passes as were calibrated",
        )
        votes = np.where(unknown, -1, values.argmax(-1))
        claimed = np.where(unknown, 0.0, radius_at(self.steps, doubt_of(values, self.classes)))
        predicted = np.array([_most_frequent(row) for row in votes.tolist()], dtype=np.int64)
        own = np.sort(np.where(votes == predicted[:, None], claimed, 0.0))
        radii = np.where(predicted < 0, 0.0, own[:, self.passes - self.needed])
        return Claims(classes=predicted, radii=radii, received_radii=np.maximum(0.0, radii - self.rho))


def check_images(images: int, samples: int, shift: float, votes: int, *, epsilon: float, rho: float) -> None:
    """Refuse so few calibration images, or noisy passes of each, that no radius could be claimed.

    ``images``: certified images. ``samples``: noisy passes of each. ``shift``: ρ/τ. ``votes``: noisy passes per new
    image.
    """
    least = min(float(risk[0]) for risk in _risks(samples, shift, votes).values())
    _require_images(images, least, epsilon, parts=_parts(votes), samples=samples, rho=rho)


def _parts(votes: int) -> int:
    """The parts of the false claims that are bounded one by one."""
    return 1 if votes == 1 else 2


def _risks(samples: int, shift: float, votes: int) -> dict[int, Floats]:
    """By how many passes must agree, the risk of an image by how many of its noisy passes claim too much."""
    numbers = range(votes // 2 + 1, votes + 1)
    return {needed: risks_by_count(samples, shift, passes=votes, needed=needed) for needed in numbers}


def _require_images(images: int, least: float, epsilon: float, *, parts: int, samples: int, rho: float) -> None:
    """Refuse too few images. ``least``: the risk of one part of an image of which no noisy pass claims too much."""
    rest = epsilon - parts * SLACK
    require(
        parts * least < rest,
        f"`noise_samples`: expected enough to see a risk below epsilon {epsilon:g} under attack, got {samples}, which "
        f"leave {parts * least:.2g} per image; raise `noise_samples`, `passes`, `noise` or `epsilon`, or "
        f"lower ρ={rho:g}",
    )
    correcting = math.ceil((parts - rest) / (rest - parts * least))
    wanted = math.floor((correcting - 1) / (1 - FITTED)) + 1
    require(
        images >= wanted,
        f"`certificates`: expected at least {wanted} certified images for epsilon {epsilon:g} under attack, got "
        f"{images}; certify more images, or raise `noise_samples` or `epsilon`",
    )


def calibrate_under_attack(
    certificates: Certificates,
    passes: NoisyPasses,
    *,
    rho: float,
    epsilon: float,
    votes: int = 1,
    **recorded: Unpack[Recorded],
) -> AttackCalibration:
    """Learn a radius from noisy passes, with the guarantee of ``AttackCalibration`` at the σ and α of the certificates.

    ``certificates``: top-1 certificates of a random sample of the images that the radius is meant for, without attacks.
    The network must not have been trained on them. Labels are not used.
    ``passes``: noisy passes of the same images, in the order of the certificates, as ``noisy_passes`` gives them.
    ``rho``: largest L2 change by the attacker, 0 or more, in [0, 1] pixels.
    ``epsilon``: the probability ε of a radius that is too large, above 0 and below 1.
    ``votes``: noisy passes k per new image. More than half of them must agree; how many is chosen on the images that
    fit the model.
    ``seed``: splits the images into the part that fits the model and the part that selects λ.
    ``model_hash``, ``network`` (an identity as JSON), ``data``: recorded in the calibration.
    """
    sigma, alpha, images = certificates.sigma, certificates.basis.alpha or 0.0, len(certificates)
    require_certificates(certificates, sigma=sigma, alpha=alpha)
    samples = _samples(passes, images)
    check_attack(rho, passes.noise, votes, samples)
    fit, rest = split_parts(images, recorded.get("seed", 0))
    allowed_errors(len(rest), epsilon, images=images)
    backed = np.where(passes.classes == certificates.classes[:, None], certificates.radii[:, None], 0.0)
    some = slice(0, FITTING_PASSES)
    family = RadiusFamily.fit(passes.doubts[fit, some].ravel(), backed[fit, some].ravel())
    parts = _parts(votes)
    fitting = _Part(family, passes.doubts[fit], backed[fit], parts=parts)
    correcting = _Part(family, passes.doubts[rest], backed[rest], parts=parts)
    risks = _risks(samples, rho / passes.noise, votes)
    needed = fitting.best_number(risks, epsilon, passes=votes)
    _require_images(images, float(risks[needed][0]), epsilon, parts=parts, samples=samples, rho=rho)
    return AttackCalibration(
        steps=correcting.steps(risks[needed], epsilon),
        classes=passes.number_of_classes,
        rho=float(rho),
        noise=passes.noise,
        passes=votes,
        needed=needed,
        epsilon=epsilon,
        alpha=alpha,
        sigma=sigma,
        samples=samples,
        fitted=len(fit),
        corrected=len(rest),
        **recorded,
    )


class _Part:
    """A part of the calibration images, and how many passes of each image claim too much for a table of radii by level.

    Radii grow with the level. So a pass claims too much from some level on, and cumulative counts answer at once.

    ``doubts``, ``backed``: of each pass, (images, passes); ``backed`` is the radius of the image, or 0. ``parts``: 1 to
    count all false claims together, 2 to count those that no radius backs apart.
    """

    def __init__(self, family: RadiusFamily, doubts: Floats, backed: Floats, *, parts: int) -> None:
        self.family, self.doubts, self.backed, self.parts = family, doubts, backed, parts
        levels = level_of(family.levels, doubts)
        self._radii = backed.max(1)
        self._own = _at_least(levels, backed > 0, len(family.levels))
        self._other = _at_least(levels, backed == 0, len(family.levels))

    def steps(self, risks: Floats, epsilon: float) -> tuple[tuple[float, float], ...]:
        """The largest radii whose risk is at most ε, by conformal risk control; ``risks``: by count of false claims."""
        limit = self._limit(epsilon)

        def covers(table: Floats) -> bool:
            return not table.any() or float(sum(risks[counts].sum() for counts in self._false(table))) <= limit

        return self.family.largest(covers)

    def best_number(self, risks: dict[int, Floats], epsilon: float, *, passes: int) -> int:
        """How many of the passes must agree for the largest mean radius; ``risks``: by that number."""
        radii = {
            number: self.mean_radius(of_number, epsilon, passes=passes, needed=number)
            for number, of_number in risks.items()
        }
        return max(radii, key=lambda number: (radii[number], number))

    def mean_radius(self, risks: Floats, epsilon: float, *, passes: int, needed: int) -> float:
        """The mean radius, 0 where false, that the largest radii give these images if ``needed`` passes must agree."""
        images, samples = self.doubts.shape
        claimed = np.where(self.backed > 0, radius_at(self.steps(risks, epsilon), self.doubts), 0.0)
        groups = claimed[:, : samples - samples % passes].reshape(images, -1, passes)
        radii = np.sort(groups)[:, :, passes - needed] if groups.size else np.zeros((images, 1))
        return float((radii * (radii <= self._radii[:, None])).mean())

    def _limit(self, epsilon: float) -> float:
        return (epsilon - self.parts * SLACK) * (len(self.doubts) + 1) - self.parts

    def _false(self, table: Floats) -> list[Integers]:
        """The number of false claims per image, (images,), if the passes claim the radii of ``table`` (levels,)."""
        rows = np.arange(len(self._radii))
        first_too_large = np.searchsorted(table, self._radii, side="right")
        first_positive = np.searchsorted(table, 0.0, side="right")
        own, other = self._own[rows, first_too_large], self._other[:, first_positive]
        return [own + other] if self.parts == 1 else [own, other]


def _at_least(levels: Integers, counted: ArrayLike, number: int) -> Integers:
    """How many ``counted`` passes of each image have at least each level, (images, number + 1); the last is 0."""
    images = len(levels)
    flat = (levels + np.arange(images)[:, None] * (number + 1)).ravel()
    weights = np.asarray(counted, np.float64).ravel()
    exact = np.bincount(flat, weights, minlength=images * (number + 1)).reshape(images, number + 1)
    return np.asarray(exact[:, ::-1].cumsum(1)[:, ::-1], dtype=np.int64)


def usual_noise(rho: float, sigma: float, passes: int) -> float:
    """Standard deviation τ, if none is chosen: ρ for one pass, ρ/2 for several, but at least σ/4 and at most σ.

    Less noise makes passes more accurate. But then ρ/τ is larger, and calibration needs to see smaller risks.
    """
    return min(max(rho if passes == 1 else rho / 2, sigma / 4), sigma)


def check_attack(rho: float, noise: float, passes: int, samples: int) -> None:
    """Refuse settings that cannot be calibrated."""
    require(0 <= rho < math.inf, f"`under_attack`: expected a distance, 0 or more, got {rho}; 0.1 is usual")
    require(0 < noise < math.inf, f"`noise`: expected a positive number, got {noise}; leave it out")
    require(1 <= passes <= 100, f"`passes`: expected 1 to 100, got {passes}; 1 or 5 are usual")
    require(
        FITTING_PASSES <= samples <= MOST_SAMPLES,
        f"`noise_samples`: expected {FITTING_PASSES} to {MOST_SAMPLES}, got {samples}; 1000 is usual",
    )


def _samples(passes: NoisyPasses, images: int) -> int:
    """The number of passes per image; an error if they are not of as many images."""
    shape = passes.doubts.shape
    require(
        len(shape) == 2 and shape[0] == images and shape == passes.classes.shape,
        f"`passes`: expected noisy passes of {images} images, got {shape}; use those of the certified images",
    )
    return int(shape[1])


def _most_frequent(votes: list[int]) -> int:
    """The most frequent class, of several the smallest; -1 only if there is no other."""
    known = [vote for vote in votes if vote >= 0]
    return max(sorted(set(known)), key=known.count, default=-1)
