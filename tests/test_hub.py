"""Networks of transformers, saved locally: nothing is fetched."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heatsmooth import InputError
from heatsmooth.models import NetworkSpec, build, load, model_hash, recorded_spec, save, serialise
from heatsmooth.models.inference import folded

transformers = pytest.importorskip("transformers")
PROCESSOR = {"image_mean": [0.5], "image_std": [0.25], "do_normalize": True, "size": {"height": 28, "width": 28}}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def saved_resnet(path: Path, processor: dict[str, Any] | None = PROCESSOR, channels: int = 1) -> Path:
    """A tiny ResNet of transformers with random weights, as ``save_pretrained`` leaves it."""
    config = transformers.ResNetConfig(
        num_channels=channels, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10
    )
    torch.manual_seed(0)
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(path)
    if processor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def test_logits_are_unwrapped_and_the_processor_is_inside(tmp_path: Path) -> None:
    path = saved_resnet(tmp_path / "net")
    model = load(Path(f"hf:{path}"))
    assert (model.spec.classes, model.spec.channels, model.spec.size) == (10, 1, 28)
    x = torch.rand(3, 1, 28, 28)
    original = transformers.AutoModelForImageClassification.from_pretrained(path).eval()
    torch.testing.assert_close(model(x), original((x - 0.5) / 0.25).logits)
    assert model_hash(load(path)) == model_hash(model)
    assert recorded_spec(path) == recorded_spec(Path("elsewhere"), f"hf:{path}")


def test_a_run_directory_needs_the_original_no_more(tmp_path: Path) -> None:
    model = load(saved_resnet(tmp_path / "net"))
    save(model, tmp_path / "model.safetensors")
    (tmp_path / "net").rename(tmp_path / "gone")
    again = load(tmp_path / "model.safetensors")
    assert again.spec == model.spec
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(again(x), model(x))


def test_weights_of_another_file_and_random_ones(tmp_path: Path) -> None:
    path = saved_resnet(tmp_path / "net")
    own = load(path / "model.safetensors", model=f"hf:{path}", mean=(0.5,), std=(0.25,))
    x = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(own(x), load(path)(x))
    assert build(NetworkSpec(f"hf:{path}", classes=7, channels=3)).eval()(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    with pytest.raises(InputError, match="states its network itself"):
        load(path, model="small")


def test_batch_norm_is_folded(tmp_path: Path) -> None:
    model = load(saved_resnet(tmp_path / "net"))
    x = torch.rand(4, 1, 28, 28)
    fast, count = folded(model, x)
    assert count == 6
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("said", "mean", "std"),
    [
        ({"image_mean": 0.5, "image_std": 0.5}, (0.5,), (0.5,)),
        ({"do_normalize": False, "image_mean": [0.4], "image_std": [0.2]}, (0.0,), (1.0,)),
        ({"do_normalize": False, "do_rescale": False}, (0.0,), (1 / 255,)),
        ({"do_normalize": False, "rescale_factor": 1 / 127.5, "rescale_offset": True}, (0.5,), (0.5,)),
        ({"image_mean": [51.0], "image_std": [25.5], "do_rescale": False}, (0.2,), (0.1,)),
    ],
)
def test_normalisation_does_what_the_processor_does(
    tmp_path: Path, said: dict[str, Any], mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    spec = load(saved_resnet(tmp_path / "net", said)).spec
    assert spec.mean == pytest.approx(mean)
    assert spec.std == pytest.approx(std)


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 224),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": False}, 256),
        ({"size": 96}, 96),
        ({"size": {"width": 30, "height": 20}}, (20, 30)),
        ({"size": {"height": 20, "width": 20}}, 20),
        ({}, None),
    ],
)
def test_the_size_is_the_processors(tmp_path: Path, said: dict[str, Any], size: int | tuple[int, int] | None) -> None:
    found = recorded_spec(saved_resnet(tmp_path / "net", said))
    assert found is not None
    assert found.size == size


def test_what_would_be_made_up_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = saved_resnet(tmp_path / "plain", None)
    with pytest.raises(InputError, match="`mean` and `std`"):
        load(plain)
    assert load(plain, mean=(0.0,)).spec.std == (1.0,)
    with pytest.raises(InputError, match="expected image_mean"):
        load(saved_resnet(tmp_path / "silent", {"do_normalize": True}))
    headless = saved_resnet(tmp_path / "headless")
    transformers.AutoModel.from_pretrained(headless).save_pretrained(headless)
    with pytest.raises(InputError, match="2 missing"):
        load(headless)
    with pytest.raises(InputError, match="check the name"):
        load(Path("hf:nobody/nothing"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'heatsmooth\[hf\]'"):
        load(plain)


OWN_CODE = {"AutoConfig": "own.Config", "AutoModelForImageClassification": "own.Net"}
NESTED_CODE = {"model_type": "rag", "_name_or_path": "PATH", "auto_map": {"AutoModel": "own.Net"}}
"""A configuration within another, of a type without a network of its own: transformers asks whether to run the file."""


def with_own_code(path: Path, changes: dict[str, Any], processor: dict[str, Any] = PROCESSOR) -> Path:
    """A network whose directory holds Python that leaves a file ``ran`` in it, and a configuration changed so."""
    saved_resnet(path, processor)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config).replace("PATH", str(path)))
    (path / "own.py").write_text(
        f"open({str(path / 'ran')!r}, 'w').close()\n"
        "from transformers import ResNetConfig, ResNetForImageClassification\n"
        "class Config(ResNetConfig):\n    model_type = 'own'\n"
        "class Net(ResNetForImageClassification):\n    config_class = Config\n"
    )
    return path


def named_in_a_file(path: Path, file: Path, *, with_config: bool) -> Path:
    """Weights whose metadata name that directory, and its configuration if asked."""
    config = (path / "config.json").read_text() if with_config else None
    spec = NetworkSpec(f"hf:{path}", 10, 1, (0.5,), (0.25,), config=config)
    state = load(saved_resnet(file.parent / "plain")).network.state_dict()
    file.write_bytes(serialise(state, spec.describe()))
    return file


@pytest.mark.parametrize("word", ["yes", "y"])
def test_code_of_a_repository_never_runs_whatever_standard_input_says(tmp_path: Path, word: str) -> None:
    path = with_own_code(tmp_path / "net", {"model_type": "own", "auto_map": OWN_CODE})
    ended = subprocess.run(
        [sys.executable, "-m", "heatsmooth", "check", "--from", str(path)],
        input=f"{word}\n" * 20,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    assert not (path / "ran").exists()
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "got a configuration that names other code (auto_map); heatsmooth never runs it" in ended.stderr


@pytest.mark.parametrize("place", ["directory", "name", "metadata", "recorded"])
@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "own", "auto_map": OWN_CODE},
        {"auto_map": OWN_CODE},
        {"model_type": "bert", "auto_map": OWN_CODE},
        {"model_type": "shieldgemma2", "vision_config": NESTED_CODE},
        {"attn_implementation": "somebody/kernel"},
    ],
    ids=["own-type", "known-type", "another-type", "nested", "kernel"],
)
def test_no_configuration_brings_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], place: str
) -> None:
    path = with_own_code(tmp_path / "net", changes)
    sources = {"directory": path, "name": Path(f"hf:{path}")}
    if place not in sources:
        sources[place] = named_in_a_file(path, tmp_path / "x.safetensors", with_config=place == "recorded")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
    with pytest.raises(InputError, match=r"expected a network whose code is in transformers.*package\.module:callable"):
        load(sources[place])
    assert not (path / "ran").exists()


def test_code_of_a_processor_and_pickled_weights_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
    code = {"auto_map": {"AutoImageProcessor": "own.Net"}, "image_processor_type": "Net"}
    path = with_own_code(tmp_path / "net", {}, PROCESSOR | code)
    assert load(path).spec.classes == 10
    (path / "model.safetensors").unlink()
    torch.save({"a": Touching(path / "ran")}, path / "pytorch_model.bin")
    with pytest.raises(InputError, match="got a pickle that holds code"):
        load(path)
    assert not (path / "ran").exists()
    (path / "pytorch_model.bin").unlink()
    (path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match="expected an image classifier of transformers"):
        load(path)


class Touching:
    """A pickle of this makes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self.file),)
