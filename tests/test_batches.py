"""What each process is given: its rows of every batch, made on its device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from heatsmooth import InputError
from heatsmooth.commands import training
from heatsmooth.commands.inputs import ImageFiles, Network
from heatsmooth.commands.smooth import Smooth
from heatsmooth.data import ImageSet, as_unit_interval, shifted_and_flipped
from heatsmooth.models import device_of, save
from heatsmooth.noise import Draw
from heatsmooth.training import batches, methods
from heatsmooth.training.batches import LoaderFeed, Place, SetFeed
from tests.conftest import tiny_classifier

CPU = torch.device("cpu")


def loader(rows: int = 6, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(rows, 1, 4, 4, generator=generator), torch.zeros(rows)) for _ in range(count)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_the_batches_of_a_loader(world: int) -> None:
    feed = LoaderFeed(loader(), seed=5)
    alone = list(feed.batches(1, 6, Place(CPU)))
    shared = [list(feed.batches(1, 6, Place(CPU, rank, world))) for rank in range(world)]
    for whole, *parts in zip(alone, *shared, strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
        noise = [part.draw.normal(part.images.shape) for part in parts]
        assert torch.equal(torch.cat(noise), whole.draw.normal(whole.images.shape))
        assert {part.epoch for part in parts} == {whole.epoch}


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InputError, match="4 processes can share in equal parts, got one of 6 images; choose"):
        next(LoaderFeed(loader(), seed=5).batches(0, 3, Place(CPU, 0, 4)))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_augmented_images_are_what_they_were_when_the_cpu_made_them(kind: torch.dtype) -> None:
    """Shifted and mirrored as stored, then brought to [0, 1]: the same bits, in the same layout."""
    stored = torch.randint(0, 256, (12, 3, 16, 24), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    pixels = stored if kind == torch.uint8 else stored.to(torch.float32) / 255
    feed = SetFeed(ImageSet.of("random", pixels, None), 4, seed=3)
    for step, batch in enumerate(feed.batches(0, 3, Place(CPU))):
        drawn = shifted_and_flipped(feed.images.raw(feed._positions(step, Place(CPU))), Draw(3, "augment", step))
        expected = as_unit_interval(drawn)
        assert torch.equal(batch.images, expected)
        assert batch.images.stride() == expected.stride()


class Recorded(Draw):
    """Random numbers of the CPU, whichever device is asked for: a meta device has none."""

    def __init__(self, *parts: int | str, device: torch.device | str = "cpu", rank: int = 0, world: int = 1) -> None:
        super().__init__(*parts, rank=rank, world=world)


def test_images_are_augmented_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's ``meta`` device stands for a GPU: it knows where a computation would happen."""
    where: list[str] = []

    def watched(pixels: Tensor, draw: Draw, *, shifts: bool) -> Tensor:
        where.append(pixels.device.type)
        assert draw.device.type == "cpu"
        return shifted_and_flipped(pixels, draw, shifts=shifts)

    monkeypatch.setattr(batches, "shifted_and_flipped", watched)
    monkeypatch.setattr(batches, "Draw", Recorded)
    pixels = torch.zeros(8, 3, 16, 16, dtype=torch.uint8)
    (batch,) = SetFeed(ImageSet.of("black", pixels, None), 8, seed=0).batches(0, 1, Place(torch.device("meta")))
    assert where == ["meta"]
    assert (batch.images.device.type, batch.images.dtype) == ("meta", torch.float32)


def test_the_teacher_is_measured_where_the_student_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Again ``meta`` stands for a GPU; what would need its numbers is left out."""
    measured: list[str] = []

    def noted(network: Any, *_: Any, **__: Any) -> tuple[float, float]:
        measured.append(device_of(network).type)
        return 0.5, 0.5

    gpu = SimpleNamespace(
        device=torch.device("meta"), is_main_process=True, num_processes=1, wait_for_everyone=lambda: None
    )
    monkeypatch.setattr(training, "accelerator", lambda device: gpu)
    monkeypatch.setattr(training, "_is_done", lambda run, processes: False)
    monkeypatch.setattr(training, "accuracies", noted)
    monkeypatch.setattr(methods, "smoothed", lambda *_: tiny_classifier().to("meta"))
    monkeypatch.setattr(training, "save", lambda *_: None)
    monkeypatch.setattr(training, "model_hash", lambda _: "hash")
    save(tiny_classifier(), tmp_path / "teacher.safetensors")
    network, files = Network(source=tmp_path / "teacher.safetensors"), ImageFiles(data="fashion-mini")
    Smooth(network=network, images=files, sigma=0.25, out=tmp_path / "run", limit_train=32).run()
    assert measured == ["meta", "meta"]
