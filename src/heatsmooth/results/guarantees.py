"""What a radius guarantees: which model it covers, and on what it rests. Text is only for people and files."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

from heatsmooth.errors import InputError
from heatsmooth.settings import NORM_NAMES, Noise, Norm

Bound = Literal["one-sided", "two-sided", "randomised"]
"""Of the class from below; also of the second class from above; or of the class from below, with one random number per
image."""
BOUNDS: tuple[Bound, ...] = get_args(Bound)
ClassFrom = Literal["noise", "clean"]
"""Where the certified class comes from: noisy samples or one clean pass."""


class Subject(StrEnum):
    """The model that a radius or an attack covers."""

    NETWORK = "network"
    """The network itself, in one pass."""
    AVERAGE = "average"
    """Its average over noise, Gaussian unless the basis says otherwise: the most probable class under noise."""


class BasisKind(StrEnum):
    """What a radius rests on."""

    DETERMINISTIC = "deterministic"
    """A proof from the stored weights of a network that is Lipschitz by construction: never false."""
    STATISTICAL = "statistical"
    """Sampled class counts: false with probability at most α."""
    CONFORMAL = "conformal"
    """Calibration on other images: false with probability at most ε + α, over images like those."""
    UNDER_ATTACK = "conformal under attack"
    """The same, also for images that were changed within ρ before the secret noise of their passes was drawn."""
    EXACT_AVERAGE = "assumes an exact average"
    """The assumption, checked by nothing, that the network is exactly a Gaussian average."""
    ESTIMATE = "estimate: extreme values of sampled gradients, no guarantee"
    """The largest gradient near the image, extrapolated from samples (CLEVER): it may be too large or too small."""
    ATTACK = "attack: empirical, these images and attacks only"
    """Attacks that found nothing smaller."""
    UNSTATED = "statistical, as the log's own α and n"
    """Statistical, with an α and an n that the log does not state."""


@dataclass(frozen=True)
class Basis:
    """What a radius rests on, with the numbers of its guarantee; numbers that do not apply have their defaults."""

    kind: BasisKind
    alpha: float | None = None
    """Statistical: the probability with which a certificate may be false."""
    bound: Bound = "one-sided"
    k: int = 1
    """Statistical: the class stays among the k most probable."""
    anytime: bool = False
    """Statistical: the bound holds for any rule that stops sampling."""
    n_wrong: int | None = None
    """Statistical: samples per image where the class is wrong, if fewer."""
    confidence: float | None = None
    """Conformal: 1 − ε − α, marginal over images like the calibration set."""
    rho: float | None = None
    """Conformal under attack: how far, in L2, the image may have been changed. The radius is about the image before."""
    passes: int = 1
    """Conformal under attack: noisy passes per image."""
    noise: Noise = "gaussian"
    """Statistical: the noise that the network is averaged over."""
    norm: Norm = "l2"
    """How the radius is measured."""

    @property
    def usual(self) -> bool:
        """Whether the radius is L2, and the noise Gaussian."""
        return (self.noise, self.norm) == ("gaussian", "l2")

    @property
    def norm_name(self) -> str:
        """The norm of the radius, for people."""
        return NORM_NAMES[self.norm]

    @property
    def noise_name(self) -> str:
        """The noise within a sentence: "Gaussian", "laplace" or "uniform"."""
        return "Gaussian" if self.noise == "gaussian" else self.noise

    def __str__(self) -> str:
        """As it is on disk, and as ``Basis.read`` reads it; α with six digits."""
        if self.kind is BasisKind.CONFORMAL:
            return f"conformal, 1-epsilon-alpha={self.confidence:.10g}, marginal over images like the calibration set"
        if self.kind is BasisKind.UNDER_ATTACK:
            return (
                f"conformal under attack, 1-epsilon-alpha={self.confidence:.10g}, rho={self.rho:.10g}, "
                f"passes={self.passes}, marginal over images like the calibration set before the attack"
            )
        measured = "" if self.norm == "l2" else f", {self.norm} radius"
        if self.kind is not BasisKind.STATISTICAL:
            return self.kind + measured
        bound = self.bound if self.k == 1 else f"top-{self.k}"
        stopping = ", any stopping" if self.anytime else ""
        fewer = "" if self.n_wrong is None else f", n={self.n_wrong} where wrong"
        noise = "" if self.noise == "gaussian" else f", {self.noise} noise"
        return f"statistical, alpha={self.alpha:g}, {bound}{stopping}{fewer}{noise}{measured}"

    @classmethod
    def read(cls, text: str) -> "Basis":
        """The basis of a text on disk.

        >>> Basis.read("statistical, alpha=0.001, top-5") == Basis(BasisKind.STATISTICAL, alpha=0.001, k=5)
        True
        """
        if text == BasisKind.DETERMINISTIC:
            return cls(BasisKind.DETERMINISTIC)
        if (parts := _STATISTICAL.fullmatch(text)) is not None:
            return cls(
                BasisKind.STATISTICAL,
                alpha=float(parts["alpha"]),
                bound=next((bound for bound in BOUNDS if bound == parts["bound"]), "one-sided"),
                k=int(parts["k"] or 1),
                anytime=parts["anytime"] is not None,
                n_wrong=None if parts["n_wrong"] is None else int(parts["n_wrong"]),
                noise=_NOISES[parts["noise"]],
                norm=_NORMS[parts["norm"]],
            )
        if (parts := _CONFORMAL.fullmatch(text)) is not None:
            return cls(BasisKind.CONFORMAL, confidence=float(parts["confidence"]))
        if (parts := _UNDER_ATTACK.fullmatch(text)) is not None:
            return cls(
                BasisKind.UNDER_ATTACK,
                confidence=float(parts["confidence"]),
                rho=float(parts["rho"]),
                passes=int(parts["passes"]),
            )
        raise InputError(f"expected what a radius rests on, got {text[:60]!r}; certify again")


_NOISES: dict[str | None, Noise] = {None: "gaussian", "laplace": "laplace", "uniform": "uniform"}
_NORMS: dict[str | None, Norm] = {None: "l2", "l1": "l1", "linf": "linf"}
_NUMBER = r"\d+(?:\.\d+)?(?:e-\d+)?"
_STATISTICAL = re.compile(
    rf"statistical, alpha=(?P<alpha>{_NUMBER}), (?P<bound>{'|'.join(BOUNDS)}|top-(?P<k>[1-9]\d{{0,8}}))"
    r"(?P<anytime>, any stopping)?(?:, n=(?P<n_wrong>\d{1,15}) where wrong)?"
    r"(?:, (?P<noise>laplace|uniform) noise)?(?:, (?P<norm>l1|linf) radius)?",
    re.ASCII,
)
_CONFORMAL = re.compile(
    rf"conformal, 1-epsilon-alpha=(?P<confidence>{_NUMBER}), marginal over images like the calibration set", re.ASCII
)
_UNDER_ATTACK = re.compile(
    rf"conformal under attack, 1-epsilon-alpha=(?P<confidence>{_NUMBER}), rho=(?P<rho>{_NUMBER}), "
    r"passes=(?P<passes>[1-9]\d{0,5}), marginal over images like the calibration set before the attack",
    re.ASCII,
)
