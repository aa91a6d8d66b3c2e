"""TorchScript and torch.export programs."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import heatsmooth as hs
from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.models import for_inference, load, model_hash
from tests.conftest import tiny_classifier

KINDS = ["script.pt", "frozen.pt", "export.pt2"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in network, with its normalisation outside, in each form."""
    path = tmp_path_factory.mktemp("programs")
    network, x = tiny_classifier().eval().network, torch.rand(4, 1, 28, 28)
    with warnings.catch_warnings(action="ignore"):
        traced = torch.jit.trace(network, x)
        torch.jit.save(traced, path / "script.pt")
        torch.jit.save(torch.jit.freeze(traced), path / "frozen.pt")
        batch = torch.export.Dim("batch", min=1, max=4096)
        torch.export.save(torch.export.export(network, (x,), dynamic_shapes=({0: batch},)), path / "export.pt2")
        torch.export.save(torch.export.export(network, (x,)), path / "static.pt2")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_computes_what_the_network_did(programs: Path, kind: str) -> None:
    model, x = load(programs / kind, model="program", mean=(0.5,), std=(0.25,)), torch.rand(60, 1, 28, 28)
    expected = tiny_classifier().eval()
    torch.testing.assert_close(model(x), expected(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(for_inference(model, x)(x), expected(x), rtol=1e-4, atol=1e-5)
    other = load(programs / kind, model="program")
    assert model_hash(model) not in {model_hash(other), model_hash(expected)}
    with pytest.raises(InputError, match="got a program"):
        hs.smooth(model, [x], sigma=0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_programs_are_certified_and_attacked_but_not_smoothed(
    programs: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (
        f"--data fashion-mini --from {programs / kind} --model program --mean 0.5 --std 0.25 --quiet --json".split()
    )
    some = ["--images", "3"]
    assert run(["certify", *common, *some, "--sigma", "0.25", "--n", "100", "--out", str(tmp_path / "c")]) == 0
    assert run(["attack", *common, *some, "--steps", "3", "--out", str(tmp_path / "a")]) == 0
    certified, attacked = map(json.loads, capsys.readouterr().out.splitlines())
    assert certified["images"] == attacked["images"] == 3
    assert run(["smooth", *common, "--sigma", "0.25", "--out", str(tmp_path / "s")]) == 2
    message = capsys.readouterr().err
    assert "got a program" in message
    assert message.count("\n") == 1


def test_what_is_no_program_is_refused(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("text")
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.pt")
    for file in ("text.pt", "weights.pt", "none.pt"):
        with pytest.raises(InputError, match="program"):
            load(tmp_path / file, model="program")
    with pytest.raises(InputError, match="state dict"):
        load(programs / "script.pt", model="small")
    with pytest.raises(InputError, match="expected a network that takes images"):
        hs.certify(load(programs / "static.pt2", model="program"), torch.rand(1, 1, 28, 28), sigma=0.25, n=100)


def test_a_network_without_gradient_is_not_attacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.flatten(1)[:, :10] > 0.5).float()

    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(Rounded()), tmp_path / "rounded.pt")
    words = f"attack --data fashion-mini --images 2 --from {tmp_path}/rounded.pt --model program --out {tmp_path}/o"
    assert run([*words.split(), "--quiet"]) == 2
    assert "gradient to the pixels" in capsys.readouterr().err
