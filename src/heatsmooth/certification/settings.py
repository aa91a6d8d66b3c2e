"""What a person may choose about certificates. No torch: the command line reads its options here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, TypedDict

import numpy as np

from heatsmooth.errors import require
from heatsmooth.results.guarantees import Basis, BasisKind, Bound, ClassFrom
from heatsmooth.results.schema import LARGEST, from_json
from heatsmooth.settings import Noise, Norm, check_at_least, check_choices, check_positive, norm_of
from heatsmooth.statistics.mixtures import Mixture, Prior, mixture_of
from heatsmooth.statistics.noises import Smoothing

SAMPLING = {"group": "Sampling"}
Sequence = Literal["exact", "mixture", "beta"]
MOST_LIKELY = 1 - 1e-9
"""No number of samples in practice shows that a class is more probable than this."""
MARGIN = 1e-8
"""Added to an asked radius: radii are rounded down to 9 decimals, and must still reach it."""


@dataclass(frozen=True)
class Settings:
    """What is certified, and with which confidence."""

    sigma: float
    """Standard deviation of the noise, in [0, 1] pixels."""
    n: int = 10_000
    """Samples per image (maximum with `adaptive`)."""
    n0: int = 100
    """Separate samples per image to select its class. Not used with `class_from` clean."""
    alpha: float = 0.001
    """Largest probability that a certificate is false."""
    class_from: ClassFrom = "noise"
    """Class from n0 noisy samples, or from one pass. The first is Cohen's, the second the
    paper's."""
    adaptive: bool = False
    """Stop sampling an image once its radius is decided. Only for one-sided top-1 certificates."""
    radii: tuple[float, ...] = ()
    """With `adaptive`: radii to decide, as 0.25,0.5. Without them, the radius is found up to the tolerance."""
    sequence: Sequence = field(default="exact", metadata=SAMPLING)
    """With `adaptive` and `radii`: which bounds hold whenever sampling stops. Exact needs the fewest samples to decide
    these radii. Mixture is the same with a bound of its error probability instead of the computed one. Beta bounds
    every radius. Both were the default before."""
    prior: Prior | None = field(default=None, metadata={"option": False})
    """For exact and mixture: what is expected of the images before sampling, fitted on other images. None: nothing."""
    tolerance: float = field(default=0.05, metadata=SAMPLING)
    """With `adaptive`: tolerance of the radius. Sampling stops when more samples would probably add at most this
    much."""
    bound: Bound = "one-sided"
    """Bound of the class, or also of the second. Two-sided also bounds the second class from above. Randomised bounds
    the class, with one random number per image, and is tighter; only for a fixed n and top-1."""
    top_k: int = 1
    """The label stays among the k most probable classes. Without labels, the class does."""
    n_wrong: int | None = field(default=None, metadata=SAMPLING)
    """Fewer samples where the selected class is not the label. Such an image counts as 0 in any case. Its certificate
    stays valid. Not with `adaptive` or `top_k`."""
    noise: Noise = field(default="gaussian", metadata={"group": "Other norms"})
    """Distribution of the noise. `sigma` is the standard deviation of each."""
    norm: Norm | None = field(default=None, metadata={"group": "Other norms"})
    """Norm of the radius (default: l2 with gaussian noise, else l1). gaussian: l2, l1 or linf. laplace: l1. uniform: l1
    or linf."""

    def __post_init__(self) -> None:
        check_positive(self, "sigma", "tolerance")
        check_at_least(self, 1, "n0", "top_k")
        check_choices(self)
        require(0 < self.alpha < 0.5, f"`alpha`: expected a number above 0 and below 0.5, got {self.alpha}")
        require(all(r >= 0 for r in self.radii), f"`radii`: expected 0 or more, got {self.radii}")
        plain = self.top_k == 1 or self.noise == "gaussian"
        require(plain, f"`top_k`: expected 1 with {self.noise} noise, got {self.top_k}; leave it out")
        norm_of(self.noise, self.norm)
        if self.n_wrong is not None:
            require(0 < self.n_wrong <= self.n, f"`n_wrong`: expected from 1 to `n` {self.n}, got {self.n_wrong}")
            plain = self.top_k == 1 and not self.adaptive
            require(plain, "`n_wrong`: expected top-1 certificates of a fixed n, got others; leave it out")
        if self.bound == "randomised":
            plain = self.top_k == 1 and not self.adaptive
            require(plain, "`bound` randomised: expected top-1 certificates of a fixed n, got others; use one-sided")
        most = max(self.radii, default=0.0)
        reachable = not self.mixes or max(self.levels) < MOST_LIKELY
        require(reachable, f"`radii`: expected some that noise of σ={self.sigma:g} can reach, got {most:g}")
        require(self.prior is None or self.mixes, "`prior`: expected `adaptive` and `radii` beside it; leave it out")

    @classmethod
    def from_json(cls, value: Any, where: Any) -> Self:
        """What ``describe`` gave to the ``run.json`` of the directory ``where``."""
        expected = f"{where}: expected the settings of certificates in run.json"
        require(isinstance(value, Mapping), f"{expected}, got {str(value)[:40]}; certify again")
        unknown = sorted(value.keys() - {item.name for item in fields(cls)})
        require(not unknown, f"{expected}, got the unknown {str(unknown)[:60]}; certify again")
        if value.get("adaptive") and value.get("radii"):
            value = {"sequence": "beta"} | dict(value)
        return from_json(cls, value, expected, "certify again")

    def describe(self) -> dict[str, object]:
        """What a run records; newer fields only where they are used, as in runs from before they existed."""
        used = {
            "n_wrong": self.n_wrong is not None,
            "prior": self.prior is not None,
            "sequence": self.mixes,
            "noise": self.noise != "gaussian",
            "norm": self.radius_norm != "l2",
        }
        values = asdict(self) | {"norm": self.radius_norm}
        return {name: value for name, value in values.items() if used.get(name, True)}

    @property
    def radius_norm(self) -> Norm:
        """The norm of the radii."""
        return norm_of(self.noise, self.norm)

    @property
    def mixes(self) -> bool:
        """Whether the capitals of ``statistics.mixtures`` decide the radii."""
        return self.adaptive and bool(self.radii) and self.sequence != "beta"

    @property
    def levels(self) -> tuple[float, ...]:
        """The probabilities that decide the radii, ascending, with a margin for rounding radii down: Φ(r/σ) for L2."""
        radii = np.unique(np.array(self.radii, dtype=np.float64))
        smoothing = Smoothing(self.sigma, self.noise, norm_of(self.noise, None))
        return tuple(smoothing.probability(radii + MARGIN).tolist())

    def mixture(self, one_pass: float) -> Mixture:
        """The capitals for an image whose class has this probability in one pass."""
        prior = self.prior or Prior()
        return mixture_of(prior, int(prior.groups(one_pass)), self.levels, self.n, self.sequence == "exact")

    @property
    def basis(self) -> Basis:
        """What the radius rests on."""
        return Basis(
            BasisKind.STATISTICAL,
            alpha=self.alpha,
            bound=self.bound if self.top_k == 1 else "one-sided",
            k=self.top_k,
            anytime=self.adaptive,
            n_wrong=self.n_wrong,
            noise=self.noise,
            norm=self.radius_norm,
        )


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the samples are computed. The counts depend on the seed alone."""

    seed: int = 0
    """Determines the noise."""
    batch_size: int | None = None
    """Samples evaluated together (default: on a CPU the fastest of 50, 100 and 200). Results do not depend on it."""
    compiled: bool = field(default=False, metadata={"flag": "--compile"})
    """Use torch.compile."""
    means: bool = False
    """Also record mean probabilities, for the L-bound of the average."""
    clever: int = 0
    """Also record the CLEVER estimate of the network, from so many batches of gradients, as 50. It is an estimate, not
    a certificate, and slow."""

    def __post_init__(self) -> None:
        require(
            self.clever == 0 or self.clever > 1,
            f"`clever`: expected at least 2 batches, or 0 for none, got {self.clever}",
        )


@dataclass(frozen=True)
class Budget:
    """What may be spent on all images together: samples, or seconds."""

    samples: int | None = None
    seconds: float | None = None
    VALUE_NAME: ClassVar[str] = "N|30m"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Samples as a number, or time with s, m or h.

        >>> Budget.parse("1000000"), Budget.parse("30m")
        (Budget(samples=1000000, seconds=None), Budget(samples=None, seconds=1800.0))
        """
        number, unit = text[:-1], {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
        if text.isdecimal() and text.isascii() and 0 < int(text) <= LARGEST:
            return cls(samples=int(text))
        timed = unit is not None and number.isascii() and number.replace(".", "", 1).isdecimal() and float(number) > 0
        require(timed, f"`budget`: expected samples as 1000000, or time as 90s, 30m or 2h, got {text[:40]!r}")
        return cls(seconds=float(number) * (unit or 1))

    def __str__(self) -> str:
        return str(self.samples) if self.seconds is None else f"{self.seconds:g}s"

    def share(self, part: int, of: int) -> "Budget":
        """Of one of several shards: equal parts of the samples; all of the time, because shards run side by side."""
        if self.samples is None:
            return self
        return Budget(self.samples * part // of - self.samples * (part - 1) // of)

    def left(self, samples: int, seconds: float) -> int:
        """How many samples may still be drawn after these; LARGEST within a time."""
        if self.seconds is not None:
            return LARGEST if seconds < self.seconds else 0
        return max(0, (self.samples or 0) - samples)

    def progress(self, samples: int, seconds: float) -> tuple[int, int]:
        """How much is spent, of how much."""
        return (samples, self.samples) if self.samples is not None else (int(seconds), int(self.seconds or 0))


class ComparedSettings(TypedDict, total=False):
    """Fields of ``Settings`` that stored counts allow to change, for radii in every norm."""

    alpha: float
    class_from: ClassFrom
    bound: Bound
    top_k: int


class RecomputedSettings(ComparedSettings, total=False):
    """Fields of ``Settings`` that stored counts allow to change."""

    norm: Norm | None


class SettingsChanges(RecomputedSettings, total=False):
    """All fields of ``Settings`` but ``sigma``."""

    n: int
    n0: int
    adaptive: bool
    radii: tuple[float, ...]
    sequence: Sequence
    prior: Prior | None
    tolerance: float
    n_wrong: int | None
    noise: Noise
