"""What ``check`` understands, and what it warns of."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from heatsmooth.checking import inspect, try_out
from heatsmooth.commands.line import run
from heatsmooth.data import ImageSet
from heatsmooth.models import Classifier, NetworkSpec, save
from tests.conftest import tiny_classifier


class Brightness(nn.Module):
    """Ten classes by the mean of an image that is normalised to mean 0, deviation ½: each class a tenth of [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter((torch.arange(10) / 10 + 0.05 - 0.5) / 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -100 * (x.mean((1, 2, 3))[:, None] - self.centres).square()


def shades(labels: torch.Tensor | None = None) -> ImageSet:
    """200 grey images, and the tenth that their grey is in."""
    grey = (torch.arange(200) + 0.5) / 200
    tenth = (grey * 10).long()
    return ImageSet.of("grey", grey.view(-1, 1, 1, 1).expand(-1, 1, 8, 8), tenth if labels is None else labels)


def classifier(mean: float = 0.5, std: float = 0.5) -> Classifier:
    return Classifier(Brightness(), NetworkSpec("brightness", 10, 1, (mean,), (std,))).eval()


def test_a_good_network_gives_no_warning() -> None:
    facts, warnings = try_out(classifier(), shades(), sigma=0.1)
    assert (facts.accuracy or 0.0) > 0.98
    assert (facts.accuracy_under_noise or 0.0) > 0.7
    assert warnings == []


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.0, 1 / 255), (0.5, 0.02)])
def test_a_wrong_range_is_noticed(mean: float, std: float) -> None:
    facts, warnings = try_out(classifier(mean, std), shades(), sigma=0.1)
    assert (facts.accuracy or 1.0) < 0.7
    assert any("the range looks wrong" in warning for warning in warnings), warnings


def test_other_numberings_are_noticed() -> None:
    tenth = shades().known_labels()
    shuffled = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])[tenth]
    assert "another numbering" in try_out(classifier(), shades(shuffled), sigma=0.1)[1][0]
    assert "shifted by +1" in try_out(classifier(), shades((tenth - 1).clamp_min(0)), sigma=0.1)[1][-1]
    assert "20 classes" in try_out(classifier(), replace(shades(), class_names=("x",) * 20), sigma=0.1)[1][0]
    assert "labels up to 12" in try_out(classifier(), shades(tenth + 3), sigma=0.1)[1][0]


def test_a_constant_answer_and_missing_labels() -> None:
    grey = replace(shades(), labels=None)
    assert "every image is class" in try_out(classifier(-50.0), grey, sigma=0.1)[1][0]
    assert try_out(classifier(), grey, sigma=0.1)[1] == []


def test_how_it_computes() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 10))
    facts, warnings = inspect(Classifier(network, NetworkSpec("mine", 10, 1)).eval(), torch.rand(8, 1, 8, 8))
    assert warnings == []
    assert (facts.parameters, facts.classes, facts.input) == (1498, 10, (1, 8, 8))
    assert facts.batch_norm_layers == facts.batch_norm_with_running_statistics == 1
    assert facts.batch_norm_folded_for_speed == facts.dropout_layers == 1

    sharp = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))
    _, warnings = inspect(Classifier(sharp, NetworkSpec("mine", 10, 1)).eval(), torch.rand(8, 1, 8, 8))
    assert [warning[:25] for warning in warnings] == ["answers are probabilities"]

    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            moods = nn.functional.dropout(x.flatten(1)[:, :10], training=True)
            return (moods - moods.mean(0)).detach()

    facts, warnings = inspect(Classifier(Bad(), NetworkSpec("bad")).eval(), torch.rand(8, 1, 8, 8))
    assert not facts.deterministic
    assert not facts.gradient_to_the_pixels
    assert [text.split(":")[0] for text in warnings] == [
        "two passes differ",
        "logits depend on the other images of the batch",
        "no gradient reaches the pixels",
    ]


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_classifier(), tmp_path / "model.safetensors")
    assert run(["check", "--from", str(tmp_path), "--json", "--quiet"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["architecture"], facts["input"], facts["mean"]) == ("small", [1, 32, 32], [0.5])
    assert run(["check", "--from", str(tmp_path), "--data", "fashion-mini", "--images", "50", "--quiet"]) == 0
    assert "accuracy under noise" in capsys.readouterr().out
    np.savez(tmp_path / "i.npz", images=np.zeros((20, 28, 28)))
    assert run(["check", "--from", str(tmp_path), "--data", f"npz:{tmp_path}/i.npz", "--quiet"]) == 0
    assert "warning: every image is class" in capsys.readouterr().out
    assert run(["check", "--from", str(tmp_path / "none"), "--quiet"]) == 2
    assert run(["check", "--from", str(tmp_path), "--image-size", "1", "--sigma", "0", "--quiet"]) == 2
