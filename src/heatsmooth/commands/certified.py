"""What is read of certified runs, and what their certificates say together."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heatsmooth.certification.radii import largest_radius
from heatsmooth.certification.settings import Settings
from heatsmooth.errors import require
from heatsmooth.results.certificates import Certificate, Certificates, read_certificates
from heatsmooth.results.deterministic import SETTINGS, NetworkCertificate, NetworkCertificates
from heatsmooth.results.guarantees import Subject
from heatsmooth.results.run_info import HeatChoices, RunInfo
from heatsmooth.settings import Noise, Norm
from heatsmooth.statistics.mixtures import Prior, fitted_prior
from heatsmooth.statistics.radii import round_down

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii of the certified accuracies in a summary."""
LINF_PARTS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The same for L∞, in 1/255."""
PROVEN_RADII = (0.0, 36 / 255, 0.25, 72 / 255, 108 / 255, 0.5, 0.75, 1.0)
"""The same for deterministic certificates; those of Lipschitz networks are published at multiples of 36/255."""


@dataclass(frozen=True, kw_only=True)
class CertificationResult:
    """What the certificates of a run say together; radii are in [0, 1] pixels, rounded down."""

    command: str = "certify"
    out: str | None = None
    """The run directory."""
    recomputed: str | None = None
    """The run directory whose counts were used, if no samples were drawn."""
    asked: int
    """Images that the run is about."""
    images: int
    """Images certified so far."""
    sigma: float | None = None
    """None for deterministic certificates, which have no noise."""
    noise: Noise | None = None
    """The distribution of the noise, if it is not Gaussian."""
    norm: Norm | None = None
    """How the radii are measured, if it is not L2."""
    subject: Subject
    basis: str
    abstained: int
    largest_possible_radius: float | None = None
    """The radius of an image all of whose samples agree."""
    median_radius: float
    mean_samples: float | None = None
    """Samples per image."""
    images_per_second: float | None = None
    """Of deterministic certificates."""
    one_pass_accuracy: float | None = None
    certified_accuracy: dict[str, float] | None = None
    """By radius, where there are labels."""
    average_certified_radius: float | None = None
    """0 counts where the class is wrong or abstained from."""
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""
    note: str | None = None


def summarised(certificates: list[Certificate], settings: Settings, **run: Any) -> CertificationResult:
    """The summary of certificates; ``run``: the fields that say which run they are of."""
    certified = Certificates.of(certificates)
    cap = largest_radius(settings, certified.counts.shape[1], pixels=certified.pixels) or 0.0
    result = CertificationResult(
        images=len(certified),
        sigma=settings.sigma,
        noise=None if settings.noise == "gaussian" else settings.noise,
        norm=None if settings.radius_norm == "l2" else settings.radius_norm,
        subject=certified.subject,
        basis=str(certified.basis),
        abstained=int(certified.abstained.sum()),
        largest_possible_radius=round_down(cap, 4),
        median_radius=round_down(float(np.median(certified.radii)), 4),
        mean_samples=float(certified.samples.mean()),
        **run,
    )
    if certified.labels is None:
        return result
    return replace(
        result,
        one_pass_accuracy=float(certified.one_pass_correct.mean()),
        certified_accuracy=shares(round_radii(settings, cap), certified.certified_accuracy),
        average_certified_radius=round_down(certified.average_certified_radius, 6),
    )


def proven_summary(certificates: list[NetworkCertificate], **run: Any) -> CertificationResult:
    """The summary of deterministic certificates; ``run``: the fields that say which run they are of."""
    certified = NetworkCertificates.of(certificates)
    result = CertificationResult(
        images=len(certified),
        subject=certified.subject,
        basis=str(certified.basis),
        abstained=int(certified.abstained.sum()),
        median_radius=round_down(float(np.median(certified.radii)), 4),
        images_per_second=round(1 / max(float(certified.seconds.mean()), 1e-9), 1),
        **run,
    )
    if certified.labels is None:
        return result
    return replace(
        result,
        one_pass_accuracy=float(certified.one_pass_correct.mean()),
        certified_accuracy=shares(PROVEN_RADII, certified.certified_accuracy),
        average_certified_radius=round_down(certified.average_certified_radius, 6),
    )


def round_radii(settings: Settings, cap: float) -> list[float]:
    """Those of the usual radii that are possible; for L∞, multiples of 1/255. Else those asked for."""
    usual = tuple(part / 255 for part in LINF_PARTS) if settings.radius_norm == "linf" else RADII
    radii = sorted(settings.radii) if settings.mixes else usual
    return [radius for radius in radii if radius <= cap]


def shares(radii: Any, accuracy: Any) -> dict[str, float]:
    """By radius as text, the share of images that reach it."""
    return {f"{radius:g}": round(float(share), 6) for radius, share in zip(radii, accuracy(radii), strict=True)}


def other_noise(source: Path, settings: Settings) -> str | None:
    """What a summary says if the network was smoothed for another noise than it is certified with."""
    file = source / "run.json"
    aimed = RunInfo.read(file).chosen.heat if file.is_file() else HeatChoices()
    if aimed.sigma is None or (aimed.sigma, aimed.distribution) == (settings.sigma, settings.noise):
        return None
    before, now = (
        f"{'' if noise == 'gaussian' else noise + ' noise of '}σ={sigma:g}"
        for noise, sigma in ((aimed.distribution, aimed.sigma), (settings.noise, settings.sigma))
    )
    return f"smoothed for {before}, certified with {now}"


@dataclass(frozen=True)
class CertifiedRun:
    """A finished ``certify`` run that a command reads; ``argument``: the command's own name for it."""

    directory: Path
    argument: str
    info: RunInfo
    settings: Settings

    @classmethod
    def read(cls, directory: Path, argument: str) -> "CertifiedRun":
        """What the certificates of a directory were made with; other runs are refused."""
        where = f"`{argument}` {directory}"
        require(
            bool(sorted(directory.glob("run*.json"))), f"{where}: expected a 'certify' run, got none; check the path"
        )
        info, _ = RunInfo.read_directory(directory)
        require(info.command == "certify", f"{where}: expected a 'certify' run, got {info.command!r}; name another")
        require(
            info.chosen.certificate != SETTINGS,
            f"{where}: expected statistical certificates, got deterministic ones, which have no counts and need no "
            "calibration; use them as they are",
        )
        data = info.chosen.data
        known = info.chosen.model is not None and data.images is not None and len(data.shape or ()) == 3
        require(
            known and all(side > 0 for side in data.shape or ()),
            f"{directory}: expected the model and the data of the certificates, got others; certify again",
        )
        return cls(directory, argument, info, Settings.from_json(info.settings.get("certificate"), directory))

    @property
    def asked(self) -> int:
        """How many images the run is about."""
        return self.info.chosen.data.images or 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the images: (channels, height, width)."""
        channels, height, width = self.info.chosen.data.shape or (0, 0, 0)
        return channels, height, width

    @property
    def pixels(self) -> int:
        """Values of an image: channels × height × width."""
        return math.prod(self.shape)

    def sized(self, item: Certificate) -> Certificate:
        """The certificate with the size of its image, which must not contradict that of the run."""
        require(
            item.pixels in (None, self.pixels),
            f"`{self.argument}` {self.directory}: expected images of {self.pixels} values, as run.json says, got "
            f"{item.pixels}; certify again",
        )
        return replace(item, pixels=self.pixels)

    def all_counts(self) -> list[Certificate]:
        """All certificates as they are; those of an unfinished run are refused."""
        certificates = read_certificates(self.directory)
        require(
            len(certificates) == self.asked,
            f"`{self.argument}` {self.directory}: expected certificates of all {self.asked} images, got "
            f"{len(certificates)}; finish that run",
        )
        return certificates

    def certificates(self) -> list[Certificate]:
        """All certificates, with the exact α of the settings; their own text has six digits of it.

        The certificates of an unfinished run are refused: they are not a fair sample of its images.
        """
        certificates, where = self.all_counts(), f"`{self.argument}` {self.directory}"
        require(
            self.settings.n_wrong is None,
            f"{where}: expected as many samples for every image, got fewer where the class is wrong; certify "
            "without --n-wrong",
        )
        basis = self.settings.basis
        require(
            basis.usual,
            f"{where}: expected L2 radii of Gaussian noise, got those that are {basis}; certify with --noise gaussian "
            "--norm l2",
        )
        other = next((str(item.basis) for item in certificates if str(item.basis) != str(basis)), None)
        require(other is None, f"{where}: expected certificates that are {basis}, got {other}; certify again")
        return [replace(item, basis=basis) for item in certificates]


def prior_of(directory: Path, settings: Settings, seed: int) -> Prior:
    """The prior fitted on a certified run of other images, as ``--prior`` names it.

    Certificates stay valid for any prior that does not depend on their samples. So counts with the same noise, of the
    same seed and an image of the same index, are refused.
    """
    run, where = CertifiedRun.read(directory, "prior"), f"`prior` {directory}"
    sigma = run.settings.sigma
    require(sigma == settings.sigma, f"{where}: expected counts of noise σ={settings.sigma:g}, got {sigma:g}")
    known = run.info.settings
    alone = isinstance(known.get("seed"), int) and not run.settings.prior
    require(alone, f"{where}: expected a run with a recorded seed and without a prior, got another; name such a run")
    require(
        known["seed"] != seed,
        f"{where}: expected counts of another seed, got the same {seed}, and so the same noise; use another `seed`",
    )
    certificates = read_certificates(directory)
    require(bool(certificates), f"{where}: expected certificates, got none; finish that run")
    counts = [item.counts[item.predicted] for item in certificates]
    one_pass = [item.clean_probabilities[item.predicted] for item in certificates]
    return fitted_prior(counts, [item.n for item in certificates], one_pass)
