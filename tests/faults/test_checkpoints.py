"""Damaged and malicious files of weights: refused in one line, and nothing in them runs."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from heatsmooth import InputError
from heatsmooth.models import load, load_state, model_hash, save
from heatsmooth.models.archives import check_archive, tensors_only
from heatsmooth.training.loop import STATE_FILE
from tests.conftest import tiny_classifier
from tests.faults.processes import SCALE, Command


class Malice:
    """A pickle of this touches a file when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.trace}",)


def malicious_files(folder: Path, trace: Path) -> list[Path]:
    """Pickles that would run code, in every clothing."""
    malice = {"fc.weight": Malice(trace)}
    plain, archive = pickle.dumps(malice), io.BytesIO()
    torch.save(malice, archive)
    contents = {
        "plain.pt": plain,
        "archive.pt": archive.getvalue(),
        "archive.pth": archive.getvalue(),
        "model.safetensors": plain,
        "archive.safetensors": archive.getvalue(),
        "program.pt2": archive.getvalue(),
        "no-suffix": plain,
    }
    torch.save(malice, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    for name, member in (("script.pt", "script/data.pkl"), ("script-constants.pt", "script/constants.pkl")):
        with zipfile.ZipFile(folder / name, "w") as script:
            script.writestr("script/code/__torch__.py", "")
            script.writestr("script/version", "3\n")
            script.writestr(member, plain)
    return sorted(folder.iterdir())


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(data: Path, tmp_path: Path) -> None:
    trace, folder = tmp_path / "it-ran", tmp_path / "files"
    folder.mkdir()
    for file in malicious_files(folder, trace):
        with pytest.raises(InputError, match=str(file)):
            load(file, model="small", channels=1)
    words = ["smooth", "--data", f"npz:{data}", "--from", folder / "archive.pt", "--model", "small", "--sigma", "0.25"]
    ended = Command([*words, "--out", tmp_path / "out"], tmp_path).end()
    assert ended.refused(), ended
    assert "got a pickle that holds code" in ended.err
    assert not trace.exists()
    pickle.loads((folder / "plain.pt").read_bytes())
    assert trace.exists(), "the malice of this test would have worked"


def test_torch_export_cannot_fall_back_to_code(tmp_path: Path) -> None:
    """By itself it does: ``torch.export.load`` retries without the safeguard."""
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), tmp_path / "good.pt2")
    malice = io.BytesIO()
    torch.save({"weight": Malice(tmp_path / "it-ran")}, malice)
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for part in good.infolist():
            bad.writestr(part.filename, malice.getvalue() if part.filename.endswith(".pt") else good.read(part))
    with tensors_only():
        torch.export.load(tmp_path / "good.pt2")
        with pytest.raises(pickle.UnpicklingError):
            torch.export.load(tmp_path / "bad.pt2")
    assert not (tmp_path / "it-ran").exists()


def test_a_program_that_would_run_code_is_refused(tmp_path: Path) -> None:
    test_torch_export_cannot_fall_back_to_code(tmp_path)
    load(tmp_path / "good.pt2", model="program")
    with pytest.raises(InputError, match="got a pickle that holds Python code"):
        load(tmp_path / "bad.pt2", model="program")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "weights.pt", "legacy.pt"])
def test_flipped_bytes_are_refused_or_change_nothing(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A legacy ``.pt`` has no checksum: there, what is read is at least well-formed."""
    chance, file = random.Random(name), tmp_path / name
    model = tiny_classifier()
    if file.suffix == ".pt":
        torch.save(model.network.state_dict(), file, _use_new_zipfile_serialization=name == "weights.pt")
    else:
        save(model, file)
    content, count, refused = file.read_bytes(), 60 * SCALE, 0
    facts: dict[str, Any] = {"model": "small", "channels": 1, "mean": (0.5,), "std": (0.25,)}
    expected = model_hash(load(file, **facts))
    for number in range(count):
        damaged = bytearray(content)
        reach = len(content) if number % 2 else min(len(content), 6000)
        for _ in range(chance.choice((1, 1, 3))):
            damaged[chance.randrange(reach)] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            damaged = damaged[: chance.randrange(len(damaged))]
        file.write_bytes(damaged)
        try:
            found = model_hash(load(file, **facts))
        except InputError:
            refused += 1
            continue
        assert found == expected or name == "legacy.pt", number
    assert refused > 0
    record_property("checkpoints damaged", count)


def test_lying_headers_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"

    def header(value: Any, length: int | None = None, body: bytes = bytes(64)) -> bytes:
        text = json.dumps(value).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + body

    good = {"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    file.write_bytes(header(good))
    assert load_state(file)[0]["a"].shape == (4, 4)
    for content in (
        header(good, length=2**63),
        header(good, length=10**9),
        header(good, length=0),
        header(good, body=b""),
        header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 64]}}),
        header({"a": {"dtype": "F32", "shape": [400, 4], "data_offsets": [0, 6400]}}),
        header({"a": {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}}),
        header({"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [64, 0]}}),
        header({"a": {"dtype": "X99", "shape": [4, 4], "data_offsets": [0, 64]}}),
        header({"__metadata__": {"heatsmooth": "[1]"}, **good}),
        header({"__metadata__": {"heatsmooth": "{" * 100}, **good}),
        header({"__metadata__": {"heatsmooth": json.dumps({"sha256": "0" * 64})}, **good}),
        header([good]),
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"w\.safetensors"):
            load_state(file)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": 10**12},
        {"classes": -1},
        {"classes": "ten"},
        {"channels": 0},
        {"architecture": {}},
        {"architecture": "os:getcwd"},
        {"mean": 3},
        {"mean": ["x"]},
        {"std": [0]},
        {"std": [0.1, 0.2, 0.3]},
        {"size": "large"},
    ],
)
def test_metadata_that_describes_no_network_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    spec = {"architecture": "small", "classes": 10, "channels": 1, "mean": [0.5], "std": [0.25], "size": 28}
    state = {name: tensor.contiguous() for name, tensor in tiny_classifier().network.state_dict().items()}
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(state, file, {"heatsmooth": json.dumps(spec)})
    load(tmp_path)
    safetensors.torch.save_file(state, file, {"heatsmooth": json.dumps(spec | change)})
    with pytest.raises(InputError):
        load(tmp_path)


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(64 * 2**20))
    assert bomb.stat().st_size < 2**17
    with pytest.raises(InputError, match="unpack to 67,108,"):
        load(bomb, model="small")
    check_archive(Path(__file__))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3).to_sparse(),
        torch.zeros(1, device="meta"),
        torch.zeros(10, 128, dtype=torch.complex64),
        torch.full((10, 128), torch.nan),
    ],
    ids=["sparse", "meta", "complex", "nan"],
)
def test_tensors_that_are_no_weights_are_refused(
    tensor: torch.Tensor, data: Path, tmp_path: Path, commands: dict[str, list[str]]
) -> None:
    state = tiny_classifier().network.state_dict()
    if tensor.shape == (10, 128):
        tensor = tensor[:, :1].expand(state["fc.weight"].shape).contiguous()
    state["fc.weight"] = tensor
    torch.save(state, tmp_path / "w.pt")
    words = ["attack", "--data", f"npz:{data}", "--from", tmp_path / "w.pt", "--model", "small", "--quiet"]
    ended = Command([*words, "--out", tmp_path / "out"], tmp_path).end()
    assert ended.refused(), ended


@pytest.mark.parametrize(
    "change", ["settings", "status", "seconds", "command", "everything", "list", "deep", "bytes", "folder"]
)
def test_a_run_json_of_wrong_types_is_refused(
    change: str, commands: dict[str, list[str]], finished: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("smooth", "certify"):
        out = tmp_path / name
        out.mkdir()
        info = json.loads((finished[name] / "run.json").read_text())
        contents = {
            "everything": "{}",
            "list": "[]",
            "deep": "[" * 100_000,
            "seconds": json.dumps(info | {"seconds": float("nan")}),
        }
        if change == "bytes":
            (out / "run.json").write_bytes(b"\xff\xfe\x00")
        elif change == "folder":
            (out / "run.json").mkdir()
        else:
            (out / "run.json").write_text(contents.get(change, json.dumps(info | {change: [1]})))
        ended = Command([*commands[name], "--out", out], tmp_path).end()
        assert ended.refused(), ended
        assert "run.json" in ended.err


def test_a_damaged_state_is_refused(commands: dict[str, list[str]], tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = Command([*commands["train"], "--epochs", "500", "--out", out], tmp_path)
    while command.running() and not (out / STATE_FILE).exists():
        pass
    assert command.kill()
    content = bytearray((out / STATE_FILE).read_bytes())
    content[-5] ^= 4
    (out / STATE_FILE).write_bytes(content)
    ended = Command([*commands["train"], "--epochs", "500", "--out", out], tmp_path).end()
    assert ended.refused(), ended
    assert "the weights that were written" in ended.err
