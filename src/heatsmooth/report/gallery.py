"""Images of an attack run: the least and the most robust ones, as PNG inside the page."""

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsmooth.report.collection import GALLERY, Collection, Gallery, Pixels
from heatsmooth.report.values import NONE, one_line, percent, radius_text

SIDE = 112
"""Larger images are shrunk to this side at most."""
BUDGET = 900_000
"""Bytes of pixels in all galleries of a page."""
EACH = 6
"""At most this many of the most, and of the least, robust images of a gallery."""


@dataclass(frozen=True)
class Picture:
    """One image: its pictures (name, data address, class seen) and its facts."""

    index: str
    label: str
    pictures: list[tuple[str, str, str]]
    facts: list[tuple[str, str]]


@dataclass(frozen=True)
class Wall:
    """The pictures of a model, in groups by how robust they are."""

    model: str
    ordered_by: str
    groups: list[tuple[str, list[Picture]]]


def walls(collection: Collection) -> list[Wall]:
    """A wall for each gallery, within the budget."""
    each = BUDGET // max(1, len(collection.galleries))
    return [_wall(gallery, collection, each) for gallery in collection.galleries]


def _wall(gallery: Gallery, collection: Collection, budget: int) -> Wall:
    count = len(next(iter(gallery.images.values())))
    small = {name: shrunk(pixels) for name, pixels in gallery.images.items()}
    size = sum(pixels[0].size for pixels in small.values()) if count else 1
    shown = min(count, 2 * EACH, max(2, budget // max(1, size)))
    radii = _radii(gallery, collection)
    distance = gallery.facts.get("distance")
    by_radius = radii is not None and all(radius is not None for radius in radii)
    if by_radius:
        key = np.array(radii, dtype=np.float64)
    elif distance is not None and distance.dtype.kind == "f":
        key = np.where(np.isfinite(distance), distance, np.inf)
    else:
        key = np.zeros(count)
    order = np.argsort(key, kind="stable").tolist()
    half = shown // 2
    chosen = [("Least robust", order[:half]), ("Most robust", order[len(order) - (shown - half) :][::-1])]
    groups = [(name, [_picture(gallery, small, i, radii) for i in which]) for name, which in chosen if which]
    ordered_by = "certified radius of the average" if by_radius else "distance of the attack"
    return Wall(collection.model_name(gallery.model, gallery.name), ordered_by, groups)


def _radii(gallery: Gallery, collection: Collection) -> list[float | None] | None:
    """The statistical radius of each image, where the same model was certified on it."""
    index = gallery.facts.get("index")
    certified = collection.certified(gallery.model)
    if index is None or certified is None:
        return None
    known = dict(zip(certified.claims.indices.tolist(), certified.claims.radii.tolist(), strict=True))
    found = [known.get(i) for i in index.tolist()]
    return found if any(radius is not None for radius in found) else None


def _picture(gallery: Gallery, small: dict[str, Pixels], i: int, radii: list[float | None] | None) -> Picture:
    def fact(name: str) -> Any:
        values = gallery.facts.get(name)
        return None if values is None else values[i]

    seen = {"clean": fact("clean_class"), "adversarial": fact("adversarial_class")}
    pictures = []
    for name in GALLERY:
        if name in small:
            caption = "" if seen.get(name) is None else f"class {one_line(seen[name], 40)}"
            pictures.append((name, png(small[name][i]), caption))
    facts = []
    probability, distance = fact("probability"), fact("distance")
    if probability is not None:
        facts.append(("probability in one pass", percent(float(probability))))
    if radii is not None:
        radius = radii[i]
        value = NONE if radius is None else "none" if radius == 0 else radius_text(radius, 3)
        facts.append(("radius (average, statistical)", value))
    if distance is not None:
        found = float(distance)
        facts.append(("attack distance (upper bound)", f"{found:.3f}" if np.isfinite(found) else "attack failed"))
    index, label = fact("index"), fact("label")
    return Picture(
        "" if index is None else one_line(index, 20), "" if label is None else one_line(label, 40), pictures, facts
    )


def shrunk(pixels: Pixels) -> Pixels:
    """Images (images, height, width, channels) whose longer side is at most ``SIDE``, by the mean of whole blocks."""
    block = -(-max(pixels.shape[1:3]) // SIDE)
    if block <= 1:
        return pixels
    height, width = (side // block * block for side in pixels.shape[1:3])
    parts = pixels[:, :height, :width].reshape(len(pixels), height // block, block, width // block, block, -1)
    return np.asarray(parts.mean((2, 4)).round().astype(np.uint8))


def png(pixels: Pixels) -> str:
    """A data address of an image (height, width, channels 1 or 3)."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()
