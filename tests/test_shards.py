"""WebDataset shards and Parquet files: each image once per epoch, in an order that the seed alone decides."""

import io
import json
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.data import ImageSet, load_images, parquet
from heatsmooth.data.shards import ShardPixels
from heatsmooth.models import load, model_hash, save
from heatsmooth.training import batches as training_batches
from heatsmooth.training.batches import Place, SetFeed
from tests.conftest import tiny_classifier

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()
CPU = torch.device("cpu")
SHARDS = (7, 12, 5, 9, 15)
COUNT = sum(SHARDS)


def png(value: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((28, 28), value, dtype=np.uint8)).save(content, "PNG")
    return content.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_tars(folder: Path, prefix: str = "part", *, labels: bool = True) -> str:
    """Shards of unequal length; the i-th image is grey with value i, its label i mod 10."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard, count in enumerate(SHARDS):
        with tarfile.open(folder / f"{prefix}-{shard:03}.tar", "w") as tar:
            add(tar, "readme.txt", b"no image")
            for _ in range(count):
                if labels:
                    add(tar, f"n/{number:05}.cls", str(number % 10).encode())
                add(tar, f"n/{number:05}.side.PNG" if number == 3 else f"n/{number:05}.png", png(number))
                number += 1
    return f"wds:{folder}"


def write_parquet(folder: Path) -> str:
    """The same images in two files, in row groups of 6."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in enumerate((range(20), range(20, COUNT))):
        table = {
            "image": [{"bytes": png(i), "path": None} for i in rows],
            "kind": [i % 10 for i in rows],
        }
        names = datasets.ClassLabel(names=[f"c{i}" for i in range(10)])
        features = datasets.Features({"image": datasets.Image(), "kind": names})
        datasets.Dataset.from_dict(table, features=features).to_parquet(folder / f"{part}.parquet", batch_size=6)
    return f"parquet:{folder}"


def shards_of(images: ImageSet) -> ShardPixels:
    assert isinstance(images.pixels, ShardPixels)
    return images.pixels


@pytest.fixture(params=["wds", "parquet"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> ImageSet:
    made = write_tars(tmp_path) if request.param == "wds" else write_parquet(tmp_path)
    return load_images(made, "train", image_size=28)


def values(batches: Any) -> list[list[int]]:
    return [(255 * batch.images[:, 0, 0, 0]).round().int().tolist() for batch in batches]


def test_images_and_labels_by_index(images: ImageSet) -> None:
    assert images.shape == (1, 28, 28)
    assert images.known_labels().tolist() == [i % 10 for i in range(COUNT)]
    wanted = torch.tensor([47, 3, 3, 20, 0, 19])
    assert images.raw(wanted)[:, 0, 0, 0].tolist() == wanted.tolist()
    assert len(shards_of(images).chunks) > 4
    assert images.fingerprint == load_images(images.name, "test", image_size=28).fingerprint
    assert images.fingerprint != load_images(images.name, image_size=14).fingerprint


def test_every_epoch_has_every_image_once_for_any_number_of_processes(images: ImageSet) -> None:
    shards_of(images).mixed = 12
    feed = SetFeed(images, 12, seed=1, augment=False)
    whole = values(feed.batches(0, 8, Place(CPU)))
    for epoch in (whole[:4], whole[4:]):
        assert sorted(value for batch in epoch for value in batch) == list(range(COUNT))
    assert whole[:4] != whole[4:]
    assert values(feed.batches(3, 6, Place(CPU))) == whole[3:6]
    shares = [values(feed.batches(0, 8, Place(CPU, rank, 3))) for rank in range(3)]
    assert [[*a, *b, *c] for a, b, c in zip(*shares, strict=True)] == whole


def test_images_of_a_batch_come_from_few_chunks_that_are_read_once(images: ImageSet) -> None:
    pixels = shards_of(images)
    pixels.mixed = 12
    order = images.shuffled(0, "order", 0).tolist()
    assert sorted(order) == list(range(COUNT))
    chunk = [pixels.chunk_of(index)[0] for index in order]
    spans = [max(at for at, c in enumerate(chunk) if c == wanted) - chunk.index(wanted) for wanted in set(chunk)]
    assert max(spans) < 12 + max(pixels.chunks)
    assert len({tuple(images.shuffled(0, "order", epoch).tolist()) for epoch in range(4)}) == 4


def test_row_groups_are_read_once_and_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load_images(write_parquet(tmp_path), image_size=28)
    pixels = images.pixels
    assert isinstance(pixels, parquet.ParquetPixels)
    one = max(group.size for group in pixels.groups)
    monkeypatch.setattr(parquet, "CACHED", 4 * one)
    monkeypatch.setattr(training_batches, "READERS", 1)  # of several, a slow one may need a group that was let go
    pixels.mixed = 12
    reads: list[int] = []
    read = parquet._RowGroup.read

    def counted(self: Any, column: str) -> Any:
        reads.append(self.first)
        return read(self, column)

    monkeypatch.setattr(parquet._RowGroup, "read", counted)
    list(SetFeed(images, 6, seed=0).batches(0, 8, Place(CPU)))
    assert len(reads) == len(pixels.groups)
    assert sum(pixels.groups[held].size for held in pixels._held) <= 4 * one
    monkeypatch.setattr(parquet, "LARGEST_GROUP", one - 1)
    with pytest.raises(InputError, match=r"expected row groups of at most 0 MB, .*smaller row_group_size"):
        load_images(f"parquet:{tmp_path}")


def test_patterns_and_splits(tmp_path: Path) -> None:
    write_tars(tmp_path, "train")
    write_tars(tmp_path, "val", labels=False)
    part = load_images(f"wds:{tmp_path}/train-{{001..003}}.tar", image_size=28)
    assert len(part) == sum(SHARDS[1:4])
    assert part.raw(torch.tensor([0]))[0, 0, 0, 0] == SHARDS[0]
    name = f"wds:{tmp_path}/{{split}}-*.tar"
    train, test = (load_images(name, split, image_size=28) for split in ("train", "test"))
    assert (len(train), len(test)) == (COUNT, COUNT)
    assert train.labels is not None
    assert test.labels is None


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a folder of \.tar files, or their paths"):
        load_images(f"wds:{tmp_path}/none-*.tar")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.tar").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(InputError, match="expected an uncompressed tar file"):
        load_images(f"wds:{tmp_path}/bad")
    with tarfile.open(tmp_path / "bad/a.tar", "w") as tar:
        add(tar, "1.png", png(1))
        add(tar, "1.cls", b"4")
        add(tar, "2.png", b"no image")
    with pytest.raises(InputError, match=r"a \.cls file beside every image or beside none, got 1 images without"):
        load_images(f"wds:{tmp_path}/bad")
    with tarfile.open(tmp_path / "bad/a.tar", "w") as tar:
        add(tar, "1.png", png(1))
        add(tar, "2.png", b"no image")
    torn = load_images(f"wds:{tmp_path}/bad")
    with pytest.raises(InputError, match=r"a\.tar, image 1: expected a readable image"):
        torn.images(torch.arange(2))
    assert torn.readable().indices.tolist() == [0]
    (tmp_path / "bad/a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="expected Parquet files"):
        load_images(f"parquet:{tmp_path}/bad")
    datasets.Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "bad/a.parquet")
    with pytest.raises(InputError, match=r"one column of images, got \['text'\]"):
        load_images(f"parquet:{tmp_path}/bad")


def test_plain_bytes_are_images_too(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.table({"jpg": [png(5), png(6)], "text": ["a", "b"]}), tmp_path / "a.parquet")
    images = load_images(f"parquet:{tmp_path}", image_size=28)
    assert images.labels is None
    assert images.raw(torch.arange(2))[:, 0, 0, 0].tolist() == [5, 6]


def test_smooth_and_distill_and_train_from_shards_and_continue(
    images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after the second step and repeated, a run ends with the weights of an undisturbed one."""
    save(tiny_classifier(), tmp_path / "tiny.safetensors")
    how = ["--data", images.name, "--batch-size", "8", "--image-size", "28", "--device", "cpu", "--quiet", "--json"]
    smooth = [
        "smooth",
        *how,
        "--from",
        str(tmp_path / "tiny.safetensors"),
        "--sigma",
        "0.25",
        "--checkpoint-seconds",
        "0",
    ]
    assert run([*smooth, "--out", str(tmp_path / "whole")]) == 0
    assert json.loads(capsys.readouterr().out)["test_images"] == COUNT
    raw, read = ImageSet.raw, [0]

    def interrupted(self: ImageSet, positions: torch.Tensor) -> torch.Tensor:
        read[0] += len(positions) == 8
        if read[0] == 6:
            raise KeyboardInterrupt
        return raw(self, positions)

    with monkeypatch.context() as patched:
        patched.setattr(ImageSet, "raw", interrupted)
        assert run([*smooth, "--out", str(tmp_path / "twice")]) == 130
    assert run([*smooth, "--out", str(tmp_path / "twice")]) == 0
    assert model_hash(load(tmp_path / "twice")) == model_hash(load(tmp_path / "whole"))
    teacher = ["--from", str(tmp_path / "tiny.safetensors"), "--student", "lipschitz-tiny"]
    assert run(["distill", *how, *teacher, "--epochs", "1", "--out", str(tmp_path / "student")]) == 0
    train = ["train", *(word for word in how if word not in ("--image-size", "28")), "--model", "tiny"]
    assert run([*train, "--epochs", "1", "--out", str(tmp_path / "trained")]) == 0


def test_a_student_from_a_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parquet through ``datasets``, one image after another."""
    write_parquet(tmp_path / "data/train")
    save(tiny_classifier(), tmp_path / "tiny.safetensors")
    words = ["distill", "--data", f"hf:{tmp_path / 'data'}", "--stream", "--limit-train", "32", "--batch-size", "8"]
    words += ["--from", str(tmp_path / "tiny.safetensors"), "--student", "lipschitz-tiny", "--epochs", "1"]
    words += ["--image-size", "28", "--data-root", str(tmp_path / "cache"), "--device", "cpu", "--json", "--quiet"]
    assert run([*words, "--out", str(tmp_path / "student")]) == 0
    assert "accuracy" not in json.loads(capsys.readouterr().out)


SCRIPT = """
import json, sys
from pathlib import Path
from accelerate import Accelerator
from heatsmooth.data import load_images
from heatsmooth.training.batches import Place, SetFeed

mine, read = Accelerator(cpu=True), []
place = Place(mine.device, mine.process_index, mine.num_processes)
for name in sys.argv[2:]:
    images = load_images(name, "train", image_size=28)
    sources = images.pixels.sources
    images.pixels.sources = lambda indices: read.extend(indices) or sources(indices)
    for batch in SetFeed(images, 12, seed=0).batches(0, 4, place):
        assert len(batch.images) == 6
Path(sys.argv[1], f"{place.rank}.json").write_text(json.dumps(read))
mine.wait_for_everyone()
mine.end_training()
"""


def test_two_processes_of_accelerate_read_each_image_once(tmp_path: Path) -> None:
    names = [write_tars(tmp_path / "tar"), write_parquet(tmp_path / "parquet")]
    (tmp_path / "read.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = f"-m accelerate.commands.launch --multi_gpu --num_processes 2 --main_process_port {port}"
    launch += " --num_machines 1 --mixed_precision no --dynamo_backend no"
    words = [sys.executable, *launch.split(), str(tmp_path / "read.py"), str(tmp_path), *names]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shares = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(share) for share in shares] == [COUNT, COUNT]
    assert sorted(shares[0] + shares[1]) == sorted(2 * list(range(COUNT)))


def test_files_of_strangers_take_no_memory_and_open_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "LARGEST_GROUP", 100_000)
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array([png(1) + bytes(1000)]))
    writer.write_table(pa.table({"image": repeated.cast(pa.binary())}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    with pytest.raises(InputError, match="expected row groups of at most"):
        load_images(f"parquet:{tmp_path}/bomb.parquet").images(torch.tensor([1999]))
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    for cell in (None, {"bytes": None, "path": None}, {"bytes": None, "path": "/dev/zero"}):
        writer.write_table(pa.table({"image": pa.array([cell], kind)}), tmp_path / "path.parquet")
        with pytest.raises(InputError, match="expected an image or the path of one"):
            load_images(f"parquet:{tmp_path}/path.parquet")
    member = tarfile.TarInfo("a.png")
    member.size = -512
    (tmp_path / "back.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(InputError, match=r"back\.tar: expected"):
        load_images(f"wds:{tmp_path}/back.tar")
