import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from heatsmooth import InputError
from heatsmooth.models import (
    ARCHITECTURES,
    Classifier,
    NetworkSpec,
    build,
    check_independence,
    copy_of,
    count_classes,
    evaluating,
    load,
    load_state,
    model_hash,
    save,
)
from heatsmooth.models.checkpoint import serialise
from heatsmooth.runs import write_atomically
from tests.conftest import Linear, tiny_classifier


@pytest.mark.parametrize(
    ("name", "size", "millions"),
    [("small", 28, 0.31), ("small", 32, 0.31), ("resnet20", 32, 0.27), ("resnet110", 32, 1.73), ("resnet34", 32, 21.3)],
)
def test_architectures_take_small_images(name: str, size: int, millions: float) -> None:
    network = ARCHITECTURES[name](classes=7, channels=3)
    assert network(torch.rand(2, 3, size, size)).shape == (2, 7)
    count = sum(p.numel() for p in network.parameters()) / 1e6
    assert abs(count - millions) < 0.03 * millions + 0.005


def test_unit_logits_have_mean_0_and_variance_1_over_the_images_that_train_it() -> None:
    network = build(NetworkSpec("tiny-unit-logits", 10, 3)).train()
    logits = network(torch.rand(64, 3, 16, 16))
    torch.testing.assert_close(logits.mean(0), torch.zeros(10), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits.var(0, unbiased=False), torch.ones(10), rtol=0, atol=0.02)
    assert not [name for name, _ in network.named_parameters() if "logits_norm" in name]


def test_resnet50_has_the_public_names_and_shapes() -> None:
    state = ARCHITECTURES["resnet50"]().state_dict()
    assert sum(p.numel() for p in ARCHITECTURES["resnet50"]().parameters()) == 25_557_032
    assert len(state) == 320
    public = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.running_mean": (256,),
        "layer2.0.conv2.weight": (128, 128, 3, 3),
        "layer3.5.conv3.weight": (1024, 256, 1, 1),
        "layer4.2.bn3.bias": (2048,),
        "layer4.2.bn3.num_batches_tracked": (),
        "fc.weight": (1000, 2048),
        "fc.bias": (1000,),
    }
    assert {name: tuple(state[name].shape) for name in public} == public
    assert build(NetworkSpec("resnet50", classes=1000))(torch.rand(1, 3, 64, 64)).shape == (1, 1000)


def test_normalisation_is_inside() -> None:
    model = tiny_classifier(channels=3)
    x = torch.rand(2, 3, 28, 28)
    with evaluating(model):
        torch.testing.assert_close(model(x), model.network((x - 0.5) / 0.25))
    assert model.training


def test_saved_and_loaded_a_network_is_the_same(tmp_path: Path) -> None:
    model = tiny_classifier(channels=3)
    save(model, tmp_path / "model.safetensors")
    for source in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        again = load(source)
        assert again.spec == model.spec
        assert model_hash(again) == model_hash(model)
        assert not again.training


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_state_dict_of_another_tool(tmp_path: Path, wrapped: bool, nested: bool) -> None:
    model = tiny_classifier(channels=3)
    state = {("module." if wrapped else "") + name: tensor for name, tensor in model.network.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state} if nested else state, tmp_path / "w.pt")
    again = load(tmp_path / "w.pt", model="small", mean=0.5, std=[0.25])
    assert model_hash(again) == model_hash(model)
    with pytest.raises(InputError, match="expected `model`"):
        load(tmp_path / "w.pt")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code ran')",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    for name, write in (
        ("a.pt", lambda p: torch.save({"w": Evil()}, p)),
        ("b.pt", lambda p: p.write_bytes(pickle.dumps(Evil()))),
    ):
        write(tmp_path / name)
        with pytest.raises(InputError, match="code"):
            load(tmp_path / name, model="small")


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "a.safetensors", "safetensors file"),
        (b"\x00" * 100, "a.safetensors", "safetensors file"),
        (b"garbage", "a.pt", "a.pt: expected a state dict"),
        (b"", "a.pt", "a.pt: expected a state dict"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / name, model="small")


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    save(tiny_classifier(), tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(InputError, match="safetensors file"):
        load(tmp_path)


def test_foreign_weights_are_refused_by_name(tmp_path: Path) -> None:
    save(tiny_classifier(channels=3), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="weights of small"):
        load(tmp_path, model="resnet20")
    torch.save(tiny_classifier().network.state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"missing \(first: "):
        load(tmp_path / "w.pt", model="resnet20")
    with pytest.raises(InputError, match=r"conv1\.weight of shape \(32, 3, 3, 3\), got \(32, 1, 3, 3\)"):
        load(tmp_path / "w.pt", model="small")
    with pytest.raises(InputError, match=r"fc\.\w+ of shape \(5"):
        load(tmp_path / "w.pt", model="small", channels=1, classes=5)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "nothing")
    safetensors.torch.save_file(
        {"a": torch.zeros(1)}, tmp_path / "odd.safetensors", {"heatsmooth": json.dumps({"nonsense": 1})}
    )
    with pytest.raises(InputError, match="metadata"):
        load(tmp_path / "odd.safetensors")


def test_weights_are_refused_and_taken_as_torch_does(tmp_path: Path) -> None:
    """Torch's own strict loading forgives batch norms their missing counters, and nothing else."""
    model = tiny_classifier(channels=3)
    whole = model.network.state_dict()
    counters = [name for name in whole if name.endswith("num_batches_tracked")]
    kept = {name: tensor for name, tensor in whole.items() if name not in counters}
    assert counters
    torch.save(kept, tmp_path / "w.pt")
    again = load(tmp_path / "w.pt", model="small")
    assert model_hash(again.network) == model_hash(model.network)
    for ending in ("running_mean", "running_var", "bn1.weight", "bn1.bias", "conv1.weight"):
        first = next(name for name in kept if name.endswith(ending))
        torch.save({name: tensor for name, tensor in kept.items() if name != first}, tmp_path / "w.pt")
        with pytest.raises(InputError, match=rf"1 missing \(first: {first}\)"):
            load(tmp_path / "w.pt", model="small")
    torch.save(kept | {"other.num_batches_tracked": torch.tensor(0)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"1 unknown \(first: other"):
        load(tmp_path / "w.pt", model="small")


def test_code_is_imported_only_where_the_user_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynets.py").write_text(
        "from torch.nn import *\nnet = lambda: Sequential(Flatten(), Linear(16, 4))\nbad = lambda: 3\n"
    )
    monkeypatch.chdir(tmp_path)
    model = build(NetworkSpec("mynets:net"))
    assert count_classes(model, torch.rand(1, 1, 4, 4)) == 4
    save(model, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="only if you name it"):
        load(tmp_path / "m.safetensors")
    assert model_hash(load(tmp_path / "m.safetensors", model="mynets:net")) == model_hash(model)
    for name in ("mynets:bad", "mynets:nothing", "no.such:thing", "unknown"):
        with pytest.raises(InputError, match="`model`"):
            build(NetworkSpec(name))


def test_a_callable_may_bring_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of timm and torchvision do; here a module with the names and shapes of their ResNets."""
    torch.save(ARCHITECTURES["resnet18-imagenet"](classes=1000).state_dict(), tmp_path / "resnet18.pth")
    (tmp_path / "theirs.py").write_text(
        "import torch\nfrom heatsmooth.models import ARCHITECTURES\n"
        "def resnet18():\n"
        "    network = ARCHITECTURES['resnet18-imagenet'](classes=1000)\n"
        f"    network.load_state_dict(torch.load('{tmp_path}/resnet18.pth', weights_only=True))\n"
        "    return network\n"
    )
    monkeypatch.chdir(tmp_path)
    whole = load(Path("theirs:resnet18"), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    parts = load(
        tmp_path / "resnet18.pth", model="resnet18-imagenet", classes=1000, mean=whole.spec.mean, std=whole.spec.std
    )
    assert model_hash(whole) == model_hash(parts)
    assert not whole.training


def test_answers_that_hold_logits_are_unwrapped() -> None:
    class Answering(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=x.flatten(1), other=None)

    assert count_classes(Classifier(Answering(), NetworkSpec("mine")), torch.rand(1, 1, 4, 4)) == 16


def test_a_network_instead_of_its_name_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`model`: expected a name such as package.module:callable, got function"):
        load(tmp_path / "weights.pt", model=tiny_classifier)  # type: ignore[arg-type]  # what people try


def test_networks_that_do_not_fit_are_refused() -> None:
    model = tiny_classifier(channels=3)
    assert count_classes(model, torch.rand(1, 3, 32, 32)) == 10
    with pytest.raises(InputError, match="3 channels"):
        count_classes(model, torch.rand(1, 1, 32, 32))
    with pytest.raises(InputError, match="takes images of 1×5×5"):
        count_classes(Linear(torch.zeros(3, 16)), torch.rand(1, 1, 5, 5))
    with pytest.raises(InputError, match="finite logits"):
        count_classes(Linear(torch.full((3, 16), torch.nan)), torch.rand(1, 1, 4, 4))
    with pytest.raises(InputError, match="logits"):
        count_classes(torch.nn.Identity(), torch.rand(1, 1, 4, 4))


def test_a_copy_is_independent_and_trainable() -> None:
    model = tiny_classifier().requires_grad_(False)
    twin = copy_of(model)
    assert all(p.requires_grad for p in twin.parameters())
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert model_hash(twin) != model_hash(model)


def test_weights_are_loaded_from_a_state_of_any_float_order(tmp_path: Path) -> None:
    """Channels-last tensors are written in plain order and read back equal."""
    model = tiny_classifier(channels=3)
    weight = model.network.get_parameter("layer1.0.conv1.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    save(model, tmp_path / "m.safetensors")
    state, metadata = load_state(tmp_path / "m.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.network.state_dict().items())
    assert metadata["architecture"] == "small"


def test_weights_are_read_of_one_moment_while_another_process_replaces_them(tmp_path: Path) -> None:
    path, writing = tmp_path / "state.safetensors", True
    states = [serialise({"a": torch.full((64,), float(step)), "b": torch.zeros(64)}, {"step": step}) for step in (0, 1)]
    write_atomically(path, states[0])

    def replace() -> None:
        while writing:
            for state in states:
                write_atomically(path, state)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(300):
            tensors, facts = load_state(path)
            assert tensors["a"][0] == facts["step"]
    finally:
        writing = False
        writer.join()


@pytest.mark.parametrize(
    "mixed",
    [
        lambda y: y - y.mean(0, keepdim=True),
        lambda y: y / len(y),
        lambda y: y - 0.5 * torch.cat([torch.zeros_like(y[:1]), y[:-1]]),
        lambda y: y - 0.5 * y[:1] * (torch.arange(len(y))[:, None] > 0),
        lambda y: y - 0.5 * y[-1:],
    ],
    ids=["mean", "number", "one before", "first", "last"],
)
def test_every_dependence_on_the_batch_is_refused(mixed: Callable[[Tensor], Tensor]) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return mixed(self.fc(x.flatten(1)))

    examples = torch.rand(8, 1, 4, 4)
    with pytest.raises(InputError, match="that do not depend on its batch"):
        check_independence(Mixing(), examples)
    check_independence(Mixing().fc, examples.flatten(1))


def test_logits_that_are_not_finite_are_not_taken_for_dependence() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).where(torch.arange(len(x))[:, None] < 3, torch.nan)

    with pytest.raises(InputError, match="expected finite logits"):
        check_independence(Broken(), torch.rand(8, 1, 4, 4))
