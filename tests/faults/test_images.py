"""Hostile and odd image files: read right, or refused in one line; memory and time stay small."""

import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heatsmooth import InputError
from heatsmooth.data.folder import load_folder, read_image
from heatsmooth.models import save
from tests.conftest import tiny_classifier
from tests.faults.processes import SCALE, Command

SIZE = 20
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
RAMP = (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) * 164).astype(np.uint16)
FORMATS = ("png", "jpg", "bmp", "gif", "webp", "ppm", "tif")


def picture() -> Image.Image:
    return Image.fromarray(PIXELS)


def png(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG that says it is so large, whatever it holds."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_modes_are_read_as_people_see_them(tmp_path: Path) -> None:
    grey = np.asarray(picture().convert("L"))
    for mode, name in (("RGBA", "a.png"), ("CMYK", "a.tif"), ("RGB", "a.bmp"), ("L", "a.pgm"), ("LA", "b.png")):
        picture().convert(mode).save(tmp_path / name)
        found = read_image(tmp_path / name, SIZE).transpose(1, 2, 0)
        expected = PIXELS if len(mode) > 2 and mode != "LA" else np.repeat(grey[:, :, None], 3, 2)
        assert np.abs(found.astype(int) - expected).max() <= 1, mode
    few = picture().quantize(16)
    few.save(tmp_path / "palette.png", transparency=3)
    assert (read_image(tmp_path / "palette.png", SIZE) == np.asarray(few.convert("RGB")).transpose(2, 0, 1)).all()
    bits = picture().convert("1")
    bits.save(tmp_path / "bits.png")
    assert (read_image(tmp_path / "bits.png", SIZE, channels=1)[0] == np.asarray(bits) * 255).all()
    picture().quantize(256).save(tmp_path / "moving.gif", save_all=True, append_images=[Image.new("P", (SIZE, SIZE))])
    picture().quantize(256).save(tmp_path / "still.gif")
    assert (read_image(tmp_path / "moving.gif", SIZE) == read_image(tmp_path / "still.gif", SIZE)).all()
    rotated = Image.Exif()
    rotated[0x0112] = 6
    picture().save(tmp_path / "turned.png", exif=rotated)
    assert (read_image(tmp_path / "turned.png", SIZE) == PIXELS.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("name", ["ramp.png", "ramp.tif", "ramp.pgm"])
def test_sixteen_bits_are_scaled_not_cut_off(name: str, tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / name)
    for channels in (1, 3):
        found = read_image(tmp_path / name, SIZE, channels=channels)
        assert np.abs(found - RAMP / 257).max() <= 0.51


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_an_unknown_range_is_refused(kind: type[np.generic], tmp_path: Path) -> None:
    Image.fromarray(RAMP.astype(kind)).save(tmp_path / "ramp.tif")
    with pytest.raises(InputError, match="32 bits a channel"):
        read_image(tmp_path / "ramp.tif", SIZE)


def test_bombs_and_no_images_are_refused(tmp_path: Path) -> None:
    picture().save(tmp_path / "good.png")
    good = (tmp_path / "good.png").read_bytes()
    hostile = {
        "bomb.png": png(60_000, 60_000, zlib.compress(bytes(1_000_000))),
        "largest.png": png(2**31 - 1, 2**31 - 1),
        "none.png": png(0, 0),
        "short.png": good[:-40],
        "header.png": good[:30],
        "empty.png": b"",
        "text.jpg": b"GIF89a is what I am not",
        "script.png": b"<svg onload=alert(1)>",
        "pickle.png": b"\x80\x04\x95",
    }
    for name, content in hostile.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: expected a readable image"):
            read_image(tmp_path / name, SIZE)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_images_are_read_or_refused(
    suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    chance, file, count = random.Random(suffix), tmp_path / f"x.{suffix}", 50 * SCALE
    picture().save(file)
    content = file.read_bytes()
    for number in range(count):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 3, 8))):
            damaged[chance.randrange(min(len(content), 200 if number % 2 else len(content)))] = chance.randrange(256)
        if chance.random() < 0.2:
            damaged = damaged[: chance.randrange(len(damaged))]
        file.write_bytes(damaged)
        try:
            assert read_image(file, SIZE).shape == (3, SIZE, SIZE)
        except InputError:
            continue
    record_property("images damaged", count)


def test_a_folder_of_traps_is_read_around_them(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        picture().save(tmp_path / name / "1.png")
    (tmp_path / "dog/folder.png").mkdir()
    (tmp_path / "dog/loop.png").symlink_to(tmp_path / "dog/loop.png")
    (tmp_path / "dog/again").symlink_to(tmp_path / "dog")
    (tmp_path / "dog/nothing.png").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "dog/pipe.png")
    picture().save(os.fsencode(tmp_path) + b"/cat/\xff\xfe.png", format="png")
    images = load_folder(tmp_path, SIZE)
    assert len(images) == 3
    assert images.known_labels().tolist() == [0, 0, 1]
    assert images.raw(images.indices).shape == (3, 3, SIZE, SIZE)
    assert len(images.fingerprint) == 16


def test_commands_meet_hostile_images_with_one_line(network: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images/a"
    folder.mkdir(parents=True)
    name = os.fsdecode(b"\xff.png")
    (folder / name).write_bytes(png(60_000, 60_000))
    picture().save(folder / "good.png")
    predict = ["predict", "--from", network, "--json"]
    for words in (
        [*predict, folder / name],
        [*predict, tmp_path],
        [*predict, tmp_path / "nothing\n.png"],
        ["smooth", "--from", network, "--sigma", 1, "--data", f"imagefolder:{folder.parent}", "--out", tmp_path / "o"],
    ):
        ended = Command(words, tmp_path).end()
        assert ended.refused(), ended
    good = os.fsdecode(b"\xfe.png")
    (folder / good).write_bytes((folder / "good.png").read_bytes())
    ended = Command([*predict, folder / good], tmp_path).end()
    assert ended.code == 0, ended
    assert json.loads(ended.out)["predictions"][0]["subject"] == "network"
    words = ["attack", "--data", f"imagefolder:{folder.parent}", "--image-size", 20, "--from", good_network(tmp_path)]
    (folder / name).unlink()
    ended = Command([*words, "--out", tmp_path / os.fsdecode(b"out-\xff"), "--steps", 2], tmp_path).end()
    assert ended.code == 0, ended
    ended = Command(["predict", "--from", network, folder / good], tmp_path).end()
    assert ended.code == 0, ended


def good_network(folder: Path) -> Path:
    """Weights of a network for colours."""
    save(tiny_classifier(channels=3), folder / "colour.safetensors")
    return folder / "colour.safetensors"
