"""The command line as a user meets it: real processes, one-line errors, exit codes."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from heatsmooth.commands.line import COMMANDS, run
from heatsmooth.models import load_state, save
from tests.conftest import refused, tiny_classifier

FAST = ["--limit-train", "256", "--batch-size", "64", "--quiet", "--device", "cpu"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network")
    save(tiny_classifier(), path / "model.safetensors")
    return path


def test_help_comes_fast_and_without_torch() -> None:
    for name in COMMANDS:
        code = f"run([{name!r}, '--help']); assert 'torch' not in sys.modules, sys.modules.keys()"
        code = f"import sys; from heatsmooth.commands.line import run; {code}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert f"heatsmooth {name} " in done.stdout


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("heatsmooth ")
    assert run([]) == 0
    assert "smooth" in capsys.readouterr().out


def test_train_and_smooth_from_end_to_end(fashion: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = f"train --data {fashion} --epochs 2 --lr 0.05 --json --out {tmp_path}/a".split()
    assert run([*train, *FAST]) == 0
    first = json.loads(capsys.readouterr().out)
    smooth = [*f"smooth --data {fashion} --from {tmp_path}/a --sigma 0.25 --out {tmp_path}/b".split(), *FAST]
    assert run([*smooth, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["teacher_accuracy"] == first["accuracy"]
    assert {"accuracy", "accuracy_under_noise", "seconds", "test_images"} <= summary.keys()
    assert "steps are few" in summary["few_steps"]
    assert run(smooth) == 0
    assert "accuracy under noise" in capsys.readouterr().out
    info = json.loads((tmp_path / "b/run.json").read_text())
    assert info["status"] == "done"
    assert info["settings"]["heat"]["sigma"] == 0.25
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        ".lock",
        ".lock-moment",
        "metrics.jsonl",
        "model.safetensors",
        "run.json",
    ]
    before, after = (load_state(tmp_path / run / "model.safetensors")[0] for run in "ab")
    assert not torch.equal(before["fc.weight"], after["fc.weight"])


def test_smooth_takes_unlabelled_images(tmp_path: Path, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).random((64, 28, 28))
    np.savez(tmp_path / "i.npz", images=images)
    words = f"smooth --data npz:{tmp_path}/i.npz --from {network} --sigma 0.25 --batch-size 32 --quiet --json"
    assert run([*words.split(), "--out", str(tmp_path / "o")]) == 0
    assert "accuracy" not in json.loads(capsys.readouterr().out)


def test_bad_input_is_one_line(tmp_path: Path, network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    good = ["smooth", "--data", "fashion-mini", "--from", network, "--sigma", 0.25, "--out", out, *FAST]

    def changed(option: str, value: object) -> list[object]:
        words = list(good)
        words[words.index(option) + 1] = value
        return words

    np.savez(tmp_path / "wide.npz", images=np.full((4, 28, 28), 3.0), labels=np.arange(4))
    np.savez(tmp_path / "colour.npz", images=np.zeros((4, 28, 28, 3)), labels=np.arange(4))
    np.savez(tmp_path / "labels.npz", images=np.zeros((4, 28, 28)), labels=np.array([0, 1, 2, 30]))
    (tmp_path / "bad.safetensors").write_bytes(b"\x08\x00")
    save(tiny_classifier(classes=5), tmp_path / "five.safetensors")
    assert "--sigma: expected a positive number, got 0.0" in refused(capsys, *changed("--sigma", 0.0))
    assert "got -0.5" in refused(capsys, *changed("--sigma", -0.5))
    assert "--data: expected" in refused(capsys, *changed("--data", "mnist"))
    assert "no such folder" in refused(capsys, *changed("--data", f"imagefolder:{tmp_path}/none"))
    assert "No such file" in refused(capsys, *changed("--data", f"npz:{tmp_path}/none.npz"))
    assert "in [0, 1], got values from 3 to 3" in refused(capsys, *changed("--data", f"npz:{tmp_path}/wide.npz"))
    assert "1 channels" in refused(capsys, *changed("--data", f"npz:{tmp_path}/colour.npz"))
    assert "no such file" in refused(capsys, *changed("--from", tmp_path / "none"))
    assert "safetensors file" in refused(capsys, *changed("--from", tmp_path / "bad.safetensors"))
    assert "weights of small" in refused(capsys, *good, "--model", "resnet20")
    assert "--preset: expected" in refused(capsys, *good, "--preset", "best")
    assert "--mean: expected numbers" in refused(capsys, *good, "--mean", "a,b")
    assert "labels below 10" in refused(capsys, *changed("--data", f"npz:{tmp_path}/labels.npz"))
    assert "labels below 5" in refused(capsys, *changed("--from", tmp_path / "five.safetensors"))
    assert "--out: expected a value, got none" in refused(
        capsys, "smooth", "--data", "fashion-mini", "--from", network, "--sigma", 1
    )
    assert "--method: expected" in refused(capsys, "train", "--data", "fashion-mini", "--method", "x", "--out", out)
    (tmp_path / "file").write_text("")
    assert "writable directory" in refused(capsys, *changed("--out", tmp_path / "file/x"))
    assert "--epochs: expected at least 1" in refused(capsys, *good, "--epochs", 0)
    assert "--epochs: expected a whole number, got '1.5'" in refused(capsys, *good, "--epochs", 1.5)
    assert not out.exists()


def test_a_full_disk_is_one_line_and_leaves_earlier_files(tmp_path: Path, network: Path, fashion: str) -> None:
    """A limit on the size of files stands for a full disk: the checkpoint does not fit."""
    out = tmp_path / "out"
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    code = f"import resource, sys; from heatsmooth.commands.line import main; {limit}; main(sys.argv[1:])"
    words = ["smooth", "--data", fashion, "--from", network, "--sigma", "0.25", "--out", out, *FAST]
    out.mkdir()
    (out / "precious").write_text("old")
    failed = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert failed.returncode == 2
    assert failed.stderr.startswith("heatsmooth: error: ")
    assert failed.stderr.count("\n") == 1
    assert "File too large" in failed.stderr
    assert (out / "precious").read_text() == "old"
    assert not list(out.glob("*.part")) + list(out.glob(".*.part"))
    again = subprocess.run([sys.executable, "-m", "heatsmooth", *map(str, words)], capture_output=True, text=True)
    assert again.returncode == 0


def test_a_really_full_disk(tmp_path: Path, network: Path, fashion: str) -> None:
    """The same on a file system of 1 MB, where this machine lets us make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        words = ["smooth", "--data", fashion, "--from", network, "--sigma", "0.25", "--out", disk / "out", *FAST]
        failed = subprocess.run([sys.executable, "-m", "heatsmooth", *map(str, words)], capture_output=True, text=True)
        assert failed.returncode == 2
        assert failed.stderr.count("\n") == 1
        assert "No space left on device" in failed.stderr
        assert json.loads((disk / "out/run.json").read_text())["status"] == "running"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_too_little_memory_and_an_unknown_device_are_one_line(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["attack", "--data", "fashion-mini", "--from", network, "--out", tmp_path / "a"]
    assert "--device: expected" in refused(capsys, *words, "--device", "abacus")

    def greedy(*_: object) -> None:
        torch.empty(2**50)

    monkeypatch.setattr("heatsmooth.commands.attack.Attack.run", greedy)
    assert "expected to find enough memory" in refused(capsys, *words)


def test_absurd_numbers_are_one_line(network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", "fashion-mini", "--out", tmp_path / "a", "--device", "cpu", "--quiet"]
    noisy = [*data, "--from", network, "--sigma"]
    many = [*noisy, 0.25, "--n", "99999999999999999999", "--images", 1, "--out", tmp_path / "b"]
    assert "--weight-decay: expected 0 or more" in refused(capsys, "train", *data, "--weight-decay", -1)
    assert "got one too large" in refused(capsys, "smooth", *noisy, "1e308", "--limit-train", 64)
    assert "got one too large" in refused(capsys, "certify", *many)


def test_the_error_of_a_network_not_named_gives_the_whole_command(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "named.py").write_text(
        "from torch import nn\n"
        "def grey():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10))\n"
    )
    smooth = "smooth --data fashion-mini --from named:grey --sigma 0.25 --limit-train 64 --quiet --device cpu --out"
    assert run([*smooth.split(), "my  run"]) == 0
    capsys.readouterr()
    certify = f"certify --data fashion-mini --sigma 0.25 --images 2 --n 50 --quiet --device cpu --out {in_tmp}/c"
    words = [*certify.split(), "--from", "my  run"]
    assert run(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    command = line.partition("run: ")[2].strip()
    assert command == f"heatsmooth {shlex.join(words)} --model named:grey"
    assert run(shlex.split(command)[1:]) == 0
    (in_tmp / "x.png").write_bytes((Path(__file__).parents[1] / "examples/shoe.png").read_bytes())
    assert run(["predict", "--from", "my  run", "--", "x.png"]) == 2
    assert capsys.readouterr().err.endswith("run: heatsmooth predict --from 'my  run' --model named:grey -- x.png\n")


def test_a_network_that_no_user_could_name_is_not_offered_as_a_command(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"architecture": "nets:a; rm -rf ~", "classes": 2, "channels": 1, "mean": [], "std": [], "size": None}
    safetensors.torch.save_file({"a": torch.zeros(1)}, "odd.safetensors", {"heatsmooth": json.dumps(spec)})
    assert run(["check", "--from", "odd.safetensors"]) == 2
    line = capsys.readouterr().err
    assert "expected a network as package.module:callable" in line
    assert "run:" not in line
