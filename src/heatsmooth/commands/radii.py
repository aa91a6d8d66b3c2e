"""``heatsmooth radii``."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from heatsmooth.certification.settings import ComparedSettings, Settings
from heatsmooth.commands.command import Command
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent
from heatsmooth.results.guarantees import Subject
from heatsmooth.settings import NORM_NAMES, Noise, Norm

if TYPE_CHECKING:
    from heatsmooth.certification.comparison import NamedRadii
    from heatsmooth.results.certificates import Certificates

ABSTAINED = "–"


@dataclass(frozen=True, kw_only=True)
class RadiusKind:
    """One kind of radius, and what it amounts to over all images; radii are in [0, 1] pixels, rounded down."""

    key: str
    """The letter of its column."""
    name: str
    subject: Subject
    basis: str
    norm: Norm
    median_radius: float
    mean_radius: float
    """0 counts where it abstains."""
    abstained: int


@dataclass(frozen=True, kw_only=True)
class ImageRadii:
    """The radii of one image."""

    index: int
    label: int | None
    covered: int
    """The class that the radii of the average cover."""
    one_pass: int
    """The class that the radii of the network cover."""
    radii: tuple[float | None, ...]
    """In the order of the kinds; None where nothing is claimed."""


@dataclass(frozen=True, kw_only=True)
class ComparedRadii:
    """Every radius that the counts of a run give."""

    command: str = "radii"
    source: str
    """The certified run."""
    sigma: float
    noise: Noise
    alpha: float
    kinds: tuple[RadiusKind, ...]
    images: tuple[ImageRadii, ...]


@dataclass(frozen=True, kw_only=True)
class Radii(Command):
    """Compare all radii that the counts of a certified run give, image by image, without the network.

    For each kind of radius it says which model it covers, what it rests on, and its norm. `certify --means` adds the
    L-bound of the average, `certify --clever` the CLEVER estimate of the network.

    Example: heatsmooth radii --from runs/certified
    """

    source: Path = field(metadata={"flag": "--from"})
    """A certified run."""
    changes: ComparedSettings = field(default_factory=ComparedSettings, metadata=grouped("Certificate", of=Settings))

    def run(self, progress: Progress = silent) -> ComparedRadii | None:  # noqa: ARG002  # it takes no time
        """All radii of all images that the run has certified so far; None in a process that follows."""
        from heatsmooth.commands.sharing import by_the_leader

        return by_the_leader(None, self.compared)

    def compared(self) -> ComparedRadii:
        from heatsmooth.certification.certificates import certificate
        from heatsmooth.certification.comparison import every_radius
        from heatsmooth.commands.certified import CertifiedRun
        from heatsmooth.results.certificates import Certificates, read_certificates

        counted = CertifiedRun.read(self.source, "source")
        settings = replace(counted.settings, **self.changes)
        records = [counted.sized(item) for item in read_certificates(self.source)]
        certificates = Certificates.of(certificate(item, settings) for item in records)
        kinds = every_radius(certificates, settings, pixels=counted.pixels)
        return ComparedRadii(
            source=str(self.source),
            sigma=settings.sigma,
            noise=settings.noise,
            alpha=settings.alpha,
            kinds=tuple(_kind(key, item) for key, item in zip(ascii_uppercase, kinds, strict=False)),
            images=tuple(_images(certificates, kinds)),
        )

    def show(self, result: Any) -> None:
        """Print one line per kind of radius, then one per image."""
        print(f"{len(result.images)} images, {result.noise} noise of σ={result.sigma:g}")
        for kind in result.kinds:
            about = f"{kind.key}  {kind.name:<15} {NORM_NAMES[kind.norm]}  {kind.subject}  "
            print(f"{about}median {_short(kind.median_radius)}, {kind.abstained} abstained; {kind.basis}")
        print("Radii of the average cover the class, radii of the network the class of one pass. – claims nothing.")
        heads = ["image", "label", "class", "one pass", *(kind.key for kind in result.kinds)]
        widths = [7, 6, 6, 9, *(8 for _ in result.kinds)]
        print("".join(head.rjust(width) for head, width in zip(heads, widths, strict=True)))
        for image in result.images:
            label = ABSTAINED if image.label is None else str(image.label)
            cells = [str(image.index), label, str(image.covered), str(image.one_pass)]
            cells += [ABSTAINED if radius is None else _short(radius) for radius in image.radii]
            print("".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def _kind(key: str, item: "NamedRadii") -> RadiusKind:
    import numpy as np

    from heatsmooth.statistics.radii import round_down

    return RadiusKind(
        key=key,
        name=item.name,
        subject=item.subject,
        basis=str(item.basis),
        norm=item.basis.norm,
        median_radius=round_down(float(np.median(item.radii)), 6),
        mean_radius=round_down(float(item.radii.mean()), 6),
        abstained=int(item.abstained.sum()),
    )


def _images(certificates: "Certificates", kinds: "list[NamedRadii]") -> list[ImageRadii]:
    labels = [None] * len(certificates) if certificates.labels is None else certificates.labels.tolist()
    columns = [
        [None if abstained else radius for radius, abstained in zip(kind.radii.tolist(), kind.abstained, strict=True)]
        for kind in kinds
    ]
    return [
        ImageRadii(index=index, label=label, covered=covered, one_pass=one_pass, radii=tuple(radii))
        for index, label, covered, one_pass, *radii in zip(
            certificates.indices.tolist(),
            labels,
            certificates.targets.tolist(),
            certificates.clean_classes.tolist(),
            *columns,
            strict=True,
        )
    ]


def _short(radius: float) -> str:
    """Four decimals, rounded down; five for the small radii of L∞."""
    from heatsmooth.statistics.radii import round_down

    return f"{round_down(radius, 4):.4f}" if radius >= 0.01 or radius == 0 else f"{round_down(radius, 5):.5f}"
