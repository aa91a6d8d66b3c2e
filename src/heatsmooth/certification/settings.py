"""What is certified, how surely, and the radius that follows from the counts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import require
from heatsmooth.results.certificates import ClassFrom
from heatsmooth.results.guarantees import Basis, BasisKind, Bound
from heatsmooth.results.schema import from_json
from heatsmooth.statistics.bounds import clopper_pearson_lower, clopper_pearson_upper, label_bounds
from heatsmooth.statistics.radii import one_sided_radius, round_down, top_k_radius, two_sided_radius
from heatsmooth.statistics.sequences import anytime_lower, anytime_upper, stopped_lower

DIGITS = 9
"""Decimals of a radius in the records, rounded down."""


@dataclass(frozen=True)
class Settings:
    """What is certified, and how surely."""

    sigma: float
    n: int = 10_000
    """Estimation draws an image; the most of them if ``adaptive``."""
    n0: int = 100
    """Selection draws, if the class comes from noise."""
    alpha: float = 0.001
    """The probability with which a certificate may be false."""
    class_from: ClassFrom = "noise"
    """The class to certify: the most frequent of n0 noisy draws (Cohen), or that of one clean pass (the paper)."""
    adaptive: bool = False
    radii: tuple[float, ...] = ()
    """Adaptive: stop when the certificate is decided at each of these; empty: when it is known within ``tolerance``."""
    tolerance: float = 0.05
    """Adaptive: stop when the radius, and what it will hardly exceed, are within this."""
    bound: Bound = "one-sided"
    top_k: int = 1
    """Certify that the label (the class, where there is none) stays among the k most probable."""
    n_wrong: int | None = None
    """Estimation draws where the class is not the label, whose radius counts as 0 anyway; None: n. Their number depends
    on no estimation draw, so those certificates hold too."""

    def __post_init__(self) -> None:
        require(self.sigma > 0, f"--sigma: expected a positive number, got {self.sigma}")
        require(0 < self.alpha < 0.5, f"--alpha: expected a number above 0 and below 0.5, got {self.alpha}")
        require(self.n0 > 0, f"--n0: expected at least 1, got {self.n0}")
        require(
            self.class_from in ("noise", "clean"), f"--class-from: expected noise or clean, got {self.class_from!r}"
        )
        require(
            self.bound in ("one-sided", "two-sided"), f"--bound: expected one-sided or two-sided, got {self.bound!r}"
        )
        require(self.top_k > 0, f"--top-k: expected at least 1, got {self.top_k}")
        require(self.tolerance > 0, f"--tolerance: expected a positive radius, got {self.tolerance}")
        require(all(r >= 0 for r in self.radii), f"--radii: expected 0 or more, got {self.radii}")
        if self.n_wrong is not None:
            require(0 < self.n_wrong <= self.n, f"--n-wrong: expected from 1 to --n {self.n}, got {self.n_wrong}")
            plain = self.top_k == 1 and not self.adaptive
            require(plain, "--n-wrong: expected top-1 certificates of a fixed n, got others; leave it out")

    @classmethod
    def from_json(cls, value: Any, where: Any) -> Self:
        """What ``describe`` gave to the ``run.json`` of the directory ``where``."""
        expected = f"{where}: expected the settings of certificates in run.json"
        require(isinstance(value, Mapping), f"{expected}, got {str(value)[:40]}; certify again")
        unknown = sorted(value.keys() - {item.name for item in fields(cls)})
        require(not unknown, f"{expected}, got the unknown {str(unknown)[:60]}; certify again")
        return from_json(cls, value, expected, "certify again")

    def describe(self) -> dict[str, Any]:
        """What a run records; ``n_wrong`` only where it is used, as runs did before it was there."""
        return {name: value for name, value in asdict(self).items() if name != "n_wrong" or value is not None}

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
        )

    def largest_radius(self, classes: int) -> float | None:
        """The radius of an image all of whose ``n`` draws agree, for so many classes; None if even that abstains."""
        counts = np.zeros((1, classes), dtype=np.int64)
        counts[0, 0] = self.n
        radius, abstain = radii_of(counts, np.array([0]), self)
        return None if abstain[0] else float(radius[0])


def radii_of(
    counts: NDArray[np.int64], classes: NDArray[np.int64], settings: Settings
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Radius and abstention from estimation counts (images, classes) and classes to certify (images,)."""
    if settings.top_k == 1 and settings.bound == "one-sided":
        lower = partial(stopped_lower, most=settings.n) if settings.adaptive else clopper_pearson_lower
        count = np.take_along_axis(counts, classes[:, None], 1)[:, 0]
        radius, abstain = one_sided_radius(lower(count, counts.sum(1), settings.alpha), sigma=settings.sigma)
    else:
        own, rivals = label_bounds(
            counts,
            classes,
            alpha=settings.alpha,
            rivals=settings.top_k,
            lower=anytime_lower if settings.adaptive else clopper_pearson_lower,
            upper=anytime_upper if settings.adaptive else clopper_pearson_upper,
        )
        if settings.top_k == 1:
            radius, abstain = two_sided_radius(own, rivals[:, 0], sigma=settings.sigma)
        else:
            radius, abstain = top_k_radius(own, rivals, sigma=settings.sigma)
    return np.asarray(round_down(radius, DIGITS)), abstain
