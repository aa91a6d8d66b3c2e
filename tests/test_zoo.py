"""Networks of timm and torchvision. Neither fetches anything here: torchvision is a look-alike of what is used of it.

The real timm runs, where it is installed, beside a torchvision that has every name and can do nothing.
"""

import enum
import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.models import NetworkSpec, build, load, recorded_spec, save

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class Net(nn.Module):
    """A small classifier; ``shifted`` is a plain attribute, as torchvision sets with the weights of Inception."""

    def __init__(self, classes: int = 7, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 3, 2)
        self.fc = nn.Linear(4, classes)
        self.shifted = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.stem(x + 1 if self.shifted else x).relu().mean((2, 3)))  # type: ignore[no-any-return]


def own_weights(seed: int) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return Net().state_dict()


def put(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of torchvision.models that heatsmooth uses, with weights "downloaded" before."""

    class Weights(enum.Enum):
        V1 = 1
        V2 = 2
        DEFAULT = V2

        @property
        def meta(self) -> dict[str, Any]:
            return {"categories": list("abcdefg")}

        def transforms(self) -> Any:
            return SimpleNamespace(crop_size=[20], resize_size=[24], mean=MEAN, std=STD)

    def get_model(name: str, *, weights: Weights | None, num_classes: int = 7, progress: bool = True) -> nn.Module:
        network = Net(num_classes)
        if weights is not None:
            network.load_state_dict(own_weights(weights.value))
            network.shifted = name == "inception"
        return network

    def get_model_weights(name: str) -> type[Weights]:
        if name not in ("resnet", "inception"):
            raise ValueError(f"Unknown model {name}")
        return Weights

    put(monkeypatch, "torchvision", models=SimpleNamespace(get_model=get_model, get_model_weights=get_model_weights))


@pytest.mark.parametrize(("name", "seed"), [("torchvision:resnet", 2), ("torchvision:resnet.V1", 1)])
@pytest.mark.usefixtures("torchvision")
def test_torchvision_states_weights_normalisation_and_size(name: str, seed: int, tmp_path: Path) -> None:
    model = load(name)
    assert model.spec == NetworkSpec(name, 7, 3, MEAN, STD, 20) == recorded_spec(Path(name))
    original = Net()
    original.load_state_dict(own_weights(seed))
    x = torch.rand(3, 3, 20, 20)
    torch.testing.assert_close(
        model(x), original((x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1))
    )
    save(model, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path)(x), model(x))
    assert load(name, mean=(0.5,), std=(0.5,)).spec.mean == (0.5,)


@pytest.mark.usefixtures("torchvision")
def test_own_weights_may_have_another_head(tmp_path: Path) -> None:
    torch.save({f"module.{name}": value for name, value in Net(5).state_dict().items()}, tmp_path / "own.pt")
    model = load(tmp_path / "own.pt", model="torchvision:resnet")
    assert (model.spec.classes, model.spec.mean, model.spec.size) == (5, MEAN, 20)
    assert build(NetworkSpec("torchvision:resnet", 4)).eval()(torch.rand(2, 3, 20, 20)).shape == (2, 4)


@pytest.mark.usefixtures("torchvision")
def test_what_does_not_fit_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, message in {
        "torchvision:inception": "builds differently with these weights",
        "torchvision:resnet.V9": r"expected weights that torchvision has \(V1, V2\), got 'V9'",
        "torchvision:nothing": "got Unknown model nothing; check the name",
    }.items():
        with pytest.raises(InputError, match=message):
            load(name)
    with pytest.raises(InputError, match="expected images of 3 channels, got 1"):
        build(NetworkSpec("torchvision:resnet", 4, 1))
    with pytest.raises(InputError, match="expected no other `model` beside it"):
        load("torchvision:resnet", model="small")
    for library in ("torchvision", "timm"):
        monkeypatch.setitem(sys.modules, library, None)
        assert run(["check", "--from", f"{library}:resnet18"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"pip install 'heatsmooth[{library}]'" in error


class Pretended(ModuleType):
    """A module that has every name: an empty layer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or type(
            name, (nn.Module,), {"BILINEAR": 1, "BICUBIC": 2, "NEAREST": 3, "LANCZOS": 4, "HAMMING": 5, "BOX": 6}
        )


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The real timm, without a network."""
    for module in [name for name in sys.modules if name == "timm" or name.startswith("timm.")]:
        monkeypatch.delitem(sys.modules, module)
    parts = ("datasets", "models", "models.feature_extraction", "ops", "ops.misc", "transforms")
    for part in ("", *parts, "transforms.functional", "utils"):
        name = f"torchvision.{part}".rstrip(".")
        monkeypatch.setitem(sys.modules, name, Pretended(name))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return pytest.importorskip("timm", reason="timm is not installed; it is optional, and needs torchvision")


def test_timm_states_everything_and_a_run_needs_its_weights_no_more(
    timm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "timm:test_resnet.r160_in1k"
    with pytest.raises(InputError, match=r"test_resnet.*check the name, or name your own file of weights"):
        load(name)
    network = timm.create_model("test_resnet.r160_in1k")
    torch.save(network.state_dict(), tmp_path / "own.pth")
    own = load(tmp_path / "own.pth", model=name)
    config = network.pretrained_cfg
    assert own.spec == NetworkSpec(name, 1000, 3, config["mean"], config["std"], config["input_size"][1])
    monkeypatch.setattr(
        timm, "create_model", partial(timm.create_model, pretrained_cfg_overlay={"file": str(tmp_path / "own.pth")})
    )
    model = load(name)
    x = torch.rand(2, 3, 160, 160)
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(model(x), network.eval()((x - mean) / std), rtol=1e-4, atol=1e-5)
    assert torch.equal(model(x), own(x))
    save(model, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path)(x), model(x))
    assert run(["check", "--from", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == 1000
