"""Images that are not square, and grey ones, from training to what is served: no side and no channel is made up."""

import importlib
import io
import json
import warnings
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from heatsmooth.commands.inputs import Network
from heatsmooth.commands.line import run
from heatsmooth.commands.serve import Serve
from heatsmooth.data import load_images
from heatsmooth.data.folder import read_image
from heatsmooth.models import NetworkSpec, save
from heatsmooth.models import load as load_model
from heatsmooth.models.checkpoint import load_state, serialise
from tests.conftest import tiny_classifier

SHARED = "--quiet --device cpu"
GREY = """
import torch
from torch import nn

def grey():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))
"""


def images(shape: tuple[int, ...], name: str = "i.npz") -> None:
    chance = np.random.default_rng(0)
    labels = np.arange(shape[0]) % 4
    np.savez(name, images=chance.integers(0, 256, shape, dtype=np.uint8), labels=labels)


def test_a_network_of_images_that_are_not_square_keeps_both_sides(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images((40, 20, 30, 3))
    assert run(f"train --data npz:i.npz --model small --batch-size 20 --epochs 1 --out t {SHARED}".split()) == 0
    assert run(f"smooth --data npz:i.npz --from t --sigma 0.25 --batch-size 20 --out s {SHARED}".split()) == 0
    for made in ("t", "s"):
        assert load_model(made).spec.size == (20, 30)
        assert load_state(Path(made, "model.safetensors"))[1]["size"] == [20, 30]
    certify = f"certify --data npz:i.npz --from s --sigma 0.25 --n 50 --n0 10 --out c {SHARED}"
    assert run(certify.split()) == 0
    assert run(["calibrate", "--from", "s", "--certificates", "c", "--epsilon", "0.4", "--out", "k"]) == 0
    chance = np.random.default_rng(1)
    pixels = chance.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("a.png")
    capsys.readouterr()
    assert run(["predict", "--from", "k", "--json", "a.png"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    whole = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    expected = load_model("k")(whole).softmax(1)
    assert row["probability"] == pytest.approx(float(expected.detach().max()), abs=1e-5)
    assert run(["check", "--from", "k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["input"] == [3, 20, 30]
    Path("photos/x").mkdir(parents=True)
    Image.fromarray(chance.integers(0, 256, (50, 44, 3), dtype=np.uint8)).save("photos/x/a.png")
    folder = f"certify --data imagefolder:photos --from s --sigma 0.25 --n 50 --n0 10 --out f {SHARED}"
    assert run(folder.split()) == 0
    assert json.loads(Path("f/run.json").read_text())["settings"]["data"]["shape"] == [3, 20, 30]
    assert run(["export", "--from", "k", "--sigma", "0.25", "--out", "m.onnx", "--quiet"]) == 0
    (given,) = onnxruntime.InferenceSession("m.onnx").get_inputs()
    assert given.shape[1:] == [3, 20, 30]


def test_an_image_that_is_not_square_is_served_as_it_is(in_tmp: Path) -> None:
    images((40, 20, 30, 3))
    assert run(f"train --data npz:i.npz --model small --batch-size 20 --epochs 1 --out t {SHARED}".split()) == 0
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    server = Serve(network=Network(source=Path("t")), sigma=0.25, port=0, n=200, device="cpu").open()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        connection = HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        connection.request("POST", "/certify", file.getvalue())
        first = json.loads(connection.getresponse().readline())
        connection.close()
    finally:
        server.close()
    whole = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    expected = load_model("t")(whole).softmax(1)[0].detach()
    assert first["top"][0] == [int(expected.argmax()), pytest.approx(float(expected.max()), abs=1e-5)]


def test_crops_are_as_high_and_wide_as_asked(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:60, 0:90]
    Image.fromarray(np.stack([rows * 4, columns * 2, rows * 0], -1).astype(np.uint8)).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", (20, 30)).astype(float)
    assert found.shape == (3, 20, 30)
    steps = found[0, 1:] - found[0, :-1], found[1, :, 1:] - found[1, :, :-1]
    scale = 60 / (20 * 8 / 7)
    assert steps[0].mean() == pytest.approx(4 * scale, rel=0.05)
    assert steps[1].mean() == pytest.approx(2 * scale, rel=0.05)
    assert found[0].mean() == pytest.approx(rows.mean() * 4, abs=6)
    assert found[1].mean() == pytest.approx(columns.mean() * 2, abs=6)
    assert np.array_equal(read_image(tmp_path / "a.png", (24, 24)), read_image(tmp_path / "a.png", 24))
    square, wide = (load_images(f"imagefolder:{tmp_path}", image_size=size) for size in (20, (20, 30)))
    assert (square.size, wide.size) == (20, (20, 30))
    assert square.fingerprint != wide.fingerprint


@pytest.mark.parametrize("size", [28, (28, 20), None])
def test_published_files_that_say_one_side_are_read(tmp_path: Path, size: int | tuple[int, int] | None) -> None:
    model = tiny_classifier()
    model.spec = NetworkSpec("small", 10, 1, (0.5,), (0.25,), size)
    save(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path)
    assert again.spec == model.spec
    assert load_state(tmp_path / "model.safetensors")[1]["size"] == (list(size) if isinstance(size, tuple) else size)


@pytest.mark.parametrize("size", [0, -3, [28], [28, 28, 28], [28, 0], "28", True])
def test_sizes_that_no_image_has_are_refused(tmp_path: Path, size: object) -> None:
    model = tiny_classifier()
    facts = model.spec.describe() | {"size": size}
    (tmp_path / "model.safetensors").write_bytes(serialise(model.network.state_dict(), facts))
    with pytest.raises(ValueError, match="expected the metadata that heatsmooth writes, got images of size"):
        load_model(tmp_path)


@pytest.mark.parametrize("source", ["callable", "weights", "program"])
def test_grey_networks_of_a_user_stay_grey(
    in_tmp: Path, source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "shades.py").write_text(GREY)
    monkeypatch.syspath_prepend(in_tmp)
    network = importlib.import_module("shades").grey()
    torch.save(network.state_dict(), "w.pt")
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated, and still in use
        torch.jit.save(torch.jit.script(network.eval()), "p.pt")
    named = {
        "callable": ["--from", "shades:grey"],
        "weights": ["--from", "w.pt", "--model", "shades:grey"],
        "program": ["--from", "p.pt", "--model", "program"],
    }[source]
    images((40, 20, 24))
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (20, 24), dtype=np.uint8)).save("a.png")
    assert run(["predict", *named, "a.png"]) == 0
    if source == "program":
        return
    assert run([*f"certify --data npz:i.npz --sigma 0.25 --n 50 --n0 10 --out c {SHARED}".split(), *named]) == 0
    assert run(["calibrate", *named, "--certificates", "c", "--epsilon", "0.4", "--out", "k"]) == 0
    spec = load_model("k", model="shades:grey").spec
    assert (spec.channels, spec.size) == (1, (20, 24))
    calibrated = ["--from", "k", "--model", "shades:grey"]
    assert run(["predict", *calibrated, "a.png"]) == 0
    if source == "weights":
        return
    assert run(["export", *calibrated, "--sigma", "0.25", "--out", "n.onnx", "--quiet"]) == 0
    (given,) = onnxruntime.InferenceSession("n.onnx").get_inputs()
    assert given.shape[1:] == [1, 20, 24]
