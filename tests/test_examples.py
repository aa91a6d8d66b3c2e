import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from heatsmooth.commands.line import run
from heatsmooth.models import NetworkSpec, build

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_heat_1d_reaches_the_gaussian_average(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("heat_1d", EXAMPLES / "heat_1d.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(tmp_path / "figure.svg") < 0.02
    assert (tmp_path / "figure.svg").stat().st_size > 1000


def test_public_weights_are_taken_as_they_are(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file as the CIFAR-10 ResNets are published: within a training's state, parallel names, no counters."""
    monkeypatch.syspath_prepend(EXAMPLES.parent)
    network = build(NetworkSpec("examples.public_resnet:resnet20")).network.requires_grad_(False)
    for name, tensor in network.named_buffers():
        if name.endswith("running_mean"):
            tensor.normal_(0, 0.1)
    state = {f"module.{name}": t for name, t in network.state_dict().items() if "num_batches_tracked" not in name}
    torch.save({"state_dict": state, "best_prec1": 91.7}, "public.th")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    np.savez("images.npz", images=pixels, labels=np.arange(8))
    model = ["--model", "examples.public_resnet:resnet20"]
    inputs = ["--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
    data = ["--data", "npz:images.npz", "--sigma", "0.25", "--device", "cpu", "--quiet"]
    assert run(["check", "--from", "public.th", *model, *inputs, *data, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["parameters"], facts["batch_norm_layers"], facts["input"]) == (269_722, 19, [3, 32, 32])
    smooth = ["smooth", "--from", "public.th", *model, *inputs, *data, "--batch-size", "4", "--out", "smoothed"]
    assert run(smooth) == 0
    certify = ["certify", *model, *data, "--images", "2", "--n", "50", "--n0", "10"]
    assert run([*certify, "--from", "smoothed", "--out", "certified"]) == 0
    assert run([*certify, *inputs, "--from", "public.th", "--out", "before"]) == 0
