"""Images of an attack run: read from a file that is not trusted, and shown as PNG, least and most robust first."""

import base64
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from heatsmooth.errors import require
from heatsmooth.reporting.collection import GALLERY, Collection, Gallery, Pixels, ReportedRun
from heatsmooth.reporting.formats import one_line, percent, radius_text
from heatsmooth.statistics.bounds import Floats
from heatsmooth.table import NONE

LONGEST_SIDE = 4096
"""Pixels of the longest side of an image in a file."""
GALLERY_BYTES = 128 * 2**20
"""The most memory that the arrays of a gallery may need."""
SHOWN_SIDE = 112
"""Larger images are shrunk to this side."""
PAGE_BYTES = 900_000
"""Bytes of pixels in all galleries of a page."""
GROUP = 6
"""At most this many of the most, and of the least, robust images of a gallery."""


def read_gallery(run: ReportedRun) -> Gallery:
    """The gallery of an attack run."""
    arrays = _arrays(run.path / "gallery.npz")
    images = {key: arrays[key] for key in GALLERY if key in arrays}
    require(bool(images), "gallery.npz: expected images, got none; repeat the attack command")
    count = len(next(iter(images.values())))
    for key, pixels in images.items():
        good = len(pixels) == count and _are_pictures(pixels)
        require(good, f"gallery.npz: expected {key} as uint8 (images, height, width, channels), got {pixels.shape}")
    facts = {key: value for key, value in arrays.items() if key not in GALLERY and value.shape == (count,)}
    return Gallery(run.name, run.info.network, images, facts)


def _are_pictures(pixels: NDArray[Any]) -> bool:
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[3] not in (1, 3):
        return False
    return all(1 <= side <= LONGEST_SIDE for side in pixels.shape[1:3])


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name; the size that they declare is checked before memory is allocated."""
    with ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        require(size <= GALLERY_BYTES, f"{path.name}: expected at most {GALLERY_BYTES:,} bytes of arrays, got {size:,}")
        arrays = {}
        for member in members:
            simple = member.compress_type in (ZIP_STORED, ZIP_DEFLATED)
            require(simple, f"{path.name}: expected stored or deflated arrays, got {member.compress_type}")
            with archive.open(member) as file:
                needed = _declared_bytes(file)
            name = member.filename.removesuffix(".npy")
            require(
                0 <= needed <= member.file_size,
                f"{path.name}: expected {name} of {member.file_size:,} bytes, got one that declares {needed:,}",
            )
            with archive.open(member) as file:
                arrays[name] = npy.read_array(file, allow_pickle=False)
    return arrays


def _declared_bytes(file: IO[bytes]) -> int:
    """The size of an array in numpy's format, from its header."""
    version = npy.read_magic(file)
    require(version in ((1, 0), (2, 0)), f"expected an array of numpy's format 1 or 2, got {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return math.prod(shape) * max(1, dtype.itemsize)


@dataclass(frozen=True)
class Picture:
    """One image: its versions (name, data address, predicted class) and its facts."""

    index: str
    label: str
    versions: list[tuple[str, str, str]]
    facts: list[tuple[str, str]]


@dataclass(frozen=True)
class PictureGroups:
    """The pictures of a model, grouped by how robust they are."""

    model: str
    ordered_by: str
    groups: list[tuple[str, list[Picture]]]


def picture_groups(collection: Collection) -> list[PictureGroups]:
    """The pictures of each gallery, within ``PAGE_BYTES``."""
    each = PAGE_BYTES // max(1, len(collection.galleries))
    return [_groups(gallery, collection, each) for gallery in collection.galleries]


def _groups(gallery: Gallery, collection: Collection, most_bytes: int) -> PictureGroups:
    count = len(next(iter(gallery.images.values())))
    size = sum(math.prod(_shown_size(pixels)) * pixels.shape[3] for pixels in gallery.images.values())
    shown = min(count, 2 * GROUP, max(2, most_bytes // max(1, size)))
    radii = _radii(gallery, collection)
    by_radius = radii is not None and not np.isnan(radii).any()
    robustness = radii if radii is not None and by_radius else _distances(gallery, count)
    order = np.argsort(robustness, kind="stable").tolist()
    half = shown // 2
    positions = {"Least robust": order[:half], "Most robust": order[len(order) - (shown - half) :][::-1]}
    groups = [(name, [_picture(gallery, i, radii) for i in group]) for name, group in positions.items() if group]
    ordered_by = "certified radius of the average" if by_radius else "distance of the attack"
    return PictureGroups(collection.model_name(gallery.model, gallery.name), ordered_by, groups)


def _distances(gallery: Gallery, count: int) -> Floats:
    """The distance of the attack on each image, infinite where it failed; 0 where it is not known."""
    distance = gallery.facts.get("distance")
    if distance is None or distance.dtype.kind != "f":
        return np.zeros(count)
    return np.where(np.isfinite(distance), distance, np.inf)


def _radii(gallery: Gallery, collection: Collection) -> Floats | None:
    """The statistical L2 radius of each image, NaN where unknown; None if the model was certified on none of them."""
    index, certified = gallery.facts.get("index"), collection.certified(gallery.model)
    if index is None or certified is None or not certified.claims.basis.usual:
        return None
    known = dict(zip(certified.claims.indices.tolist(), certified.claims.radii.tolist(), strict=True))
    radii = np.array([known.get(i, math.nan) for i in index.tolist()])
    return None if np.isnan(radii).all() else radii


def _picture(gallery: Gallery, i: int, radii: Floats | None) -> Picture:
    known = {name: values[i] for name, values in gallery.facts.items()}

    def text(name: str, most: int = 40) -> str:
        return one_line(known[name], most) if name in known else ""

    versions = []
    for name in GALLERY:
        if name in gallery.images:
            predicted = text(f"{name}_class")
            versions.append((name, _png(gallery.images[name][i]), f"class {predicted}" if predicted else ""))
    return Picture(text("index", 20), text("label"), versions, list(_facts(known, None if radii is None else radii[i])))


def _facts(known: Mapping[str, Any], radius: float | None) -> Iterator[tuple[str, str]]:
    if "probability" in known:
        yield "probability in one pass", percent(float(known["probability"]))
    if radius is not None:
        shown = NONE if math.isnan(radius) else "none" if radius == 0 else radius_text(float(radius), 3)
        yield "radius (average, statistical)", shown
    if "distance" in known:
        distance = float(known["distance"])
        yield "attack distance (upper bound)", f"{distance:.3f}" if math.isfinite(distance) else "attack failed"


def _shown_size(pixels: Pixels) -> tuple[int, int]:
    height, width = pixels.shape[1:3]
    scale = min(1.0, SHOWN_SIDE / max(height, width))
    return max(1, round(scale * height)), max(1, round(scale * width))


def _png(pixels: Pixels) -> str:
    """A data address of an image (height, width, channels 1 or 3), shrunk to ``SHOWN_SIDE``."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    height, width = _shown_size(pixels[None])
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
