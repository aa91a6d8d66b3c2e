"""The inputs of nearly every command, as a person names them: a network, images, where to compute."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from heatsmooth.errors import InputError, require

if TYPE_CHECKING:
    from heatsmooth.data import ImageSet, ImageStream
    from heatsmooth.data.images import Size
    from heatsmooth.models import Classifier
    from heatsmooth.progress import Progress

FILES = {"group": "Image files"}
WHICH = {"group": "Which images"}
NETWORK = {"group": "Network"}
RUNNING = {"group": "Running"}


@dataclass(frozen=True, kw_only=True)
class Network:
    """Which network, and what the person says about it."""

    source: Path = field(metadata={"flag": "--from"})
    """A run directory, weights, an ONNX file, hf:, timm: or torchvision:NAME, or module:callable. Weights without a
    record need --model."""
    model: str | None = field(default=None, metadata=NETWORK)
    """Architecture: small, resnet20, …, package.module:callable, hf:, timm: or torchvision:NAME, or program. A program
    is a TorchScript or .pt2 file."""
    classes: int | None = field(default=None, metadata=NETWORK)
    """Number of classes of a built-in network (default: that of the data, else 10)."""
    mean: tuple[float, ...] | None = field(default=None, metadata=NETWORK)
    """Mean of the normalisation inside the network, as 0.5 or 0.49,0.48,0.45 (default: as recorded, else none)."""
    std: tuple[float, ...] | None = field(default=None, metadata=NETWORK)
    """Standard deviation of the normalisation (default: as recorded, else none)."""
    image_size: int | None = field(default=None, metadata=FILES)
    """Side of the centre crop, in pixels (default: that of the network, or at most 224)."""

    def __post_init__(self) -> None:
        check_normalisation(self.mean, self.std)

    @property
    def code(self) -> str | None:
        """The code of the network, if the person named any: beside the weights, or as their source."""
        from heatsmooth.models.checkpoint import CALLABLE

        return str(self.source) if self.model is None and CALLABLE.fullmatch(str(self.source)) else self.model

    @property
    def size(self) -> "Size | None":
        """The size of encoded images, as asked or as the network records, if either says one."""
        from heatsmooth.models import recorded_spec

        spec = recorded_spec(self.source, self.model) if self.image_size is None else None
        return spec.size if spec else self.image_size

    def load(self, images: "ImageSet | ImageStream | None" = None, *, channels: int | None = None) -> "Classifier":
        """The network, in evaluation mode, on the CPU. What the person does not say is taken from ``images``.

        ``channels``: of the images, where there are none.
        """
        from heatsmooth.models import load

        known = getattr(images, "classes", None)
        return load(
            self.source,
            model=self.model,
            classes=self.classes or known or 10,
            channels=channels if images is None else images.shape[0],
            mean=self.mean,
            std=self.std,
        )


def check_normalisation(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Refuse half a normalisation, and means that cannot be those of images in [0, 1]."""
    require((mean is None) == (std is None), "`mean`, `std`: expected both or none, got one; name the other")
    wrong = ",".join(f"{value:g}" for value in mean or () if not 0 <= value <= 1)
    require(not wrong, f"`mean`: expected means of images in [0, 1], got {wrong}; divide by 255")


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """A data set, and how its files are read."""

    data: str
    """fashion-mini, cifar10, imagefolder:PATH, hf:NAME, …"""
    data_root: Path | None = None
    """Directory of the files of a data set."""
    class_index: Path | None = field(default=None, metadata=FILES)
    """Classes of an imagefolder: a .json, .csv or .txt file."""
    skip_broken: bool = field(default=False, metadata=FILES)
    """Leave out unreadable images."""

    def load(
        self,
        size: "Size | None",
        split: Literal["train", "test"] = "test",
        *,
        limit: int | None = None,
        progress: "Progress | None" = None,
    ) -> "ImageSet":
        """The images; encoded ones are cropped to ``size`` (None: the usual one). ``limit``: a fixed subset."""
        from heatsmooth.data import load_images
        from heatsmooth.progress import silent

        progress = progress or silent
        whole = load_images(
            self.data,
            split,
            root=self.data_root,
            image_size=size,
            class_index=self.class_index,
            progress=progress,
        )
        images = self._selected(whole.sampled(limit))
        return images.readable(progress) if self.skip_broken else images

    def _selected(self, images: "ImageSet") -> "ImageSet":
        return images

    def stream(self, size: "Size | None", *, limit: int | None) -> "ImageStream":
        """The training images of ``hf:NAME``, read one after another, ``limit`` of them per epoch."""
        from heatsmooth.data import open_stream

        require(self.data.startswith("hf:"), f"`stream`: expected `data` hf:NAME, got {self.data}; leave it out")
        return open_stream(self.data, size, count=limit, cache=self.data_root)

    def first(self, count: int) -> "Images":
        """At most this many of the images."""
        return self.every(1, count)

    def every(self, stride: int, count: int | None) -> "Images":
        """Every ``stride``-th of the images, at most ``count``."""
        return Images(
            data=self.data,
            data_root=self.data_root,
            class_index=self.class_index,
            skip_broken=self.skip_broken,
            stride=stride,
            count=count,
        )


@dataclass(frozen=True, kw_only=True)
class Images(ImageFiles):
    """Every ``stride``-th image of a data set, at most ``count``."""

    count: int | None = field(default=None, metadata=WHICH | {"flag": "--images"})
    """The first N images (default: all)."""
    stride: int = field(default=1, metadata=WHICH)
    """Every k-th image: folders are sorted by class."""

    def _selected(self, images: "ImageSet") -> "ImageSet":
        return images.strided(self.stride, self.count)


@dataclass(frozen=True, kw_only=True)
class OddImages(Images):
    """From the second image on: with an even ``stride``, only images with an odd position."""

    def _selected(self, images: "ImageSet") -> "ImageSet":
        return images.strided(self.stride, self.count, start=1)


@dataclass(frozen=True, kw_only=True)
class SomeImages:
    """Images of a data set to try something on, if the person names one."""

    data: str | None = None
    """Also try images of this data set: fashion-mini, imagefolder:PATH, …"""
    count: int = field(default=200, metadata={"flag": "--images"})
    """Number of images to try."""
    data_root: Path | None = None
    """Directory of the files of a data set."""
    class_index: Path | None = field(default=None, metadata=FILES)
    """Classes of an imagefolder: a .json, .csv or .txt file."""
    skip_broken: bool = field(default=False, metadata=FILES)
    """Leave out unreadable images."""

    @property
    def files(self) -> ImageFiles | None:
        """The data set, if one is named."""
        if self.data is None:
            return None
        return ImageFiles(
            data=self.data, data_root=self.data_root, class_index=self.class_index, skip_broken=self.skip_broken
        )


@dataclass(frozen=True)
class Shard:
    """Part ``part`` of ``of`` parts of the images, for job arrays."""

    part: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """The shard I/N.

        >>> Shard.parse("2/4")
        Shard(part=2, of=4)
        """
        first, _, second = text.partition("/")
        valid = first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)
        if not valid:
            raise InputError(f"`shard`: expected I/N with 1 ≤ I ≤ N, got {text!r}")
        return cls(int(first), int(second))

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Where a command computes."""

    seed: int = 0
    """Determines every random number."""
    device: str | None = None
    """cpu, cuda, … (default: the accelerator if there is one)."""
