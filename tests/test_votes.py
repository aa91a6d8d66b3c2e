"""The head, and the copy, that predict votes: from one pass, without labels."""

import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heatsmooth.calibration import Calibration
from heatsmooth.errors import InputError
from heatsmooth.exporting.one_pass import OnePassNetwork
from heatsmooth.learnt_radius import LearntRadius
from heatsmooth.models.checkpoint import load_state
from heatsmooth.models.votes import (
    HeadSpec,
    VoteCopy,
    VoteHead,
    Voter,
    load_voter,
    new_head,
    observe,
    one_pass_and_votes,
    save_voter,
    voter_hash,
    votes_of,
)
from heatsmooth.progress import Progress, silent
from heatsmooth.training.votes import learn_votes


class Threshold(nn.Module):
    """Class 1 where the first pixel is above ½: P(class 1 | x + η) = Φ((x₀ − ½)/σ). The logits are far too sharp."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(1, 2)
        self.last.weight.data = torch.tensor([[-50.0], [50.0]])
        self.last.bias.data = torch.tensor([25.0, -25.0])

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(images[:, 0, 0, :1])
        return logits


def flat_images(count: int) -> Tensor:
    """Images of one grey value each, so that mirroring and shifting change nothing."""
    values = torch.linspace(0, 1, count)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    return values.view(-1, 1, 1, 1).expand(-1, 1, 8, 8)


def test_the_head_learns_the_shares_of_the_votes() -> None:
    model = Threshold().eval()
    head = learn_votes(model, flat_images(1000), sigma=0.25, samples=2)
    assert isinstance(head, VoteHead)
    assert not head.training
    assert (head.spec.layer, head.spec.features) == ("last", 1)
    images = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    logits, votes = one_pass_and_votes(model, head, images)
    assert torch.equal(logits, model(images))
    expected = [0.5 * (1 + math.erf((value - 0.5) / 0.25 / math.sqrt(2))) for value in images[:, 0, 0, 0].tolist()]
    np.testing.assert_allclose(votes.softmax(1)[:, 1], expected, atol=0.1)


def test_a_copy_learns_the_shares_and_continues(tmp_path: Path) -> None:
    model = Threshold().eval()
    before = [weight.clone() for weight in model.parameters()]

    def stopping(what: str, done: int, total: int, note: str = "") -> None:
        if what == "learning votes" and total // 2 <= done < total:
            signal.raise_signal(signal.SIGTERM)

    def learn(out: Path, progress: Progress) -> Voter:
        return learn_votes(model, flat_images(1000), sigma=0.25, epochs=20, out=out, progress=progress)

    whole = learn(tmp_path / "whole", silent)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", stopping)
    assert 0 < load_state(tmp_path / "stopped/state.safetensors")[1]["step"] < 20 * 15
    assert voter_hash(learn(tmp_path / "stopped", silent)) == voter_hash(whole)
    assert isinstance(whole, VoteCopy)
    assert not whole.training
    assert all(map(torch.equal, model.parameters(), before))
    images = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    logits, votes = one_pass_and_votes(model, whole, images)
    assert torch.equal(logits, model(images))
    assert torch.equal(votes, votes_of(model, whole, images))
    expected = [0.5 * (1 + math.erf((value - 0.5) / 0.25 / math.sqrt(2))) for value in images[:, 0, 0, 0].tolist()]
    np.testing.assert_allclose(votes.softmax(1)[:, 1], expected, atol=0.1)
    save_voter(whole, tmp_path / "votes.safetensors")
    assert voter_hash(load_voter(tmp_path / "votes.safetensors", model)) == voter_hash(whole)
    with pytest.raises(InputError, match="expected the 1 tensors of the network"):
        load_voter(tmp_path / "votes.safetensors", nn.Flatten())


def test_a_new_head_gives_the_networks_own_answer() -> None:
    model, images = Threshold().eval(), flat_images(5)
    head = new_head(model, images).eval()
    logits, votes = one_pass_and_votes(model, head, images)
    torch.testing.assert_close(votes, logits)
    assert all(torch.equal(part, logits) for part in one_pass_and_votes(model, None, images))


def test_without_a_last_linear_layer_the_head_sees_logits_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()).eval()
    head = new_head(model, flat_images(2))
    assert head.spec == HeadSpec(None, 0, 3)
    assert observe(model, None, flat_images(2)).shape == (2, 3)


def test_a_head_is_stored_and_read(tmp_path: Path) -> None:
    model, images = Threshold().eval(), flat_images(5)
    head = new_head(model, images).eval()
    save_voter(head, tmp_path / "votes.safetensors")
    again = load_voter(tmp_path / "votes.safetensors", model)
    assert voter_hash(again) == voter_hash(head)
    assert torch.equal(one_pass_and_votes(model, again, images)[1], one_pass_and_votes(model, head, images)[1])
    with pytest.raises(InputError, match="expected a head of this network"):
        load_voter(tmp_path / "votes.safetensors", nn.Flatten())
    save_voter(VoteHead(HeadSpec(None, 0, 2)), tmp_path / "other.safetensors")
    assert voter_hash(load_voter(tmp_path / "other.safetensors", model)) != voter_hash(head)


@pytest.mark.parametrize("spec", [{"layer": None, "features": 4}, {"layer": "last", "features": 0}])
def test_a_wrong_shape_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(InputError, match="expected the shape of a head"):
        HeadSpec(**spec, classes=2)  # type: ignore[arg-type]


def test_older_versions_refuse_a_calibration_with_a_head() -> None:
    from heatsmooth.calibration import Calibration

    plain = Calibration(((0.5, 0.1),), 2, 0.1, 0.001, 0.25, 10, 20)
    with_head = Calibration(((0.5, 0.1),), 2, 0.1, 0.001, 0.25, 10, 20, head="abc")
    assert isinstance(plain, LearntRadius)
    assert plain.to_json()["format"] == 1
    assert "head" not in plain.to_json()
    assert with_head.to_json()["format"] == 2
    assert Calibration.from_json(with_head.to_json()) == with_head
    with pytest.raises(InputError, match="expected format 2"):
        Calibration.from_json({**with_head.to_json(), "format": 1})


def test_an_exported_copy_without_finite_votes_claims_nothing() -> None:
    class Broken(VoteCopy):
        def forward(self, images: Tensor) -> Tensor:
            votes = super().forward(images)
            return torch.where(images.flatten(1)[:, :1] > 0.5, -torch.inf, votes)

    calibration = Calibration(((0.9, 0.2),), 2, 0.05, 0.001, 0.25, 10, 20)
    model, images = Threshold().eval(), torch.tensor([0.1, 0.9]).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    *_, radius = OnePassNetwork(model, sigma=0.25, calibration=calibration, head=Broken(model)).eval()(images)
    assert radius[0] == pytest.approx(0.2)
    assert radius[1] == 0
