"""The images of a command, at the size its network takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatsmooth.data import ImageSet, ImageStream, load, open_stream
from heatsmooth.data.sources import Split
from heatsmooth.errors import require
from heatsmooth.models import recorded_spec
from heatsmooth.progress import Progress, silent

IMAGE_SIZE = 224
"""Side of the centre crop where neither the user nor the network says one."""


@dataclass(frozen=True)
class Reading:
    """How image files are read."""

    class_index: Path | None = None
    """The classes of the images or folders of an ``imagefolder``."""
    skip_broken: bool = False
    """Leave out images that cannot be read, after a search for them; otherwise the first is an error."""
    stream: bool = False
    """Read ``hf:`` images one after another, never all at once; for ``smooth``."""


PLAINLY = Reading()


def images_for(
    data: str,
    split: Split,
    *,
    source: Path | None = None,
    model: str | None = None,
    data_root: Path | None = None,
    image_size: int | None = None,
    reading: Reading = PLAINLY,
    stride: int = 1,
    images: int | None = None,
    limit: int | None = None,
    progress: Progress = silent,
) -> ImageSet:
    """The images ``data`` names: every ``stride``-th, at most ``images``, or a fixed subset of ``limit``.

    Encoded images are cropped to ``image_size``, else to the size the network of ``source`` records.
    """
    side = side_for(image_size, source, model)
    found = load(data, split, root=data_root, image_size=side, class_index=reading.class_index, progress=progress)
    chosen = found.sampled(limit).strided(stride, images)
    return chosen.readable(progress) if reading.skip_broken else chosen


def stream_for(
    data: str, *, source: Path, model: str | None, data_root: Path | None, image_size: int | None, limit: int | None
) -> ImageStream:
    """The training images of ``hf:NAME`` as a stream, ``limit`` of them an epoch."""
    require(data.startswith("hf:"), f"--stream: expected --data hf:NAME, got {data}; leave --stream out")
    return open_stream(data, side_for(image_size, source, model), count=limit, cache=data_root)


def side_for(image_size: int | None, source: Path | None, model: str | None) -> int:
    """The side of encoded images: as asked, as the network records, or 224."""
    spec = recorded_spec(source, model) if image_size is None and source is not None else None
    return image_size if image_size is not None else (spec.size if spec else None) or IMAGE_SIZE


def left_out(images: ImageSet) -> dict[str, Any]:
    """What a summary says of images that could not be read; nothing if all could."""
    return {"left_out": list(images.left_out)} if images.left_out else {}
