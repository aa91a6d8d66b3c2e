"""Radii of an average over any of the noises, in any of their norms, from bounds on its class probabilities.

σ is the standard deviation of each value: Laplace noise has the scale b = σ/√2, uniform noise lies in [−λ, λ] with
λ = √3σ (Yang 2020, "Randomized smoothing of all shapes and sizes"). For one bound, every L1 radius is the quantile
F⁻¹(p̲) of the noise of one value: no larger radius holds, because the network may depend on a single value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from heatsmooth.errors import InputError
from heatsmooth.settings import Noise, Norm, norm_of
from heatsmooth.statistics.bounds import Flags, Floats
from heatsmooth.statistics.radii import contest, one_sided_radius, positive, top_k_radius, two_sided_radius


def laplace_radius(lower: ArrayLike, rival: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """The L1 radius of Laplace noise: the larger of b/2·ln(p̲/p̄) and −b·ln(1 − p̲ + p̄), with b = σ/√2 (Teng 2020).

    A perturbation of L1 length r changes each density by a factor of at most e^(r/b). The first bound uses it for both
    classes, the second for everything but the label and for the rival. With p̄ = 1 − p̲, the second is the larger one:
    −b·ln(2(1 − p̲)).
    """
    p, q, ahead = contest(lower, rival)
    with np.errstate(divide="ignore"):
        ratio = (np.log(p) - np.log(q)) / 2
        radius = np.maximum(ratio, -np.log1p(q - p))
    return positive(sigma) / np.sqrt(2) * radius, ~ahead


def uniform_radius(lower: ArrayLike, rival: ArrayLike, *, sigma: float) -> tuple[Floats, Flags]:
    """The L1 radius of uniform noise: λ·(p̲ − p̄), with λ = √3σ.

    A perturbation of L1 length r moves at most the share r/(2λ) of the cube out of itself. With p̄ = 1 − p̲ this is
    2λ·(p̲ − ½).
    """
    p, q, ahead = contest(lower, rival)
    return np.sqrt(3) * positive(sigma) * (p - q), ~ahead


def uniform_linf_radius(lower: ArrayLike, rival: ArrayLike, *, sigma: float, pixels: int) -> tuple[Floats, Flags]:
    """The L∞ radius of uniform noise: 2λ·(1 − (1 − (p̲ − p̄)/2)^(1/d)), with λ = √3σ and d = ``pixels``.

    Moving every value by r leaves the share (1 − r/(2λ))^d of the cube inside.
    """
    p, q, ahead = contest(lower, rival)
    return -2 * np.sqrt(3) * positive(sigma) * np.expm1(np.log1p((q - p) / 2) / pixels), ~ahead


@dataclass(frozen=True)
class Smoothing:
    """The average over a noise, and how its radii are measured."""

    sigma: float
    """Standard deviation of the noise, in [0, 1] pixels."""
    noise: Noise = "gaussian"
    norm: Norm = "l2"
    pixels: int | None = None
    """d, the number of values of an image: channels × height × width. Only L∞ radii need it."""

    def __post_init__(self) -> None:
        norm_of(self.noise, self.norm)
        if self.norm == "linf" and not self.pixels:
            raise InputError("`norm` linf: expected the size of the images, got none; certify again")

    @property
    def _scale(self) -> float:
        """An L2 radius divided by this is a radius in the norm: ‖δ‖₂ ≤ ‖δ‖₁ and ‖δ‖₂ ≤ √d·‖δ‖∞."""
        return float(np.sqrt(self.pixels or 1)) if self.norm == "linf" else 1.0

    def one_sided(self, lower: ArrayLike) -> tuple[Floats, Flags]:
        """Radius and abstention from a lower bound of the label's probability; all rivals together have 1 − p̲."""
        if self.noise == "gaussian":
            radius, abstain = one_sided_radius(lower, sigma=self.sigma)
            return radius / self._scale, abstain
        return self.two_sided(lower, 1 - np.asarray(lower, dtype=np.float64))

    def two_sided(self, lower: ArrayLike, rival: ArrayLike) -> tuple[Floats, Flags]:
        """Radius and abstention from bounds of the label and of its strongest rival."""
        if self.noise == "laplace":
            return laplace_radius(lower, rival, sigma=self.sigma)
        if self.noise == "uniform" and self.norm == "linf":
            return uniform_linf_radius(lower, rival, sigma=self.sigma, pixels=self.pixels or 1)
        if self.noise == "uniform":
            return uniform_radius(lower, rival, sigma=self.sigma)
        radius, abstain = two_sided_radius(lower, rival, sigma=self.sigma)
        return radius / self._scale, abstain

    def top_k(self, lower: ArrayLike, rivals: ArrayLike) -> tuple[Floats, Flags]:
        """Radius and abstention of a top-k certificate, for Gaussian noise (Jia 2020)."""
        radius, abstain = top_k_radius(lower, rivals, sigma=self.sigma)
        return radius / self._scale, abstain

    def probability(self, radius: ArrayLike) -> Floats:
        """The lower bound p̲ from which ``one_sided`` gives this radius; at most 1."""
        r = np.asarray(radius, dtype=np.float64)
        if self.noise == "gaussian":
            return np.asarray(special.ndtr(r * self._scale / self.sigma))
        if self.noise == "laplace":
            return np.asarray(0.5 - np.expm1(-r * np.sqrt(2) / self.sigma) / 2)
        width = 2 * np.sqrt(3) * self.sigma
        if self.norm == "linf":
            return np.asarray(np.minimum(1.5 - (1 - np.minimum(r / width, 1)) ** (self.pixels or 1), 1.0))
        return np.asarray(np.minimum(0.5 + r / width, 1.0))
