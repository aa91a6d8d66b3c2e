"""Image files of at most 10 MB that ask for far more memory than they look: shapes, formats, headers and tiles."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

LARGEST = 50_000_000
"""Pixels that are allowed."""
SHAPES = ((65_500, 1), (1, 65_500), (65_500, 763), (763, 65_500), (7_071, 7_071))
"""(width, height) that are allowed; others are refused by their header."""


def png(
    width: int, height: int, *, depth: int = 8, kind: int = 2, interlaced: bool = False, extra: bytes = b""
) -> bytes:
    """A black PNG; ``kind``: 0 grey, 2 colour, 3 palette, 4 grey and alpha, 6 colour and alpha."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    rows = [(width, height)]
    if interlaced:
        steps = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        rows = [(len(range(x, width, dx)), len(range(y, height, dy))) for x, y, dx, dy in steps]
    packer, body = zlib.compressobj(1), []
    for wide, high in rows:
        row = bytes(1 + (wide * channels * depth + 7) // 8) if wide else b""
        together = max(1, 1_000_000 // max(1, len(row)))
        body += [packer.compress(row * min(together, high - start)) for start in range(0, high, together)]
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, int(interlaced))
    palette = chunk(b"PLTE", bytes(768)) if kind == 3 else b""
    content = b"".join(body) + packer.flush()
    end = chunk(b"IDAT", content) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + extra + end


def chunk(kind: bytes, content: bytes) -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tiff(width: int, height: int, *tags: tuple[int, int | bytes], content: bytes = b"", compression: int = 8) -> bytes:
    """A grey TIFF; ``tags`` are numbers, or the bytes of many, to which an address is written."""
    entries = [(256, width), (257, height), (258, 8), (259, compression), (262, 1), (277, 1), *tags]
    place, body, rest = 8 + 2 + 12 * len(entries) + 4, b"", b""
    for tag, value in sorted(entries, key=lambda entry: entry[0]):
        if isinstance(value, bytes):
            body, rest = body + struct.pack("<HHLL", tag, 4, len(value) // 4, place + len(rest)), rest + value
        else:
            body += struct.pack("<HHLL", tag, 4, 1, place if value < 0 else value)
    return b"II*\0" + struct.pack("<LH", 8, len(entries)) + body + bytes(4) + rest + content


def saved(mode: str, width: int, height: int, form: str, **options: object) -> bytes:
    """A black image, as Pillow writes it."""
    file = io.BytesIO()
    image = (
        Image.fromarray(np.zeros((height, width), np.uint16)) if mode == "I;16" else Image.new(mode, (width, height))
    )
    image.save(file, form, **options)
    return file.getvalue()


def one_tile(side: int) -> bytes:
    """A TIFF of 16×16 pixels in one tile of ``side`` × ``side``."""
    packer = zlib.compressobj(1)
    content = b"".join(packer.compress(bytes(side)) for _ in range(side)) + packer.flush()
    return tiff(16, 16, (322, side), (323, side), (324, -1), (325, len(content)), content=content)


def headers() -> Iterator[tuple[str, bytes]]:
    """Small pictures under headers of very many parts."""
    picture = {form: saved("L", 8, 8, form) for form in ("JPEG", "GIF")}
    jpeg, gif = picture["JPEG"], picture["GIF"]
    yield "segments.jpg", jpeg[:2] + b"\xff\xe1\0\2" * 2_490_000 + jpeg[2:]
    place = gif.index(b",", 13)
    yield "comments.gif", gif[:place] + b"!\xfe" + b"\1a" * 4_900_000 + b"\0" + gif[place:]
    texts = b"".join(chunk(b"iTXt", b"%05x\0\0\0\0\0" % number) for number in range(380_000))
    yield "texts.png", png(8, 8, extra=texts)
    yield "text.png", png(8, 8, extra=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(300_000_000), 1)))
    yield "profile.png", png(8, 8, extra=chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(300_000_000), 1)))
    many = struct.pack("<L", 8) * 1_200_000
    yield "strips.tif", tiff(16, 1_200_000, (273, many), (278, 1), (279, many), compression=1)
    yield "tiles.tif", tiff(16, 2_400_000, (322, 16), (323, 1), (324, many * 2), (325, 16), compression=1)


def strips() -> Iterator[tuple[str, bytes]]:
    """Long ones, up to what is allowed and far beyond."""
    for long in (1_000, 65_535, 1_000_000, 50_000_000):
        for size in ((long, 1), (1, long)):
            if size != (1, 50_000_000):  # a whole file of filters
                yield f"{size[0]}x{size[1]}.png", png(*size, kind=0)


def largest() -> Iterator[tuple[str, bytes]]:
    """As many pixels as are allowed, in every format, mode and shape; some of them are too much for their format."""
    for width, height in SHAPES:
        size = f"{width}x{height}"
        for name, options in (
            ("rgb", {}),
            ("rgba", {"kind": 6}),
            ("palette", {"kind": 3}),
            ("grey-alpha-16", {"kind": 4, "depth": 16}),
            ("grey-16", {"kind": 0, "depth": 16}),
            ("rgba-16", {"kind": 6, "depth": 16}),
            ("interlaced", {"interlaced": True}),
        ):
            yield f"{name}-{size}.png", png(width, height, **options)
        for mode in ("L", "RGB", "CMYK"):
            yield f"{mode}-{size}.jpg", saved(mode, width, height, "JPEG", quality=30)
            yield f"{mode}-progressive-{size}.jpg", saved(mode, width, height, "JPEG", progressive=True, subsampling=0)
        for mode in ("RGB", "CMYK", "I;16"):
            rows = {"tiffinfo": {278: height}}
            for packing in ("tiff_lzw", "tiff_adobe_deflate"):
                name = f"{mode}-{packing}-{size}.tif".replace(";", "")
                yield name, saved(mode, width, height, "TIFF", compression=packing, **rows)
        yield f"p-{size}.gif", saved("P", width, height, "GIF")
        yield f"p-{size}.bmp", saved("P", width, min(height, 9_000_000 // width), "BMP")
    for side in (4_000, 4_472, 7_071):
        yield f"rgb-{side}.webp", saved("RGB", side, side, "WEBP", lossless=True, method=0)
    frames = {"save_all": True, "append_images": [Image.new("RGBA", (3_900, 3_900))], "lossless": True, "method": 0}
    yield "moving-3900.webp", saved("RGBA", 3_900, 3_900, "WEBP", **frames)
    for side in (5_000, 40_000):
        yield f"tile-{side}.tif", one_tile(side)


def all_bombs() -> Iterator[tuple[str, bytes]]:
    """Every one, at most 10 MB each."""
    with warnings.catch_warnings(action="ignore"):
        for some in (strips(), headers(), largest()):
            for name, content in some:
                if len(content) <= 10_000_000:
                    yield name, content
