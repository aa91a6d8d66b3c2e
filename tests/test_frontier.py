"""The frontier: a point per share, one page, one sentence; repeating it computes nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from heatsmooth.commands.frontier import Frontier
from heatsmooth.commands.line import run
from heatsmooth.commands.smooth import Smooth
from heatsmooth.errors import InputError
from heatsmooth.models import save
from heatsmooth.results.certificates import read_certificates
from heatsmooth.results.frontier import FrontierPoint, FrontierResult, recommended
from tests.conftest import tiny_classifier


def point(keep: float | None, clean: float, certified: float) -> FrontierPoint:
    return FrontierPoint(name="x", keep=keep, kept=keep, clean=clean, certified=(0.9, certified), mean_radius=0.1)


def test_the_recommendation_is_the_largest_sum_and_says_what_it_costs() -> None:
    points = (point(None, 0.92, 0.04), point(0.95, 0.88, 0.3), point(0.85, 0.8, 0.5), point(0.75, 0.7, 0.52))
    text = recommended(points, (0.0, 0.25), 200, labelled=True)
    assert text.startswith("Recommended: --keep 0.85, with clean accuracy 80.0% instead of 92.0%")
    assert "certified accuracy at 0.25 50.0% instead of 4.0%" in text
    assert "leave the network as it is" in recommended(points[:1], (0.0, 0.25), 200, labelled=True)
    assert "kept answers" in recommended(points, (0.0, 0.25), 200, labelled=False)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_frontier_is_drawn_and_repeating_it_trains_nothing(
    labelled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tiny_classifier(), tmp_path / "n.safetensors")
    random = np.random.default_rng(0)
    images, labels = random.random((120, 28, 28)), random.integers(0, 10, 120)
    if labelled:
        np.savez(tmp_path / "i.npz", images=images, labels=labels)
    else:
        np.savez(tmp_path / "i.npz", images=images)
    words = f"frontier --data npz:{tmp_path}/i.npz --from {tmp_path}/n.safetensors --sigma 0.25 --keeps 0.9,0.8"
    words += f" --images 4 --n 50 --batch-size 40 --quiet --device cpu --out {tmp_path}/out"
    assert run([*words.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [item.get("keep") for item in result["points"]] == [None, 0.9, 0.8]
    assert result["labelled"] is labelled
    assert "smoothed on the same images that are certified" in result["recommendation"]
    indices = [item.index for item in read_certificates(tmp_path / "out/keep-0.9-certified")]
    assert len(indices) == 4
    assert not any(index % 2 for index in indices)
    page = (tmp_path / "out/report.html").read_text()
    assert "What robustness costs" in page
    assert "frontier-1" in page
    assert FrontierResult.read(tmp_path / "out/frontier.json").points[0].keep is None
    monkeypatch.setattr("heatsmooth.training.methods.smoothed", None)
    assert run(words.split()) == 0
    text = capsys.readouterr().out
    assert "as it is" in text
    assert "Recommended: " in text


def test_shares_and_radii_are_checked(tmp_path: Path) -> None:
    good = Smooth.__dataclass_fields__.keys() & Frontier.__dataclass_fields__.keys()
    assert {"images", "network", "sigma", "out", "held_out"} <= good
    from heatsmooth.commands.inputs import ImageFiles, Network

    for wrong in ({"keeps": ()}, {"keeps": (1.0,)}, {"radii": ()}, {"certified": 0}):
        with pytest.raises(InputError, match="expected"):
            Frontier(
                images=ImageFiles(data="fashion-mini"),
                network=Network(source=tmp_path),
                sigma=0.25,
                out=tmp_path,
                **wrong,
            )
