import json
from pathlib import Path

import pytest

from heatsmooth.cli import run
from heatsmooth.errors import InputError
from heatsmooth.workflows.compare import chosen_recipe
from heatsmooth.workflows.recipes import RECIPES, Given, Smoothed, Trained

SHORT = ["compare", "fashion-small", "--rehearse", "--data", "fashion-mini", "--quiet"]


def test_a_rehearsal_goes_through_every_stage_and_repeating_it_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SHORT, "--out", str(tmp_path), "--json"]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["methods"]) == list(RECIPES["fashion-small"].methods)
    assert all(0 <= row["agreement"] <= 1 for row in found["methods"].values())
    assert (tmp_path / "report.html").stat().st_size > 10_000
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")} | {
        path: path.read_bytes() for path in tmp_path.rglob("model.safetensors")
    }
    assert len(files) > 40
    assert run(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["methods"] == found["methods"]
    assert {path: path.read_bytes() for path in files} == files


def test_seeds_give_a_mean_and_a_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHORT, "--out", str(tmp_path), "--methods", "bootcamp", "--seeds", "0,1"]
    assert run([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["methods"]["bootcamp"]
    single = [json.loads((tmp_path / f"seed-{seed}/bootcamp/run.json").read_text())["model_hash"] for seed in (0, 1)]
    assert single[0] != single[1]
    assert row["agreement_sd"] >= 0
    assert run(words) == 0
    assert "bootcamp" in capsys.readouterr().out


def test_chosen_methods_bring_what_they_are_smoothed_from() -> None:
    chosen = chosen_recipe("cifar10-small", methods=["adversarial-smoothed"])
    assert list(chosen.methods) == ["adversarial", "adversarial-smoothed"]


def test_a_network_can_be_brought_in_place_of_the_baseline() -> None:
    chosen = chosen_recipe("fashion-small", given=True)
    assert isinstance(chosen.methods["undefended"], Given)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_compares_smoothing_with_its_start(name: str) -> None:
    recipe = RECIPES[name]
    assert all(m.start in recipe.methods for m in recipe.methods.values() if isinstance(m, Smoothed))
    assert any(isinstance(m, Smoothed) and m.preset == "bootcamp" for m in recipe.methods.values())
    assert all(m.plan.epochs == 1 for m in recipe.rehearsed().methods.values() if isinstance(m, Trained))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compare", "mnist"], "compare: expected cifar10, imagenet"),
        (["compare", "imagenet"], "name them by --data"),
        (["compare", "imagenet-sample"], "name it by --from"),
        (["compare", "fashion-small", "--methods", "boot"], "--methods: expected some of undefended"),
        (["compare", "fashion-small", "--seeds", "a"], "--seeds: expected whole numbers"),
        (["compare", "fashion-small", "--model", "small"], "--model: expected --from beside it"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="cifar10-small"):
        chosen_recipe("cifar")
