"""Decoding of image files within memory bounds, which are checked on the header before anything is decoded.

All threads of the process share ``MOST_MEMORY``. A hostile file of a few kilobytes can declare a huge image, be
enlarged to one, hold its pixels in one huge tile, or have a header of a million parts. Such files are refused.
"""

import io
import math
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from PIL import Image, PngImagePlugin, TiffImagePlugin, _imaging

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded; none has a reader that starts another program."""
MOST_PIXELS = 50_000_000
LONGEST_SIDE = 65_535
"""In pixels, because a decoder holds whole rows."""
MOST_MEMORY = 280_000_000
"""Bytes for decoding and resizing, in all threads together."""
MOST_PARTS = 100_000
"""Most segments, chunks, blocks, strips and tiles of a header; each becomes a few Python objects."""
HEADER_MEMORY = PngImagePlugin.MAX_TEXT_MEMORY
"""Bytes that the header of a file may take, because a PNG file may contain that much compressed text."""
LONGEST_RESIZED = 2048
"""In pixels. Of a side that would become longer, only the middle is resized, but never less than the crop."""
RESIZE_RATIO = 256 / 224
"""As in ImageNet evaluation, the shorter side becomes 256/224 of the crop."""
DECODER_BUFFERS = {"WEBP": 12, "bmp_rle": 3, "ppm": 8, "ppm_plain": 8}
"""Measured bytes per pixel that a decoder holds in addition to the image, by Pillow's name for it."""
BLOCK_BUFFER = 12
"""Bytes per pixel of a strip or tile in a TIFF file: 16 bits in 4 channels, or 8 bits and JPEG coefficients."""
BYTES = (1, 2, 7)
"""Types of a TIFF tag whose content Pillow keeps as bytes: byte, text, undefined."""
PILLOW_BLOCK = 2**26
"""Bytes. Pillow holds pixels in blocks. Blocks above 32 MiB return to the system when they are freed. Of smaller ones,
each thread keeps those it has freed."""
_imaging.set_block_size(PILLOW_BLOCK)
ROUNDED_TO_BYTES = [round(value / 257) for value in range(65536)]


class TooLargeError(ValueError):
    """An image that exceeds a bound; ``limit`` is the bound, the message is what the image has."""

    def __init__(self, limit: str, actual: str) -> None:
        super().__init__(actual)
        self.limit = limit


class Memory:
    """A budget of bytes shared by all threads; a thread that needs more than is left waits."""

    def __init__(self, total: int) -> None:
        self.total = self._left = total
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Hold ``amount`` bytes, at most the whole budget."""
        amount = min(amount, self.total)
        with self._changed:
            self._changed.wait_for(lambda: amount <= self._left)
            self._left -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left += amount
                self._changed.notify_all()


MEMORY = Memory(MOST_MEMORY)


@contextmanager
def opened(source: Path | BinaryIO) -> Iterator[Image.Image]:
    """An image file with its header read and nothing decoded; ``TooLargeError`` if the header has too many parts."""
    reader = _Reader(io.FileIO(source) if isinstance(source, Path) else cast("io.RawIOBase", source))
    try:
        _check_directory(reader)
        with Image.open(reader, formats=FORMATS) as file:
            if file.format != "PNG":  # PNG chunks after the pixels are read with them
                reader.parts = math.inf
            yield file
    finally:
        reader.close() if isinstance(source, Path) else reader.detach()


def decode(source: Path | BinaryIO, mode: str, shape: tuple[int, int]) -> Image.Image:
    """The image unchanged if it has this shape, else resized and cropped to it; see ``Fit``.

    Raises ``TooLargeError``, before anything is decoded, if a bound is exceeded.

    ``source``: a path, or an open binary file.
    ``mode``: "L" or "RGB".
    ``shape``: (height, width) in pixels.
    """
    with MEMORY.taken(HEADER_MEMORY), opened(source) as file:
        _check_size(file, mode)
        fit = Fit.of(file.size, shape)
        needed = HEADER_MEMORY + _memory(file, mode) + fit.memory
    with ExitStack() as held:  # the budget is returned after the memory of the file is free
        held.enter_context(MEMORY.taken(needed))
        if not isinstance(source, Path):
            source.seek(0)
        with opened(source) as file:
            image = _in_eight_bits(file)
            if image.mode not in (mode, "L"):
                image = image.convert(mode)
            if image.size == shape[::-1]:
                return image.convert(mode)
            image = fit.crop(image)
        del file
        return image.convert(mode)


class Axis(NamedTuple):
    """How one side of an image becomes one side of the crop; all in pixels."""

    source: int
    resized: int
    """Length of the whole side after resizing."""
    kept: int
    """How many of those are computed: all, or the ones in the middle."""
    target: int

    @property
    def box(self) -> tuple[float, float]:
        """The part of the source that is resized."""
        start = (self.resized - self.kept) // 2
        return start * self.source / self.resized, (start + self.kept) * self.source / self.resized

    @property
    def offset(self) -> int:
        """Where the crop starts in the resized part."""
        return (self.resized - self.target) // 2 - (self.resized - self.kept) // 2


class Fit(NamedTuple):
    """How an image becomes a centre crop: it is scaled to cover ``RESIZE_RATIO`` times the crop, then cropped.

    Of a long side, the middle is cut out before resizing, so a long strip never becomes a huge image.
    """

    x: Axis
    y: Axis

    @classmethod
    def of(cls, size: tuple[int, int], shape: tuple[int, int]) -> "Fit":
        """For an image of ``size`` (width, height), as in Pillow, and a crop of ``shape`` (height, width)."""
        targets = shape[::-1]
        scale = max(target * RESIZE_RATIO / side for side, target in zip(size, targets, strict=True))

        def axis(side: int, target: int) -> Axis:
            resized = max(target, round(side * scale))
            return Axis(side, resized, min(resized, max(target, LONGEST_RESIZED)), target)

        return cls(*map(axis, size, targets))

    @property
    def memory(self) -> int:
        """Bytes that resizing takes in addition to the image: the resized rows, the result, and its crop."""
        low, high = self.y.box
        return 4 * (self.x.kept * (math.ceil(high - low) + 2 + self.y.kept) + 2 * self.x.target * self.y.target)

    def crop(self, image: Image.Image) -> Image.Image:
        """The centre crop."""
        (left, right), (top, bottom) = self.x.box, self.y.box
        resized = image.resize((self.x.kept, self.y.kept), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
        left, top = self.x.offset, self.y.offset
        return resized.crop((left, top, left + self.x.target, top + self.y.target))


class _Reader(io.BufferedReader):
    """A file that allows ``parts`` reads, then raises ``TooLargeError``; each part of a header takes at least one."""

    parts: float = MOST_PARTS

    def read(self, size: int | None = -1, /) -> bytes:
        self.parts -= 1
        if self.parts < 0:
            raise _too_many_parts()
        return super().read(size)


def _too_many_parts() -> TooLargeError:
    return TooLargeError(f"with a header of at most {MOST_PARTS:,} parts", "more")


def _check_directory(reader: _Reader) -> None:
    """Refuse a TIFF file with too many numbers in a tag, such as offsets of strips: each becomes a Python object."""
    header = reader.read(16)
    if header[:4] in TiffImagePlugin.PREFIXES:
        order, large = "<" if header.startswith(b"II") else ">", header[2] == 43
        first, entries, entry = ("8xQ", "Q", "HHQ8x") if large else ("4xL8x", "H", "HHL4x")
        with suppress(struct.error):  # a truncated file, which Pillow refuses itself
            reader.seek(*struct.unpack(order + first, header))
            (number,) = struct.unpack(order + entries, reader.read(struct.calcsize(order + entries)))
            for _ in range(number):
                _, kind, count = struct.unpack(order + entry, reader.read(struct.calcsize(order + entry)))
                if kind not in BYTES and count > MOST_PARTS:
                    raise _too_many_parts()
    reader.seek(0)


def _check_size(file: Image.Image, mode: str) -> None:
    actual = f"{file.width}×{file.height} pixels"
    if file.width * file.height > MOST_PIXELS:
        raise TooLargeError(f"of at most {MOST_PIXELS:,} pixels", actual)
    if max(file.size) > LONGEST_SIDE:
        raise TooLargeError(f"with sides of at most {LONGEST_SIDE:,} pixels", actual)
    needed = _memory(file, mode)
    if needed > MOST_MEMORY:
        most = f"{MOST_MEMORY // 1_000_000} MB"
        raise TooLargeError(f"decoded within {most}", f"{actual} of {file.format} that take {needed // 1_000_000:,} MB")


def _memory(file: Image.Image, mode: str) -> int:
    """Most bytes that decoding takes: for the image, the buffers of the decoder, and the image in ``mode``."""
    pixels = file.width * file.height
    tiles = getattr(file, "tile", None)
    decoder = tiles[0][0] if tiles else file.format
    if decoder == "libtiff":
        buffers = BLOCK_BUFFER * _largest_block(cast("TiffImagePlugin.TiffImageFile", file))
    elif decoder == "jpeg":
        buffers = pixels * _coefficients(file)
    else:
        buffers = pixels * DECODER_BUFFERS.get(str(decoder), 0)
    deep = file.mode.startswith("I;16")
    each = 1 if file.mode in ("1", "L", "P") else 2 if deep else 4
    converted = 0 if file.mode in (mode, "L") else 5 if deep else 4
    return pixels * (each + converted) + buffers


def _largest_block(file: TiffImagePlugin.TiffImageFile) -> int:
    """Pixels of the largest strip or tile that the file declares; a tile may be larger than the image."""

    def declared(tag: int, default: int) -> int:
        value: Any = file.tag_v2.get(tag, default)
        return value if isinstance(value, int) and value > 0 else default

    width, height = declared(TiffImagePlugin.TILEWIDTH, 0), declared(TiffImagePlugin.TILELENGTH, 0)
    strip = file.width * min(file.height, declared(TiffImagePlugin.ROWSPERSTRIP, file.height))
    return max(width * height, strip)


def _coefficients(file: Any) -> int:
    """Bytes per pixel that a JPEG decoder holds: all coefficients if there are several scans, else none."""
    place, channels = file.fp.tell(), int(file.layers)
    file.fp.seek(max(0, place - 16))
    before = file.fp.read(min(place, 16))  # ends with the header of the first scan
    in_one_scan = before[-8 - 2 * channels :].startswith(bytes([255, 218, 0, 6 + 2 * channels, channels]))
    return 0 if in_one_scan and "progressive" not in file.info else 2 * channels


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """The image with at most 8 bits per channel. 16 bits are scaled; Pillow would turn all but black into white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        whole = image if image.mode == "I" else image.convert("I")
        return whole.point(ROUNDED_TO_BYTES, "L")
    if image.mode in ("I", "F"):
        raise ValueError("32 bits per channel of unknown range, save it with 8 or 16")
    return image
