"""Hostile and odd image files: read right, or refused in one line; memory and time stay small."""

import json
import os
import random
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from PIL import Image

from heatsmooth import InputError
from heatsmooth.data import decoding
from heatsmooth.data.decoding import LONGEST_RESIZED, Fit, Memory
from heatsmooth.data.folder import load_folder, read_image
from heatsmooth.models import NetworkSpec, build, save
from tests.conftest import tiny_classifier
from tests.faults.bombs import chunk, headers, one_tile, png, saved, tiff
from tests.faults.processes import SCALE, Command

ROOT = Path(__file__).parents[2]
SIZE = 20
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
RAMP = (np.arange(SIZE * SIZE).reshape(SIZE, SIZE) * 164).astype(np.uint16)
FORMATS = ("png", "jpg", "bmp", "gif", "webp", "ppm", "tif")


def picture() -> Image.Image:
    return Image.fromarray(PIXELS)


def declared(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG that says it is so large, whatever it holds."""
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
    with pytest.raises(InputError, match="32 bits per channel"):
        read_image(tmp_path / "ramp.tif", SIZE)


def test_bombs_and_no_images_are_refused(tmp_path: Path) -> None:
    picture().save(tmp_path / "good.png")
    good = (tmp_path / "good.png").read_bytes()
    hostile = {
        "bomb.png": declared(60_000, 60_000, zlib.compress(bytes(1_000_000))),
        "largest.png": declared(2**31 - 1, 2**31 - 1),
        "none.png": declared(0, 0),
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


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few files of ``benchmarks/image_memory.py``, each more than 400 MB if it is read as it asks to be."""
    folder = tmp_path_factory.mktemp("bombs")
    (folder / "bombs").mkdir()
    save(build(NetworkSpec("tiny", 10, 3)), folder / "network.safetensors")
    (folder / "ordinary.png").write_bytes(png(300, 300))
    contents = {
        "read-wide.png": png(5_000, 1, kind=0),
        "read-tall.png": png(1, 5_000),
        "read-deep.png": png(6_300, 6_300, kind=0, depth=16),
        "refused-moving.webp": saved("RGB", 5_500, 5_500, "WEBP", lossless=True, method=0),
        "refused-tile.tif": one_tile(25_000),
        "refused-comments.gif": next(content for name, content in headers() if name == "comments.gif"),
    }
    for name, content in contents.items():
        assert len(content) <= 10_000_000
        (folder / "bombs" / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("way", ["predict", "imagefolder", "serve"])
def test_no_file_takes_more_than_400_mb(way: str, bombs: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.image_memory", "--measure", way, str(bombs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    measured = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(measured) == 6
    assert max(more for _, _, more, _ in measured) < 400, measured
    assert all((said == "read") == name.startswith("read") for name, _, _, said in measured), measured


@pytest.mark.parametrize("size", [(40, 30), (31, 200), (900, 224), (100, 1600), (20_000, 30), (7, 5_000)])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "LA", "1"])
def test_the_crop_is_that_of_the_whole_image_resized(size: tuple[int, int], mode: str, tmp_path: Path) -> None:
    """To the last bit, unless a side is cut before it is resized; then within rounding."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise).convert(mode)
    image.save(tmp_path / "a.png")
    for side, channels in ((64, 3), (100, 1)):
        scale = side * 256 / 224 / min(size)
        whole = image.convert("L" if channels == 1 else "RGB").resize(
            (max(side, round(size[0] * scale)), max(side, round(size[1] * scale))), Image.Resampling.BILINEAR
        )
        left, top = (whole.width - side) // 2, (whole.height - side) // 2
        expected = np.asarray(whole.crop((left, top, left + side, top + side))).reshape(side, side, channels)
        found = read_image(tmp_path / "a.png", side, channels=channels).transpose(1, 2, 0)
        assert np.abs(found.astype(int) - expected).max() <= (0 if max(whole.size) <= LONGEST_RESIZED else 1)


@pytest.mark.parametrize("size", [(1, 1), (65_535, 1), (1, 65_535), (7_071, 7_071), (65_500, 763), (300, 200)])
@pytest.mark.parametrize("shape", [(224, 224), (1, 1), (100, 300), (512, 20)])
def test_a_crop_takes_little_whatever_the_shape(size: tuple[int, int], shape: tuple[int, int]) -> None:
    fit = Fit.of(size, shape)
    assert fit.memory <= 100_000_000
    if max(size) < 1_000 or min(size) == 1:
        made = fit.crop(Image.new("RGB", size, (10, 20, 30)))
        assert made.size == shape[::-1]
        assert made.getextrema() == ((10, 10), (20, 20), (30, 30))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("wide.png", png(1_000_000, 1), "with sides of at most 65,535 pixels, got 1000000×1 pixels; make it smaller"),
        ("large.png", declared(8_000, 8_000), "of at most 50,000,000 pixels, got 8000×8000 pixels; make it smaller"),
        ("alpha.png", png(7_000, 7_000, kind=6), "decoded within 280 MB, got 7000×7000 pixels of PNG that take 392 MB"),
        (
            "tile.tif",
            tiff(9, 9, (322, 10_000), (323, 10_000), (324, 8), (325, 9)),
            "9×9 pixels of TIFF that take 1,200",
        ),
        ("many.jpg", b"\xff\xd8" + b"\xff\xe1\0\2" * 60_000, "with a header of at most 100,000 parts, got more"),
        ("many.tif", tiff(9, 9, (273, bytes(400_004)), compression=1), "with a header of at most 100,000 parts"),
    ],
)
def test_what_would_take_too_much_is_refused_by_its_header(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: expected a readable image .*{re.escape(words)}"):
        read_image(tmp_path / name, SIZE)


def test_threads_share_the_memory() -> None:
    memory, most, now, lock = Memory(100), 0, 0, threading.Lock()

    def work(amount: int) -> None:
        nonlocal most, now
        with memory.taken(amount):
            with lock:
                now += min(amount, 100)
                most = max(most, now)
            time.sleep(0.002)
            with lock:
                now -= min(amount, 100)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(work, [30, 45, 1_000, 10, 60, 100] * 8))
    assert 60 <= most <= 100


def test_headers_share_the_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed text in the headers of many files at once: no more are open than there is memory for."""
    picture().save(tmp_path / "x.png")
    most, now, lock = 0, 0, threading.Lock()
    plain = decoding.opened

    @contextmanager
    def counted(source: Path | BinaryIO) -> Iterator[Image.Image]:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with plain(source) as file:
            yield file
        with lock:
            now -= 1

    monkeypatch.setattr(decoding, "opened", counted)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: read_image(tmp_path / "x.png", SIZE), range(48)))
    assert 1 <= most <= decoding.MOST_MEMORY // decoding.HEADER_MEMORY


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
    (folder / name).write_bytes(declared(60_000, 60_000))
    (folder / "large.png").write_bytes(declared(10_000, 10_000))
    picture().save(folder / "good.png")
    predict = ["predict", "--from", network, "--json"]
    for words in (
        [*predict, folder / name],
        [*predict, folder / "large.png"],
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
    (folder / "large.png").unlink()
    ended = Command([*words, "--out", tmp_path / os.fsdecode(b"out-\xff"), "--steps", 2], tmp_path).end()
    assert ended.code == 0, ended
    ended = Command(["predict", "--from", network, folder / good], tmp_path).end()
    assert ended.code == 0, ended


def good_network(folder: Path) -> Path:
    """Weights of a network for colours."""
    save(tiny_classifier(channels=3), folder / "colour.safetensors")
    return folder / "colour.safetensors"
