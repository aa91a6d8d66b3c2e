"""Every radius that one set of counts gives, side by side: each with its subject, its basis and its norm. No torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heatsmooth.certification.radii import DIGITS, probability_bounds
from heatsmooth.certification.settings import Settings
from heatsmooth.errors import require
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.guarantees import Basis, BasisKind, Subject
from heatsmooth.settings import NORMS
from heatsmooth.statistics.bounds import Flags, Floats
from heatsmooth.statistics.noises import Smoothing
from heatsmooth.statistics.radii import (
    l_bound_between,
    pixeldp_radius,
    renyi_radius,
    round_down,
    two_sided_radius,
)

Certified = tuple[Floats, Flags]
"""Radii, and where to abstain, (images,)."""
OLDER: dict[str, Callable[..., Certified]] = {"PixelDP": pixeldp_radius, "Rényi": renyi_radius}
"""Certificates from before Cohen's, from the same bounds: never larger."""
OWN_NAMES = {"gaussian": "Cohen", "laplace": "Teng", "uniform": "Yang"}
"""By noise, whose radius it is."""


@dataclass(frozen=True, kw_only=True)
class NamedRadii:
    """One kind of radius of many images, arrays (images,)."""

    name: str
    """Whose certificate it is."""
    subject: Subject
    basis: Basis
    radii: NDArray[np.float64]
    """Rounded down; 0 where ``abstained``."""
    abstained: NDArray[np.bool_]
    """Where nothing is claimed."""


def every_radius(certificates: Certificates, settings: Settings, *, pixels: int) -> list[NamedRadii]:
    """All radii that these counts give, in the order: proven about the average, assumed, estimated.

    ``certificates``: as the run recorded them. ``settings``: α, the kind of bound, and where the class comes from; all
    radii from counts rest on the same bounds. ``pixels``: values of an image, for L∞ radii.

    For Gaussian noise, in theory and here on every image: PixelDP ≤ Cohen, Rényi ≤ Cohen, and the L-bound of the mean
    ≤ the radius of the mean (Salman), each from the same bounds.
    """
    require(
        settings.top_k == 1,
        f"`top_k`: expected 1 to compare radii, got {settings.top_k}; use --top-k 1, which the counts allow",
    )
    return [
        *_from_counts(certificates, settings, pixels),
        *_from_means(certificates, settings),
        *_of_the_network(certificates),
    ]


def _from_counts(certificates: Certificates, settings: Settings, pixels: int) -> Iterator[NamedRadii]:
    """In every norm of the noise, the radius of the class that is most frequent under noise."""
    own, rivals = probability_bounds(
        certificates.counts,
        certificates.targets,
        settings,
        one_pass=certificates.one_pass_probabilities(certificates.targets),
        uniform=certificates.uniform,
    )
    rival = rivals[:, 0]
    for norm in NORMS[settings.noise]:
        smoothing = Smoothing(settings.sigma, settings.noise, norm, pixels)
        two_sided = settings.bound == "two-sided"
        certified = smoothing.two_sided(own, rival) if two_sided else smoothing.one_sided(own)
        basis = replace(settings.basis, norm=norm)
        yield _named(OWN_NAMES[settings.noise], Subject.AVERAGE, basis, certified)
        if (settings.noise, norm) == ("gaussian", "l2"):
            for name, certificate in OLDER.items():
                yield _named(name, Subject.AVERAGE, basis, certificate(own, rival, sigma=settings.sigma))


def _from_means(certificates: Certificates, settings: Settings) -> Iterator[NamedRadii]:
    """Radii of the class whose mean probability is largest; only where sums of probabilities were recorded."""
    bounds = certificates.mean_bounds
    if bounds is None:
        return
    own, rival = bounds[0], bounds[1][:, 0]
    basis = Basis(BasisKind.STATISTICAL, alpha=settings.alpha, bound="two-sided", n_wrong=settings.n_wrong)
    for name, certificate in (("Salman (mean)", two_sided_radius), ("L-bound (mean)", l_bound_between)):
        yield _named(name, Subject.AVERAGE, basis, certificate(own, rival, sigma=settings.sigma))


def _of_the_network(certificates: Certificates) -> Iterator[NamedRadii]:
    """What is assumed or estimated of one pass; it covers the class of that pass."""
    never = np.zeros(len(certificates), dtype=bool)
    if (bounds := certificates.l_bounds) is not None:
        yield _named("L-bound", Subject.NETWORK, Basis(BasisKind.EXACT_AVERAGE), (bounds, never))
    if certificates.clever is not None:
        basis = Basis(BasisKind.ESTIMATE, norm=certificates.basis.norm)
        yield _named("CLEVER", Subject.NETWORK, basis, (certificates.clever, never))


def _named(name: str, subject: Subject, basis: Basis, certified: Certified) -> NamedRadii:
    radius, abstained = certified
    radii = np.asarray(round_down(np.where(abstained, 0.0, radius), DIGITS))
    return NamedRadii(name=name, subject=subject, basis=basis, radii=radii, abstained=abstained)
