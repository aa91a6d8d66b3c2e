"""Hugging Face ``datasets`` from the disk: nothing is fetched."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heatsmooth as hs
from heatsmooth import InputError
from heatsmooth.data import hub as data_hub
from heatsmooth.data import load_images, open_stream
from heatsmooth.models import model_hash
from heatsmooth.training.batches import Place, StreamFeed
from tests.conftest import tiny_classifier

datasets = pytest.importorskip("datasets")
CPU = torch.device("cpu")


def png(value: int, size: int = 28, mode: str = "L") -> Image.Image:
    return Image.fromarray(np.full((size, size), value, dtype=np.uint8)).convert(mode)


def encoded(count: int, *, labels: bool = True, broken: tuple[int, ...] = ()) -> Any:
    """A data set of grey images, the i-th of value i."""
    cells = []
    for i in range(count):
        content = io.BytesIO()
        png(i).save(content, "PNG")
        cells.append({"bytes": b"no image" if i in broken else content.getvalue(), "path": f"{i}.png"})
    columns: dict[str, Any] = {"picture": cells}
    kinds: dict[str, Any] = {"picture": datasets.Image()}
    if labels:
        columns["kind"], kinds["kind"] = [i % 3 for i in range(count)], datasets.ClassLabel(names=["a", "b", "c"])
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def test_saved_to_disk_with_splits(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": encoded(9), "validation": encoded(6)}).save_to_disk(tmp_path)
    name = f"hf:{tmp_path}"
    test, train = load_images(name, "test", image_size=28), load_images(name, "train", image_size=28)
    assert (len(test), len(train)) == (6, 9)
    assert (test.name, train.name) == (f"{name}:validation", f"{name}:train")
    assert test.shape == (1, 28, 28)
    assert test.known_labels().tolist() == [0, 1, 2, 0, 1, 2]
    assert test.class_names == ("a", "b", "c")
    assert test.raw(torch.tensor([4, 1]))[:, 0, 0, 0].tolist() == [4, 1]
    assert load_images(f"{name}:train", "test", image_size=28).fingerprint == train.fingerprint != test.fingerprint
    assert load_images(f"{name}:train:kind", image_size=14).shape == (1, 14, 14)
    with pytest.raises(InputError, match="a split among train, validation, got 'x'"):
        load_images(f"{name}:x")
    with pytest.raises(InputError, match="labels in one of"):
        load_images(f"{name}:train:nothing")


def test_a_directory_of_files(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / "files" / kind).mkdir(parents=True)
        for i in range(2):
            png(50, 40, "RGB").save(tmp_path / "files" / kind / f"{i}.png")
    found = load_images(f"hf:{tmp_path / 'files'}", root=tmp_path / "cache", image_size=16)
    assert found.shape == (3, 16, 16)
    assert found.known_labels().tolist() == [0, 0, 1, 1]
    (tmp_path / "table").mkdir()
    encoded(4, labels=False).to_parquet(tmp_path / "table/data.parquet")
    assert load_images(f"hf:{tmp_path / 'table'}", root=tmp_path / "cache", image_size=28).labels is None


def test_unreadable_images_are_listed_and_skipped_only_if_asked(tmp_path: Path) -> None:
    encoded(8, broken=(2, 5)).save_to_disk(tmp_path)
    found = load_images(f"hf:{tmp_path}", image_size=28)
    with pytest.raises(
        InputError, match=r"row 2 \(2\.png\), row 5 \(5\.png\): expected 2 readable images.*`skip_broken`"
    ):
        found.images(torch.arange(8))
    kept = found.readable()
    assert kept.indices.tolist() == [0, 1, 3, 4, 6, 7]
    assert kept.describe()["left_out"] == ["row 2 (2.png)", "row 5 (5.png)"]
    assert len(kept.images(torch.arange(6))) == 6


def test_a_stream_is_shuffled_the_same_each_time_and_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_hub, "BUFFER", 10)
    encoded(50).save_to_disk(tmp_path)
    stream = open_stream(f"hf:{tmp_path}", 28, count=48)
    feed = StreamFeed(stream, 16, seed=1, augment=False)
    assert feed.steps_per_epoch == 3

    def values(start: int, stop: int, rank: int = 0, world: int = 1) -> list[list[int]]:
        batches = feed.batches(start, stop, Place(CPU, rank, world))
        return [(255 * batch.images[:, 0, 0, 0]).round().int().tolist() for batch in batches]

    whole = values(0, 6)
    assert [len(batch) for batch in whole] == [16] * 6
    for epoch in (whole[:3], whole[3:]):
        assert len({value for batch in epoch for value in batch}) == 48
    assert whole[:3] != whole[3:]
    assert values(2, 5) == whole[2:5]
    assert [a + b for a, b in zip(values(0, 3, 0, 2), values(0, 3, 1, 2), strict=True)] == whole[:3]
    with pytest.raises(InputError, match="got fewer"):
        list(StreamFeed(replace(stream, count=64), 64, 0).batches(0, 1, Place(CPU)))


def test_smoothing_from_a_stream(tmp_path: Path) -> None:
    encoded(32, labels=False).save_to_disk(tmp_path)
    model, stream = tiny_classifier().eval(), open_stream(f"hf:{tmp_path}", 28, count=32)
    results = [hs.smooth(model, stream, sigma=0.25, batch_size=16, device="cpu") for _ in range(2)]
    assert model_hash(results[0]) == model_hash(results[1]) != model_hash(model)


def test_what_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="check the name"):
        load_images(f"hf:{tmp_path / 'none'}")
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path)
    with pytest.raises(InputError, match=r"one column of images, got \['text'\]"):
        load_images(f"hf:{tmp_path}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"heatsmooth\[hf\]"):
        load_images(f"hf:{tmp_path}")
