"""Checkpoints as Cohen and Salman publish them, rebuilt with the layout of their public code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.models import ARCHITECTURES, load
from heatsmooth.models.wrappers import read_names
from tests.conftest import Linear

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class NormalizeLayer(nn.Module):
    """Cohen's keeps plain attributes, which are not part of the state dict; others register buffers."""

    def __init__(self, means: tuple[float, ...], sds: tuple[float, ...], *, stored: bool) -> None:
        super().__init__()
        for name, values in (("means", means), ("sds", sds)):
            tensor = torch.tensor(values)
            self.register_buffer(name, tensor) if stored else setattr(self, name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        means, sds = (getattr(self, name).view(1, -1, 1, 1) for name in ("means", "sds"))
        shifted: Tensor = (x - means) / sds
        return shifted


def published(
    path: Path, network: nn.Module, *, parallel: bool = False, stored: bool = False, **facts: Any
) -> nn.Module:
    """Write ``checkpoint.pth.tar`` as their training does, with the format of torch 1.0; the model that was saved."""
    inner = nn.DataParallel(network) if parallel else network
    model = nn.Sequential(NormalizeLayer(CIFAR_MEAN, CIFAR_STD, stored=stored), inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    content = {"epoch": 90, "arch": "cifar_resnet110", "state_dict": model.state_dict()}
    torch.save(content | {"optimizer": optimizer.state_dict()} | facts, path, _use_new_zipfile_serialization=False)
    return model.eval()


def trained(name: str, **choices: int) -> nn.Module:
    """A network whose batch norm has statistics of its own."""
    torch.manual_seed(0)
    network = ARCHITECTURES[name](**choices)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.weight, 0.3, 0.6)
    return network


@pytest.mark.parametrize(("name", "parallel"), [("resnet110", False), ("resnet20", False), ("resnet20", True)])
@pytest.mark.parametrize("stored", [False, True])
def test_published_checkpoints_load_to_the_same_logits(tmp_path: Path, name: str, parallel: bool, stored: bool) -> None:
    model = published(tmp_path / "checkpoint.pth.tar", trained(name), parallel=parallel, stored=stored)
    names = set(torch.load(tmp_path / "checkpoint.pth.tar", weights_only=True)["state_dict"])
    assert ("1.module.conv1.weight" if parallel else "1.conv1.weight") in names
    assert ("0.means" in names) is stored
    again = load(tmp_path / "checkpoint.pth.tar", model=name, mean=CIFAR_MEAN, std=CIFAR_STD)
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(again(x), model(x), rtol=1e-4, atol=1e-4)


def test_the_imagenet_network_of_torchvision_behind_a_parallel_wrapper(tmp_path: Path) -> None:
    network = trained("resnet50")
    published(tmp_path / "checkpoint.pth.tar", network, parallel=True)
    again = load(tmp_path / "checkpoint.pth.tar", model="resnet50", classes=1000, mean=CIFAR_MEAN, std=CIFAR_STD)
    assert all(torch.equal(tensor, network.state_dict()[key]) for key, tensor in again.network.state_dict().items())


def test_a_normalisation_that_is_not_in_the_file_must_be_given(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pth.tar"
    published(file, trained("resnet20"))
    with pytest.raises(InputError, match="expected `mean` and `std` for weights of a network behind a normalisation"):
        load(file, model="resnet20")
    centred = load(file, model="resnet20", mean=CIFAR_MEAN)
    assert (centred.spec.mean, centred.spec.std) == (CIFAR_MEAN, (1.0, 1.0, 1.0))


def test_a_normalisation_in_the_file_is_used_and_not_contradicted(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pth.tar"
    published(file, trained("resnet20"), stored=True)
    assert load(file, model="resnet20").spec.std == pytest.approx(CIFAR_STD)
    assert load(file, model="resnet20", mean=CIFAR_MEAN, std=CIFAR_STD).spec.std == CIFAR_STD
    for std in ((0.25, 0.25, 0.25), (1.0, 1.0, 1.0), None):
        with pytest.raises(InputError, match="expected the normalisation in the file"):
            load(file, model="resnet20", mean=CIFAR_MEAN, std=std)


def test_nothing_is_left_random(tmp_path: Path) -> None:
    """One tensor more or less, another network, another layer in front: each is refused by name."""
    network = trained("resnet20")
    state = {f"1.module.{name}": tensor for name, tensor in network.state_dict().items()}
    given: dict[str, Any] = {"model": "resnet20", "mean": CIFAR_MEAN, "std": CIFAR_STD}
    for change, message in (
        ({"1.module.fc.bias": None}, r"1 missing \(first: fc\.bias\)"),
        ({"1.module.extra": torch.zeros(1)}, r"1 unknown \(first: extra\)"),
        ({"0.weight": torch.zeros(1)}, "missing"),
        ({"2.weight": torch.zeros(1)}, "missing"),
        ({"1.fc.bias": torch.zeros(10)}, "missing"),
    ):
        changed = {name: tensor for name, tensor in (state | change).items() if tensor is not None}
        torch.save({"state_dict": changed}, tmp_path / "w.pth.tar")
        with pytest.raises(InputError, match=message):
            load(tmp_path / "w.pth.tar", **given)
    published(tmp_path / "checkpoint.pth.tar", network)
    with pytest.raises(InputError, match=r"missing \(first: layer1\.10\.bn1\.bias\)"):
        load(tmp_path / "checkpoint.pth.tar", **given | {"model": "resnet110"})


def test_names_that_fit_are_left_alone() -> None:
    """A network that is itself a Sequential has names that begin with 1."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    reading = read_names(network.state_dict(), network.state_dict().keys())
    assert not reading.normalised
    assert reading.state.keys() == {"1.weight", "1.bias"}
    wrapped = nn.DataParallel(network).state_dict()
    assert read_names(wrapped, network.state_dict().keys()).state.keys() == {"1.weight", "1.bias"}


def test_a_published_checkpoint_is_certified_by_a_command(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = trained("small", channels=1)
    state = {f"1.{name}": tensor for name, tensor in network.state_dict().items()}
    torch.save({"epoch": 1, "arch": "small", "state_dict": state}, "checkpoint.pth.tar")
    words = "certify --from checkpoint.pth.tar --model small --data fashion-mini --images 2 --sigma 0.25 --n 100"
    words += " --out certified --quiet --json --device cpu"
    assert run(words.split()) == 2
    assert "expected --mean and --std" in capsys.readouterr().err
    assert run([*words.split(), "--mean", "0.5", "--std", "0.25"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 2


def test_collapsing_names_are_not_confused() -> None:
    state = Linear(torch.zeros(2, 4)).state_dict()
    both = {"module.weight": state["weight"], "weight": state["weight"] + 1, "bias": state["bias"]}
    assert read_names(both, state.keys()).state.keys() == both.keys()
