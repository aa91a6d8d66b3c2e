import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from heatsmooth.commands.attack import AttackSettings
from heatsmooth.commands.compare import Compare, OwnNetwork, RecipeChanges
from heatsmooth.commands.line import run
from heatsmooth.comparing.recipe import Given, Smoothed, Trained
from heatsmooth.comparing.recipes import RECIPES
from heatsmooth.errors import InputError
from heatsmooth.models import save
from heatsmooth.reporting.compared import means_table, proven_means_table
from heatsmooth.results.certificates import read_certificates
from heatsmooth.results.comparison import Comparison, Measure, MethodFigures
from heatsmooth.runs import read_json
from heatsmooth.training.field import Macer
from tests.conftest import colour_folders, refused, tiny_classifier

SHORT = ["compare", "fashion-small", "--rehearse", "--data", "fashion-mini", "--quiet"]


def test_a_rehearsal_goes_through_every_stage_and_repeating_it_attacks_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SHORT, "--out", str(tmp_path), "--json"]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [*found["methods"], *found["proven"]] == list(RECIPES["fashion-small"].methods)
    assert 0 <= found["proven"]["distilled"]["certified_at_36/255"] <= found["proven"]["distilled"]["one_pass_accuracy"]
    assert found["proven_images"] == 4
    assert all(0 <= row["agreement"] <= 1 for row in found["methods"].values())
    origins = {name: gain["from"] for name, gain in found["gains"].items()}
    smoothed = dict.fromkeys(("paper-imagenet", "bootcamp", "bootcamp-strong"), "undefended")
    assert origins == smoothed | {"adversarial-smoothed": "adversarial"}
    for kind in ("certified", "top-2"):
        rise = found["gains"]["bootcamp"][kind]["one_pass_accuracy"]
        assert rise["difference_interval"][0] <= rise["difference"] <= rise["difference_interval"][1]
    times = found["average_certified_radius_ratios"]["bootcamp"]
    assert (
        times["undefended"]["factor"] == found["gains"]["bootcamp"]["certified"]["average_certified_radius"]["factor"]
    )
    page = (tmp_path / "report.html").read_text()
    assert "What each kind of guarantee costs and gives" in page
    assert "Audit of the deterministic radii" in page
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")} | {
        path: path.read_bytes() for path in tmp_path.rglob("model.safetensors")
    }
    assert len(files) > 40
    assert list(tmp_path.rglob("gallery.npz"))
    monkeypatch.setattr(AttackSettings, "adversarial", None)
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert found["seconds"] > 0
    assert run(words[:-1]) == 0
    shown = capsys.readouterr().out
    assert "against that of" in shown
    assert "Networks that are Lipschitz by construction, 4 images" in shown
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize("source", ["{}/mine.safetensors", "brought:network"])
def test_a_brought_network_is_smoothed_on_other_images_than_it_is_certified_on(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tiny_classifier(channels=3), tmp_path / "mine.safetensors")
    (tmp_path / "brought.py").write_text(
        "from tests.conftest import tiny_classifier\n\ndef network():\n    return tiny_classifier(channels=3).network\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = f"compare imagenet-sample --rehearse --quiet --json --device cpu --from {source.format(tmp_path)}"
    words += f" {colour_folders(tmp_path)} --n-wrong 20 --out {tmp_path}/out"
    assert run(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["methods"]) == {"undefended", "bootcamp"}
    assert found["certified_images_unseen"]
    made, certified = (
        read_json(tmp_path / f"out/seed-0/{name}/run.json") for name in ("bootcamp", "bootcamp-certified")
    )
    assert made["settings"]["data"]["name"] == f"imagefolder:{tmp_path}/smoothing"
    assert certified["settings"]["data"]["name"] == f"imagefolder:{tmp_path}/held-out"
    assert certified["settings"]["certificate"]["n_wrong"] == 20
    labels = {certificate.label for certificate in read_certificates(tmp_path / "out/seed-0/bootcamp-certified")}
    assert labels <= {0, 2, 4, 6, 8}
    assert not (tmp_path / "out/seed-0/bootcamp-top-5").exists()


def test_images_that_are_smoothed_on_and_certified_are_noticed(tmp_path: Path) -> None:
    for name in ("all", "others"):
        (tmp_path / name / "n0").mkdir(parents=True)
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / name / "n0" / "0.png")
    changes = RecipeChanges(data=f"imagefolder:{tmp_path}/all", image_size=16)
    own = OwnNetwork(source=tmp_path)
    alike = Compare(recipe="imagenet-sample", changes=changes, own=own)
    apart = replace(alike, changes=replace(changes, smooth_on=f"imagefolder:{tmp_path}/others"))
    assert [compare.experiment(0).certifies_unseen_images() for compare in (alike, apart)] == [False, True]


def test_seeds_give_a_mean_and_a_spread(fashion: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHORT, "--data", fashion, "--out", str(tmp_path), "--methods", "bootcamp", "--seeds", "0,1"]
    assert run([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["methods"]["bootcamp"]
    single = [json.loads((tmp_path / f"seed-{seed}/bootcamp/run.json").read_text())["model_hash"] for seed in (0, 1)]
    assert single[0] != single[1]
    assert row["agreement_sd"] >= 0
    assert run(words) == 0
    assert "bootcamp" in capsys.readouterr().out
    assert "Methods over all seeds" in (tmp_path / "report.html").read_text()


def test_chosen_methods_bring_what_they_are_smoothed_from() -> None:
    changes = RecipeChanges(methods=("adversarial-smoothed",))
    chosen = Compare(recipe="cifar10-small", changes=changes).resolved()
    assert list(chosen.methods) == ["adversarial", "adversarial-smoothed"]
    assert list(chosen.compared) == ["adversarial-smoothed"]


def test_a_student_can_be_compared_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SHORT, "--out", str(tmp_path), "--methods", "distilled"]) == 0
    assert "Deterministic: the network itself keeps its class" in capsys.readouterr().out
    found = Comparison.read(tmp_path / "comparison.json")
    assert found.methods == {}
    assert found.sigma is None
    assert read_json(tmp_path / "seed-0/distilled/run.json")["settings"]["student"]["architecture"] == "lipschitz-tiny"


def test_deterministic_certificates_have_a_table_of_their_own() -> None:
    figures: list[dict[Measure, float | None]] = [
        {Measure.ONE_PASS_ACCURACY: 0.6, Measure.CERTIFIED_AT_36: share, Measure.ACR: 0.25} for share in (0.4, 0.5)
    ]
    one = Comparison(methods={}, proven={"distilled": MethodFigures.of(figures)}, proven_images=10_000, seeds=(0, 1))
    table = proven_means_table([("runs", one)])
    assert table is not None
    assert table.cells[0][:4] == ["distilled", "10,000", "60.0% ± 0.0%", "45.0% ± 7.1%"]
    assert {column.about for column in table.columns[3:]} == {"network, in one pass · deterministic"}
    assert means_table([("runs", one)]) is None
    assert "proven" not in Comparison(methods={}).to_json()


def test_a_network_can_be_brought_in_place_of_the_baseline() -> None:
    chosen = Compare(recipe="fashion-small", own=OwnNetwork(source=Path("mine"))).resolved()
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
        (["compare", "mnist"], "RECIPE: expected cifar10, imagenet"),
        (["compare", "imagenet"], "name them by --data"),
        (["compare", "imagenet-sample"], "name it by --from"),
        (["compare", "fashion-small", "--methods", "boot"], "--methods: expected some of undefended"),
        ([*SHORT, "--smooth-on", "none"], "--data: expected fashion-mini"),
        (
            ["compare", "fashion-small", "--data", "fashion-mini", "--n-wrong", "-3"],
            "--n-wrong: expected from 1 to --n",
        ),
        (["compare", "fashion-small", "--seeds", "a"], "--seeds: expected whole numbers"),
        (["compare", "fashion-small", "--model", "small"], "--model: expected --from beside it"),
    ],
)
def test_wrong_use_is_one_line(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # where runs would go if it were not refused
    assert complaint in refused(capsys, *words)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="cifar10-small"):
        Compare(recipe="cifar").resolved()


def test_the_field_is_rehearsed_on_a_brought_network_beside_the_dial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One method of each kind: with each seed, with a denoiser in front, and with held-out images."""
    save(tiny_classifier(), tmp_path / "mine.safetensors")
    random = np.random.default_rng(0)
    np.savez(tmp_path / "i.npz", images=random.random((130, 28, 28)), labels=random.integers(0, 10, 130))
    words = f"compare cifar10-public --rehearse --quiet --json --device cpu --data npz:{tmp_path}/i.npz"
    words += f" --from {tmp_path}/mine.safetensors --out {tmp_path}/out --seeds 0,1"
    assert run([*words.split(), "--methods", "undefended,bootcamp,keep-0.95,denoised"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["methods"]) == {"undefended", "bootcamp", "keep-0.95", "denoised"}
    assert len(found["average_certified_radius_ratios"]["bootcamp"]["undefended"]["by_seed"]) == 1, "certified once"
    made = read_json(tmp_path / "out/seed-0/keep-0.95/run.json")
    assert made["summary"]["keep"] == 0.95
    indices = [item.index for item in read_certificates(tmp_path / "out/seed-0/denoised-certified")]
    assert not any(index % 2 for index in indices)


def test_every_label_free_method_of_the_field_is_in_the_public_recipe() -> None:
    methods = RECIPES["cifar10-public"].methods
    rivals = {type(method.rival).__name__ for method in methods.values() if isinstance(method, Smoothed)}
    assert rivals == {"NoneType", "Consistency", "Macer", "SmoothMix", "Denoising"}
    assert isinstance(methods["undefended"], Given)
    trial = RECIPES["cifar10-public"].trials["macer"]
    tried = trial.with_value(trial.method, 36.0)
    assert isinstance(tried, Smoothed)
    assert tried.rival == Macer(radius_weight=36.0, radius_copies=4)
    with pytest.raises(InputError, match="expected your network"):
        Compare(recipe="cifar10-public").resolved()
