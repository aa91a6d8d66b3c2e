"""The exported file in onnxruntime: the network's probabilities, and radii that never exceed the library's."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import heatsmooth as hs
from heatsmooth.calibration import Calibration
from heatsmooth.commands.line import run
from heatsmooth.exporting import OnePassNetwork, export_onnx
from heatsmooth.exporting import file as export
from heatsmooth.learnt_radius import doubt_of
from heatsmooth.models import load, model_hash, save
from tests.conftest import Linear, tiny_classifier

STEPS = ((0.6, 0.05), (0.3, 0.11), (0.01, 0.3), (1e-12, 0.45))


def calibration(model: nn.Module, classes: int = 5, steps: tuple[tuple[float, float], ...] = STEPS) -> Calibration:
    return Calibration(steps, classes, 0.05, 0.001, 0.25, 100, 200, model_hash=model_hash(model))


def run_file(path: Path, images: Tensor) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))


def metadata(path: Path) -> dict[str, str]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(session.get_modelmeta().custom_metadata_map)


@pytest.mark.parametrize("runner_up", [0.0, 0.2])
def test_the_file_gives_what_the_network_gives_for_any_batch(linear: Linear, tmp_path: Path, runner_up: float) -> None:
    images, made = torch.rand(200, 1, 4, 4), replace(calibration(linear), runner_up=runner_up)
    linear.train()
    done = export_onnx(linear, tmp_path / "new" / "m.onnx", images, sigma=0.25, calibration=made)
    assert linear.training
    assert done.outputs == ("probabilities", "class", "l_bound", "calibrated_radius")
    assert done.images == 400
    assert done.largest_difference <= 1e-5
    for count in (1, 2, 3, 64, 200):
        found = run_file(done.path, images[:count])
        expected = linear(images[:count]).softmax(1).detach().numpy()
        assert np.abs(found["probabilities"] - expected).max() <= 1e-5
        assert (found["class"] == found["probabilities"].argmax(1)).all()
        exact = hs.l_bound(found["probabilities"], sigma=0.25)
        assert (found["l_bound"] <= exact).all()
        np.testing.assert_allclose(found["l_bound"], exact, rtol=3e-7)
        radius = made.radius(found["probabilities"])
        assert (found["calibrated_radius"] <= radius).all()
        np.testing.assert_allclose(found["calibrated_radius"], radius, rtol=3e-7)
    assert len(set(found["calibrated_radius"].tolist())) > 2


def test_the_file_says_what_each_output_speaks_of(linear: Linear, tmp_path: Path) -> None:
    made = calibration(linear)
    export_onnx(linear, str(tmp_path / "m.onnx"), torch.rand(1, 1, 4, 4), sigma=0.25, calibration=made)
    facts = metadata(tmp_path / "m.onnx")
    assert facts["l_bound.subject"] == "network"
    assert facts["l_bound.basis"] == "assumes an exact average"
    assert facts["calibrated_radius.subject"] == "average"
    assert facts["calibrated_radius.basis"] == str(made.basis)
    assert (float(facts["sigma"]), float(facts["epsilon"]), float(facts["alpha"])) == (0.25, 0.05, 0.001)
    assert facts["model_hash"] == model_hash(linear)
    assert facts["heatsmooth_version"] == hs.__version__
    assert "(batch, 1, 4, 4), float32 in [0, 1]" in facts["images"]


@given(st.lists(st.floats(-60, 60, width=32), min_size=5, max_size=5), st.sampled_from([0.0, 0.7, -2.5]))
def test_radii_follow_the_library_and_never_exceed_it(logits: list[float], runner_up: float) -> None:
    linear = Linear(torch.zeros(5, 16))
    made = replace(calibration(linear), runner_up=runner_up)
    probabilities = torch.tensor([logits]).softmax(1)
    chosen, bound, radius = OnePassNetwork(linear, sigma=0.25, calibration=made).conclusions(probabilities)
    exact = hs.l_bound(probabilities, sigma=0.25)[0]
    assert int(chosen) == int(probabilities.argmax())
    assert exact * (1 - 3e-7) <= float(bound) <= exact
    known = float(made.radius(probabilities)[0])
    assert known * (1 - 3e-7) <= float(radius) <= known


def test_a_doubt_at_a_step_is_never_given_the_larger_radius() -> None:
    """The order of a sum could put a doubt on the other side of a level it equals."""
    linear = Linear(torch.zeros(2, 16))
    probabilities = torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]])
    at_step = calibration(linear, 2, ((0.25, 0.1), (1e-12, 0.4)))
    assert at_step.radius(probabilities).tolist() == [0.1, 0.0, 0.4]
    radius = OnePassNetwork(linear, sigma=0.25, calibration=at_step).conclusions(probabilities)[2]
    np.testing.assert_allclose(radius, [0.0, 0.0, 0.4], rtol=3e-7)
    empty = OnePassNetwork(linear, sigma=0.25, calibration=calibration(linear, 2, ()))
    assert empty.conclusions(probabilities)[2].tolist() == [0.0, 0.0, 0.0]


class Answers(nn.Module):
    """A network whose logits are the first values of the image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return 60 * x.flatten(1)[:, : self.classes]


@pytest.mark.parametrize("runner_up", [0.8, -2.5])
def test_small_doubts_keep_all_digits_in_the_file(tmp_path: Path, runner_up: float) -> None:
    """Levels just beside the doubts of the images, down to 1e-11: the file never has the larger radius."""
    network, generator = Answers(6).eval(), torch.Generator().manual_seed(0)
    images = torch.rand(300, 1, 4, 4, generator=generator)
    images.flatten(1)[:, 0] = 0.5 + 0.5 * torch.rand(300, generator=generator)
    probabilities = network(images).softmax(1)
    doubts = doubt_of(probabilities.double() / probabilities.double().sum(1, keepdim=True), 6, runner_up)
    assert (doubts < 1e-6).sum() > 30
    levels = sorted({float(doubt) * (1 - 1e-10) for doubt in doubts if 1e-11 < doubt < 0.1}, reverse=True)
    steps = tuple((level, 0.001 * number) for number, level in enumerate(levels, start=1))
    made = replace(calibration(network, 6, steps), runner_up=runner_up)
    done = export_onnx(network, tmp_path / "m.onnx", images, sigma=0.25, calibration=made)
    found = run_file(done.path, images)
    radius = made.radius(found["probabilities"])
    assert (found["calibrated_radius"] <= radius).all()
    np.testing.assert_allclose(found["calibrated_radius"], radius, rtol=3e-7)
    assert len(set(radius.tolist())) > 50


class Noisy(Linear):
    """A network that is random in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand_like(x).flatten(1)[:, :5]


class Branching(Linear):
    """A network whose forward depends on the content of the images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)


class FixedBatch(Linear):
    """A network written for batches of 7."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(7, -1)) if len(x) == 7 else super().forward(x)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Noisy, "expected logits of an image that do not depend"),
        (Branching, "torch.export can trace"),
        (FixedBatch, "batch size"),
    ],
)
def test_what_cannot_be_exported_faithfully_is_not_written(kind: type[Linear], message: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind(10 * torch.randn(5, 16))
    (tmp_path / "m.onnx").write_bytes(b"before")
    with pytest.raises(hs.InputError, match=message) as caught:
        export_onnx(model, tmp_path / "m.onnx", torch.rand(2, 1, 4, 4), sigma=0.25)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "m.onnx").read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("sigma", "shift", "message"), [(0.25, 1e-4, "expected probabilities within 1e-05"), (0.26, 0.0, "that follow")]
)
def test_a_file_that_differs_is_not_written(
    sigma: float, shift: float, message: str, linear: Linear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the exporter wrong, in the weights or in a constant, the check would see it."""
    right = export._onnx
    wrong = OnePassNetwork(Linear(linear.weight.data + shift * torch.eye(5, 16)), sigma=sigma)
    monkeypatch.setattr(export, "_onnx", lambda _, *others: right(wrong, *others))
    with pytest.raises(hs.InputError, match=message):
        export_onnx(linear, tmp_path / "m.onnx", torch.rand(2, 1, 4, 4), sigma=0.25)
    assert not list(tmp_path.iterdir())


def test_wrong_settings_are_refused(linear: Linear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, images = tmp_path / "m.onnx", torch.rand(1, 1, 4, 4)
    for sigma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(hs.InputError, match="`sigma`: expected a positive number"):
            export_onnx(linear, file, images, sigma=sigma)
    with pytest.raises(hs.InputError, match=r"`sigma`: expected 0\.25, with which the model was calibrated, got 0\.5"):
        export_onnx(linear, file, images, sigma=0.5, calibration=calibration(linear))
    with pytest.raises(hs.InputError, match="takes images of 1×5×5"):
        export_onnx(linear, file, torch.rand(1, 1, 5, 5), sigma=0.25)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(hs.InputError, match=r"pip install 'heatsmooth\[export\]'"):
        export_onnx(linear, file, images, sigma=0.25)
    assert not file.exists()


def test_the_command_exports_a_calibrated_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_classifier()
    save(model, tmp_path / "model.safetensors")
    (tmp_path / "calibration.json").write_text(json.dumps(calibration(model, classes=10).to_json()))
    words = f"export --from {tmp_path} --sigma 0.25 --data fashion-mini --images 20 --out {tmp_path}/m.onnx --quiet"
    assert run(words.split()) == 0
    assert "of the average; conformal, 1-epsilon-alpha=0.949" in capsys.readouterr().out
    assert run([*words.split(), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    summary = json.loads(captured.out)
    assert summary["images_checked"] == 220
    assert summary["largest_difference"] <= 1e-5
    assert summary["outputs"]["calibrated_radius"]["subject"] == "average"
    assert metadata(tmp_path / "m.onnx")["architecture"] == "small"
    images = torch.rand(3, 1, 28, 28)
    expected = load(tmp_path)(images).softmax(1).detach().numpy()
    assert np.abs(run_file(tmp_path / "m.onnx", images)["probabilities"] - expected).max() <= 1e-5
    for wrong, message in (
        (["--sigma", "0.5"], "with which the model was calibrated"),
        (["--out", str(tmp_path)], "expected a file to write, got a directory"),
        (["--images", "0"], "--images: expected at least 1"),
    ):
        assert run([*words.split(), *wrong]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1


def test_the_command_exports_a_network_of_the_user(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "exported_net.py").write_text(
        "from torch import nn\n"
        "def net(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), "
        "nn.Linear(144, 6))\n"
    )
    sys.path.insert(0, str(in_tmp))
    try:
        import exported_net  # type: ignore[import-not-found]

        torch.save(exported_net.net().state_dict(), "w.pt")
        words = "export --from w.pt --model exported_net:net --mean 0.5 --std 0.25 --image-size 8 --sigma 0.1"
        assert run([*words.split(), "--out", "m.onnx", "--quiet", "--json"]) == 0
    finally:
        sys.path.remove(str(in_tmp))
    assert json.loads(capsys.readouterr().out)["largest_difference"] <= 1e-5
    assert run_file(Path("m.onnx"), torch.rand(4, 3, 8, 8))["probabilities"].shape == (4, 6)


class Squashed(Linear):
    """Logits that stay finite whatever the pixels are, as those behind a ReLU6 do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.nan_to_num(0.5, 1.0, 0.0).clamp(0, 1))


class Overflowing(Linear):
    """A logit of class 2 that is +inf (or -inf, or NaN) for images whose first pixel is above ½."""

    value = math.inf

    def forward(self, x: Tensor) -> Tensor:
        beyond = (x[:, 0, 0, :1] > 0.5) & (torch.arange(5) == 2)
        return torch.where(beyond, self.value, super().forward(x))


@pytest.mark.parametrize("kind", [Linear, Squashed])
def test_images_that_are_none_have_no_radius(kind: type[Linear], linear: Linear, tmp_path: Path) -> None:
    model = kind(linear.weight.data)
    export_onnx(model, tmp_path / "m.onnx", torch.rand(1, 1, 4, 4), sigma=0.25, calibration=calibration(model))
    images = torch.rand(9, 1, 4, 4)
    good = run_file(tmp_path / "m.onnx", images)
    for row, pixel in enumerate((math.nan, math.inf, -math.inf, 1e38, -1e38, 255.0, -0.1)):
        images[row, 0, 2, 1] = pixel
    images[7] = 1e38
    found = run_file(tmp_path / "m.onnx", images)
    for name in ("l_bound", "calibrated_radius"):
        assert found[name][:8].tolist() == [0.0] * 8
        assert found[name][8] == good[name][8] > 0
    images[:8] = 1 + 5e-7
    assert (run_file(tmp_path / "m.onnx", images)["l_bound"] > 0).all(), "rounding is no reason to refuse"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_give_no_radius(value: float, linear: Linear, tmp_path: Path) -> None:
    model = Overflowing(linear.weight.data)
    model.value = value
    made = calibration(model, steps=((1.0, 0.05), (0.3, 0.11)))
    outputs = ("probabilities", "class", "l_bound", "calibrated_radius")
    one_pass = OnePassNetwork(model, sigma=0.25, calibration=made).eval()
    (tmp_path / "m.onnx").write_bytes(export._onnx(one_pass, torch.rand(7, 1, 4, 4), outputs, {}))
    images = torch.rand(4, 1, 4, 4) / 2
    images[1, 0, 0, 0] = images[3, 0, 0, 0] = 0.75
    found = run_file(tmp_path / "m.onnx", images)
    with torch.inference_mode():
        in_torch = one_pass(images)[2:]
    for radii in ((found["l_bound"], found["calibrated_radius"]), in_torch):
        for radius in radii:
            assert [float(r) > 0 for r in radius] == [True, False, True, False]
            assert float(radius[1]) == float(radius[3]) == 0.0


def test_a_file_that_gives_a_radius_to_no_image_is_not_written(
    linear: Linear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(OnePassNetwork):
        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            probabilities = self.model(images).softmax(1)
            return probabilities, *self.conclusions(probabilities)

    monkeypatch.setattr(export, "OnePassNetwork", Careless)
    model = Squashed(linear.weight.data)
    with pytest.raises(hs.InputError, match="expected radii of 0 for images with NaN"):
        export_onnx(model, tmp_path / "m.onnx", torch.rand(1, 1, 4, 4), sigma=0.25)
    monkeypatch.undo()
    with pytest.raises(hs.InputError, match=r"expected images in \[0, 1\], got values from .* to 2;"):
        export_onnx(model, tmp_path / "m.onnx", torch.full((1, 1, 4, 4), 2.0), sigma=0.25)
    assert not list(tmp_path.iterdir())
