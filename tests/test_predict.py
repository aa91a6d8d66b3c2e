"""``predict``: each file for itself, a few at a time, and no radius without finite logits."""

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from heatsmooth import InputError, predicting
from heatsmooth.calibration import Calibration
from heatsmooth.certification.sampling import CHUNK
from heatsmooth.certification.settings import Settings
from heatsmooth.commands.inputs import Images, Network
from heatsmooth.commands.line import run
from heatsmooth.commands.one_pass import OnePass
from heatsmooth.models import model_hash, save
from heatsmooth.predicting import predict
from heatsmooth.results.predictions import PredictionSettings
from heatsmooth.results.schema import to_json
from heatsmooth.serving import ServedNetwork
from heatsmooth.serving.events import Seen
from heatsmooth.serving.studies import certifying
from tests.conftest import tiny_classifier

NETWORKS = """
import torch
from torch import nn

class Pooled(nn.Sequential):
    "Takes images of any size."
    def __init__(self, *norm):
        torch.manual_seed(0)
        super().__init__(nn.Conv2d(3, 8, 3), *norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))

class Overflowing(Pooled):
    "A logit of -inf for images whose first pixel is white."
    def forward(self, x):
        beyond = (x[:, 0, 0, :1] == 1) & (torch.arange(4) == 3)
        return torch.where(beyond, -torch.inf, super().forward(x))

def dependent():
    return Pooled(nn.BatchNorm2d(8, track_running_stats=False))
"""


@pytest.fixture
def networks(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of networks, named after the test's directory."""
    name = f"predicting_{in_tmp.name}"
    (in_tmp / f"{name}.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(in_tmp)
    return name


def pictures(folder: Path, sizes: list[int]) -> list[Path]:
    """Random square PNG files of these sides, their first pixel black."""
    files = []
    for number, side in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=np.uint8)
        pixels[0, 0] = 0
        files.append(folder / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
    return files


def test_networks_that_mix_the_images_of_a_batch_are_refused(
    networks: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = pictures(in_tmp, [16])
    assert run(["predict", "--from", f"{networks}:dependent", str(file)]) == 2
    said = capsys.readouterr().err
    assert "expected logits of an image that do not depend on its batch" in said
    assert said.count("\n") == 1
    assert run(["predict", "--from", f"{networks}:Pooled", str(file)]) == 0


def test_a_file_is_told_the_same_whatever_is_beside_it(networks: str, in_tmp: Path) -> None:
    """Also for a network that takes any size: then each file is cropped to its own."""
    files = pictures(in_tmp, [16, 20, 20, 12, 16])
    asked = PredictionSettings(sigma=0.25, noise_samples=60, seed=3, alpha=0.3)
    network = Network(source=Path(f"{networks}:Pooled")).load()
    together = [to_json(row) for row in predict(network, [*files, files[1]], asked).predictions]
    assert [row["image"] for row in together] == [str(file) for file in [*files, files[1]]]
    assert together[-1]["average_class"] == together[1]["average_class"]
    for file, among_others in zip(files, together, strict=False):
        alone = to_json(predict(network, [file], asked).predictions[0])
        assert alone.pop("probability") == pytest.approx(among_others.pop("probability"), rel=1e-5)
        assert alone.pop("l_bound") == pytest.approx(among_others.pop("l_bound"), abs=1.01e-4)
        assert alone == among_others


def test_memory_does_not_grow_with_the_number_of_files(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tiny_classifier(), in_tmp / "model.safetensors")
    alive, most, largest = weakref.WeakSet[Any](), 0, 0

    class Pixels(np.ndarray):
        """An image that can be counted."""

        __hash__ = object.__hash__  # type: ignore[assignment]
        __eq__ = object.__eq__

    def read(*_: object, **__: object) -> np.ndarray:
        nonlocal most
        image = np.zeros((1, 28, 28), dtype=np.uint8).view(Pixels)
        alive.add(image)
        most = max(most, len(alive))
        return image

    def count(module: nn.Module, given: tuple[Tensor]) -> None:
        nonlocal largest
        largest = max(largest, len(given[0]))

    monkeypatch.setattr(predicting, "read_image", read)
    monkeypatch.setattr(predicting, "usual_size", lambda _: 28)
    with torch.nn.modules.module.register_module_forward_pre_hook(count):
        files = [str(i) for i in range(4 * CHUNK + 1)]
        rows = predict(Network(source=in_tmp).load(), files, PredictionSettings(sigma=0.25)).predictions
    assert len(rows) == 4 * CHUNK + 1
    assert largest == CHUNK
    assert most <= 2 * CHUNK


def calibrated(networks: str, kind: str, folder: Path) -> tuple[list[Path], Network]:
    """Three files, of which the second has a white pixel, and a network with a calibration beside it."""
    files = pictures(folder, [16, 16, 16])
    with Image.open(files[1]) as image:
        image.putpixel((0, 0), (255, 255, 255))
        image.save(files[1])
    network = Network(source=folder / kind, model=f"{networks}:{kind}")
    (folder / kind).mkdir()
    save(Network(source=Path(f"{networks}:{kind}")).load(), folder / kind / "model.safetensors")
    made = Calibration(((0.9, 0.2), (0.5, 0.4)), 4, 0.05, 0.001, 0.25, 100, 200, model_hash=model_hash(network.load()))
    (folder / kind / "calibration.json").write_text(json.dumps(made.to_json()))
    return files, network


def refuse_constant(name: str) -> None:
    pytest.fail(f"{name} is not JSON")


def test_logits_that_are_not_finite_give_no_radius(
    networks: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, network = calibrated(networks, "Overflowing", in_tmp)
    words = ["predict", "--from", str(network.source), "--model", str(network.model), "--sigma", "0.25"]
    words += ["--noise-samples", "50", "--device", "cpu", *(file.name for file in files)]
    assert run([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)["predictions"]
    assert [row["l_bound"] > 0 for row in rows] == [True, False, True]
    assert [row["one_pass_radius"] for row in rows] == [0.2, 0.0, 0.2]
    assert (rows[1]["l_bound"], rows[1]["class"], rows[1]["probability"]) == (0.0, None, None)
    assert rows[1]["average_class"] is None
    assert run(words) == 0
    assert "–" in capsys.readouterr().out
    assert run([*words[:-3], files[1].name, "--json"]) == 0, "also where it is the first"
    assert json.loads(capsys.readouterr().out)["predictions"][0] | {"seed": 0} == rows[1] | {"seed": 0}


def test_one_pass_radii_need_finite_logits(networks: str, in_tmp: Path) -> None:
    files, network = calibrated(networks, "Overflowing", in_tmp)
    images = np.stack([np.asarray(Image.open(file)) for file in files])
    np.savez(in_tmp / "i.npz", images=images, labels=np.array([0, 0, 0]))
    images_file = Images(data=f"npz:{in_tmp}/i.npz")
    OnePass(network=network, images=images_file, out=in_tmp / "out", device="cpu").run()
    rows = [json.loads(line) for line in (in_tmp / "out/one_pass.jsonl").read_text().splitlines()]
    assert [(row["radius"], row["abstain"]) for row in rows] == [(0.2, False), (0.0, True), (0.2, False)]
    assert rows[1]["class"] is None
    _, dependent = calibrated(networks, "dependent", in_tmp)
    with pytest.raises(InputError, match="expected logits of an image that do not depend on its batch"):
        OnePass(network=dependent, images=images_file, out=in_tmp / "other", device="cpu").run()


def test_serve_tells_of_logits_that_are_not_finite_instead_of_a_radius(networks: str, in_tmp: Path) -> None:
    model = Network(source=Path(f"{networks}:Overflowing")).load().eval()
    subject = ServedNetwork(model, Settings(0.25, n=100, adaptive=True), seed=0, shape=(3, 16, 16))
    seen = next(certifying(subject, torch.zeros(3, 16, 16), 0))
    assert isinstance(seen, Seen)
    assert seen.l_bound is not None
    assert seen.l_bound.radius > 0
    with pytest.raises(InputError, match="expected finite logits, got NaN or infinity"):
        next(certifying(subject, torch.ones(3, 16, 16), 0))
