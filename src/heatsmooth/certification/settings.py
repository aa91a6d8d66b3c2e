"""What a person may choose about certificates. No torch: the command line reads its options here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypedDict

from heatsmooth.errors import require
from heatsmooth.results.guarantees import Basis, BasisKind, Bound, ClassFrom
from heatsmooth.results.schema import from_json
from heatsmooth.settings import Noise, Norm, check_at_least, check_choices, check_positive, norm_of


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
    tolerance: float = 0.05
    """With `adaptive`: tolerance of the radius. Sampling stops when more samples would probably add at most this
    much."""
    bound: Bound = "one-sided"
    """Bound of the class, or also of the second. Two-sided also bounds the second class from above."""
    top_k: int = 1
    """The label stays among the k most probable classes. Without labels, the class does."""
    n_wrong: int | None = None
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

    @classmethod
    def from_json(cls, value: Any, where: Any) -> Self:
        """What ``describe`` gave to the ``run.json`` of the directory ``where``."""
        expected = f"{where}: expected the settings of certificates in run.json"
        require(isinstance(value, Mapping), f"{expected}, got {str(value)[:40]}; certify again")
        unknown = sorted(value.keys() - {item.name for item in fields(cls)})
        require(not unknown, f"{expected}, got the unknown {str(unknown)[:60]}; certify again")
        return from_json(cls, value, expected, "certify again")

    def describe(self) -> dict[str, object]:
        """What a run records; later options only where they are used, as in runs from before they existed."""
        later = {"n_wrong": None, "noise": "gaussian", "norm": "l2"}
        values = asdict(self) | {"norm": self.radius_norm}
        return {name: value for name, value in values.items() if name not in later or value != later[name]}

    @property
    def radius_norm(self) -> Norm:
        """The norm of the radii."""
        return norm_of(self.noise, self.norm)

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
    """Samples evaluated together; results do not depend on it."""
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
    tolerance: float
    n_wrong: int | None
    noise: Noise
