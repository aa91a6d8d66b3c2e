"""What nearly every command is given: a network and images, as the user names them, and loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatsmooth.data import ImageSet, ImageStream, load, open_stream
from heatsmooth.data.images import Size
from heatsmooth.data.sources import Split
from heatsmooth.errors import require
from heatsmooth.models import Classifier, recorded_spec
from heatsmooth.models import load as load_model
from heatsmooth.models.checkpoint import CALLABLE
from heatsmooth.progress import Progress, silent


@dataclass(frozen=True)
class Network:
    """Which network: ``source``, and what the user says of it beside."""

    source: Path
    """A run directory, a file of weights, ``hf:NAME`` or ``package.module:callable``."""
    model: str | None = None
    classes: int | None = None
    """Of a built-in network whose weights do not say; by default as many as the images have."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: Size | None = None
    """Of the images it is given; by default what it records."""

    @property
    def code(self) -> str | None:
        """The network's code, if the user named any: beside its weights, or as their source."""
        return str(self.source) if self.model is None and CALLABLE.fullmatch(str(self.source)) else self.model

    @property
    def side(self) -> Size | None:
        """The side, or (height, width), of encoded images, as asked or as the network records, if either says one."""
        spec = recorded_spec(self.source, self.model) if self.size is None else None
        return spec.size if spec else self.size

    def load(self, images: ImageSet | ImageStream | None = None, *, channels: int | None = None) -> Classifier:
        """The network, in evaluation mode, on the CPU; what nobody says of it is as ``images`` need it.

        ``channels``: of the images, where there are none at hand.
        """
        known = images.classes if isinstance(images, ImageSet) else None
        return load_model(
            self.source,
            model=self.model,
            classes=self.classes or known or 10,
            channels=channels if images is None else images.shape[0],
            mean=self.mean,
            std=self.std,
        )


@dataclass(frozen=True)
class Images:
    """Which images: every ``stride``-th of ``data``, at most ``count``, and how their files are read."""

    data: str
    root: Path | None = None
    class_index: Path | None = None
    """The classes of the images or folders of an ``imagefolder``."""
    skip_broken: bool = False
    """Leave out images that cannot be read, after a search for them; otherwise the first is an error."""
    stride: int = 1
    count: int | None = None

    def load(
        self, side: Size | None, split: Split = "test", *, limit: int | None = None, progress: Progress = silent
    ) -> ImageSet:
        """The images, encoded ones cropped to ``side`` (None: the usual one); with ``limit``, from a fixed subset."""
        found = load(self.data, split, root=self.root, image_size=side, class_index=self.class_index, progress=progress)
        chosen = found.sampled(limit).strided(self.stride, self.count)
        return chosen.readable(progress) if self.skip_broken else chosen

    def stream(self, side: Size | None, *, limit: int | None) -> ImageStream:
        """The training images of ``hf:NAME``, read one after another, ``limit`` of them an epoch."""
        require(self.data.startswith("hf:"), f"--stream: expected --data hf:NAME, got {self.data}; leave --stream out")
        return open_stream(self.data, side, count=limit, cache=self.root)


def left_out(images: ImageSet) -> dict[str, Any]:
    """What a summary says of images that could not be read; nothing if all could."""
    return {"left_out": list(images.left_out)} if images.left_out else {}
