"""Certificates: one per image as it is on disk, and arrays of many."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from heatsmooth.errors import InputError, require
from heatsmooth.results.guarantees import Basis, ClassFrom, Subject
from heatsmooth.results.radii import Radii, is_correct, radii_of
from heatsmooth.results.records import read_each
from heatsmooth.results.schema import LARGEST, UNLESS_DEFAULT, Positive, Real, Share, Whole, as_text, named
from heatsmooth.settings import Noise
from heatsmooth.statistics.bounds import label_mean_bounds
from heatsmooth.statistics.radii import l_bound, l_bound_between

Counts = Annotated[tuple[Whole, ...], msgspec.Meta(min_length=1)]
Probabilities = Annotated[tuple[Share, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The samples of one image. Everything else can be computed from them without the model."""

    index: Whole
    """The image's index in its data set."""
    label: Whole | None
    sigma: Positive
    adaptive: bool
    """Whether the number of samples depended on the samples."""
    n0: Whole
    n: Whole
    counts: Counts
    """Samples per class, among the n that estimate."""
    selection: Counts | None
    """Samples per class, among the n0 that select the class; None if one pass without noise selects it."""
    clean_class: Whole
    """The class in one pass."""
    clean_probabilities: Probabilities
    samples: Whole
    seconds: Real
    sums: tuple[Real, ...] | None = None
    """Sums of the probabilities over the n samples, if recorded."""
    squares: tuple[Real, ...] | None = None
    uniform: Share | None = None
    """The random number of a randomised bound: drawn with the seed of the noise, before the samples."""
    noise: Noise = field(default="gaussian", metadata=UNLESS_DEFAULT)
    """The distribution of the noise of the samples."""
    pixels: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] | None = None
    """Values of the image: channels × height × width. Recorded for noise or radii of other kinds than before."""
    clever: Real | None = None
    """The CLEVER estimate of the network, in the norm of the radius, if recorded. It guarantees nothing."""

    def with_radius(self, **claim: Any) -> "Certificate":
        """The certificate with this ``claim``: the other fields of ``Certificate``."""
        return Certificate(**{item.name: getattr(self, item.name) for item in fields(Counted)}, **claim)


@dataclass(frozen=True, kw_only=True)
class Certificate(Counted):
    """The certificate of one image.

    Guarantee: except with probability α, ``subject`` has the class ``target`` among its ``basis.k`` most probable
    everywhere within ``radius`` (in ``basis.norm``, pixels in [0, 1]) of the image. Where ``abstain``, nothing is
    claimed.
    """

    predicted: Whole = field(metadata=named("class"))
    target: Whole
    """The class that the radius covers: the predicted one, or for k > 1 the label."""
    radius: Real
    abstain: bool
    subject: Subject = Subject.AVERAGE
    basis: Basis = field(metadata=as_text(Basis.read))
    class_from: ClassFrom

    def __post_init__(self) -> None:
        classes, rows = len(self.counts), (self.clean_probabilities, self.sums, self.squares, self.selection)
        consistent = (
            max(self.predicted, self.target, self.clean_class) < classes,
            sum(self.counts) == self.n > 0,
            self.selection is None or sum(self.selection) == self.n0,
            {len(row) for row in rows if row is not None} == {classes},
            math.isclose(sum(self.clean_probabilities), 1, abs_tol=1e-3),
            not self.abstain or self.radius == 0,
            self.basis.noise == self.noise,
            self.basis.norm != "linf" or self.pixels is not None,
        )
        if not all(consistent):
            raise InputError("one that contradicts itself")

    @property
    def correct(self) -> bool:
        """Whether the radius covers the label, and the model does not abstain."""
        return is_correct(self.label, self.target, self.abstain)


def read_certificates(directory: Path) -> list[Certificate]:
    """All certificates of a run directory, of every shard and process: each image once, ordered by index."""
    return read_each(directory, "certificates*.jsonl", "a certificate", Certificate)


@dataclass(frozen=True, kw_only=True)
class Certificates(Radii):
    """The certificates of many images, ordered by index; arrays (images,), counts and probabilities (images, classes).

    ``radii`` are in the norm of ``basis`` (L2 unless another was asked for), in [0, 1] pixels. They cover ``subject``,
    the *average* of the network over the noise (N(0, σ²I) unless another was asked for) and not the network in one
    pass, and rest on ``basis``. Where ``abstained``, the radius is 0 and nothing is claimed.
    """

    labels: NDArray[np.int64] | None
    classes: NDArray[np.int64]
    targets: NDArray[np.int64]
    """The classes that the radii cover: ``classes``, or for top-k the labels."""
    counts: NDArray[np.int64]
    clean_classes: NDArray[np.int64]
    clean_probabilities: NDArray[np.float64]
    samples: NDArray[np.int64]
    seconds: NDArray[np.float64]
    sums: NDArray[np.float64] | None
    squares: NDArray[np.float64] | None
    sigma: float
    class_from: ClassFrom
    pixels: int | None = None
    """Values of an image; None where the records do not state it."""
    clever: NDArray[np.float64] | None = None
    """CLEVER estimates of the network, in the norm of the radii, where they were asked for."""
    uniform: NDArray[np.float64] | None = None
    """The random numbers of randomised bounds."""

    @classmethod
    def of(cls, records: Iterable[Certificate]) -> Self:
        """The arrays of certificates of one kind, each image once."""
        unique: dict[int, Certificate] = {}
        for record in records:
            known = unique.setdefault(record.index, record)
            same = known.counts == record.counts
            require(same, f"expected one certificate for image {record.index}, got two different ones; remove one")
        rows = [unique[index] for index in sorted(unique)]
        radii = radii_of(rows)
        for what, kinds in (
            ("σ", {row.sigma for row in rows}),
            ("way to select the class", {row.class_from for row in rows}),
            ("number of classes", {len(row.counts) for row in rows}),
            ("size of images", {row.pixels or 0 for row in rows}),
        ):
            require(len(kinds) == 1, f"expected certificates of one {what}, got {sorted(kinds)}; read them separately")

        def column(name: str) -> NDArray[Any]:
            return np.array([getattr(row, name) for row in rows])

        def known_column(name: str) -> NDArray[Any] | None:
            return None if any(getattr(row, name) is None for row in rows) else column(name)

        return cls(
            **vars(radii),
            labels=known_column("label"),
            classes=column("predicted"),
            targets=column("target"),
            counts=column("counts"),
            clean_classes=column("clean_class"),
            clean_probabilities=column("clean_probabilities"),
            samples=column("samples"),
            seconds=column("seconds"),
            sums=known_column("sums"),
            squares=known_column("squares"),
            sigma=rows[0].sigma,
            class_from=rows[0].class_from,
            pixels=rows[0].pixels,
            clever=known_column("clever"),
            uniform=known_column("uniform"),
        )

    def one_pass_probabilities(self, classes: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probabilities of these classes (images,) in one pass."""
        return np.asarray(np.take_along_axis(self.clean_probabilities, classes[:, None], 1)[:, 0])

    def with_one_pass(self, probabilities: NDArray[np.float64]) -> Self:
        """The certificates beside other one-pass probabilities (images, classes), such as those of a head."""
        require(
            probabilities.shape == self.clean_probabilities.shape,
            f"`probabilities`: expected {self.clean_probabilities.shape}, got {probabilities.shape}; use those of the "
            "certified images",
        )
        return replace(self, clean_probabilities=probabilities, clean_classes=probabilities.argmax(1))

    @classmethod
    def read(cls, directory: Path) -> Self:
        """All certificates of a run directory."""
        return cls.of(read_certificates(directory))

    @property
    def known_labels(self) -> NDArray[np.int64]:
        """The labels; an error where there are none."""
        if self.labels is None:
            raise InputError("expected labels to measure accuracy, got none; certify labelled images")
        return self.labels

    @property
    def n(self) -> NDArray[np.int64]:
        """Number of samples that estimate, (images,)."""
        return np.asarray(self.counts.sum(1))

    @property
    def target_shares(self) -> NDArray[np.float64]:
        """The share of the samples that have the class which the radius covers, (images,)."""
        return np.asarray(np.take_along_axis(self.counts, self.targets[:, None], 1)[:, 0] / self.n)

    @property
    def average_classes(self) -> NDArray[np.int64]:
        """The most frequent class among the samples, (images,)."""
        return np.asarray(self.counts.argmax(1))

    @property
    def average_probabilities(self) -> NDArray[np.float64]:
        """The mean probabilities over the samples, (images, classes); an error where their sums were not recorded."""
        if self.sums is None:
            raise InputError("expected sums of probabilities, got none; certify with `means`")
        return np.asarray(self.sums / self.n[:, None])

    @property
    def one_pass_correct(self) -> NDArray[np.bool_]:
        """Where one pass has the label, (images,)."""
        return np.asarray(self.clean_classes == self.known_labels)

    @property
    def l_bounds(self) -> NDArray[np.float64] | None:
        """L-bounds of the network in one pass, (images,), L2: radii only of an exact average, which nothing checks.

        None for samples of other noise than Gaussian: the L-bound is about Gaussian averages.
        """
        if self.basis.noise != "gaussian":
            return None
        return l_bound(self.clean_probabilities, sigma=self.sigma, k=self.basis.k)

    @property
    def mean_l_bounds(self) -> NDArray[np.float64] | None:
        """Statistical L-bounds of the averaged probabilities, (images,), L2; None unless recorded for a fixed n."""
        bounds = self.mean_bounds
        if bounds is None:
            return None
        radius, abstain = l_bound_between(bounds[0], bounds[1][:, -1], sigma=self.sigma)
        return np.where(abstain, 0.0, radius)

    @property
    def mean_bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Bounds of the mean probabilities under Gaussian noise; None unless recorded for a fixed n.

        Of the target from below (images,), and of its rivals from above (images, k).
        """
        if self.sums is None or self.squares is None or self.basis.alpha is None:
            return None
        if self.basis.anytime or self.basis.noise != "gaussian":
            return None
        n = self.n.astype(np.float64)
        return label_mean_bounds(self.sums, self.squares, n, self.targets, alpha=self.basis.alpha, rivals=self.basis.k)
