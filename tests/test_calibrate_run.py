"""``heatsmooth calibrate`` and what uses it."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from heatsmooth.certification.settings import Settings
from heatsmooth.commands.certified import CertifiedRun
from heatsmooth.commands.line import run
from heatsmooth.data import load_images
from heatsmooth.errors import InputError
from heatsmooth.models import load as load_model
from heatsmooth.models import model_hash
from heatsmooth.results.certificates import read_certificates
from heatsmooth.results.schema import to_json
from heatsmooth.runs import Records, Run
from tests.conftest import certificate_of, tiny_classifier


@pytest.fixture(scope="module")
def certified(network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, and two certified sets of images."""
    path = tmp_path_factory.mktemp("calibrated")
    shutil.copytree(network, path / "network")
    certify = f"certify --data fashion-mini --from {path}/network --sigma 0.25 --n 100 --n0 20 --quiet --device cpu"
    assert run(f"{certify} --stride 10 --out {path}/calibration".split()) == 0
    assert run(f"{certify} --stride 19 --images 60 --out {path}/held-out".split()) == 0
    assert run(f"{certify} --images 20 --n-wrong 50 --out {path}/fewer".split()) == 0
    shutil.copytree(path / "calibration", path / "unfinished")
    lines = (path / "calibration/certificates.jsonl").read_text().splitlines(keepends=True)
    (path / "unfinished/certificates.jsonl").write_text("".join(lines[:150]))
    return path


def test_a_model_is_calibrated_and_used(certified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = f"calibrate --from {certified}/network --certificates {certified}/calibration --epsilon 0.1"
    words += f" --held-out {certified}/held-out --out {tmp_path}/calibrated"
    assert run([*words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 200
    assert found["subject"] == "average"
    assert found["basis"].startswith("conformal")
    assert found["held_out"]["images"] == 54  # of 60, as every tenth was calibrated on
    assert found["held_out"]["interval"][1] >= 0.9
    assert run(words.split()) == 0
    assert "held out:" in capsys.readouterr().out
    one_pass = f"one-pass --data fashion-mini --from {tmp_path}/calibrated --stride 10 --quiet --json --device cpu"
    assert run([*one_pass.split(), "--out", str(tmp_path / "radii")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["images"] == 200
    assert 0 < summary["mean_claimed_radius"] < 0.6
    assert "certified_accuracy" not in summary
    rows = [json.loads(line) for line in (tmp_path / "radii/one_pass.jsonl").read_text().splitlines()]
    assert {row["basis"] for row in rows} == {found["basis"]}
    Image.fromarray(load_images("fashion-mini", "test").raw(torch.arange(1))[0, 0].numpy()).save(tmp_path / "a.png")
    assert run(["predict", "--from", str(tmp_path / "calibrated"), "--json", str(tmp_path / "a.png")]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert row["one_pass_radius"] <= rows[0]["radius"] + 1e-9


def test_what_does_not_belong_together_is_refused(
    certified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from heatsmooth.models import save
    from tests.conftest import tiny_classifier

    save(tiny_classifier(), tmp_path / "other.safetensors")
    capsys.readouterr()
    for words, message in (
        (f"--from {tmp_path}/other.safetensors --certificates {certified}/calibration", "expected those of the model"),
        (f"--from {certified}/network --certificates {tmp_path}", "expected a 'certify' run, got none"),
        (f"--from {certified}/network --certificates {certified}/network", "expected a 'certify' run, got 'train'"),
        (f"--from {certified}/network --certificates {certified}/held-out --epsilon 0.001", "expected"),
        (
            f"--from {certified}/network --certificates {certified}/unfinished",
            "expected certificates of all 200 images",
        ),
        (f"--from {certified}/network --certificates {certified}/fewer", "without --n-wrong"),
        (
            f"--from {certified}/network --certificates {certified}/calibration --epsilon 0.1 "
            f"--held-out {certified}/calibration",
            "expected images not calibrated on",
        ),
    ):
        assert run(["calibrate", *words.split(), "--out", str(tmp_path / "x")]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
    words = f"one-pass --data fashion-mini --from {certified}/network --out {tmp_path}/y --device cpu"
    assert run(words.split()) == 2
    assert "expected a calibrated model" in capsys.readouterr().err


def test_weights_of_another_format_are_stored_as_ones_that_can_be_read(tmp_path: Path) -> None:
    torch.save(tiny_classifier(channels=3).network.state_dict(), tmp_path / "w.pt")
    images = np.random.default_rng(0).random((40, 12, 12, 3), dtype=np.float32)
    np.savez(tmp_path / "i.npz", images=images, labels=np.arange(40) % 10)
    source = f"--from {tmp_path}/w.pt --model small"
    certify = f"certify --data npz:{tmp_path}/i.npz {source} --sigma 0.25 --n 50 --n0 10 --out {tmp_path}/c"
    assert run([*certify.split(), "--quiet", "--device", "cpu"]) == 0
    calibrate = f"calibrate {source} --certificates {tmp_path}/c --epsilon 0.4 --out {tmp_path}/calibrated"
    assert run(calibrate.split()) == 0
    assert model_hash(load_model(tmp_path / "calibrated")) == model_hash(load_model(tmp_path / "w.pt", model="small"))


def test_an_own_network_keeps_the_size_of_its_images_from_smoothing_to_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mynet.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    pool = nn.AdaptiveAvgPool2d(4)\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(128, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    torch.manual_seed(0)
    torch.save(importlib.import_module("mynet").build().state_dict(), tmp_path / "w.pt")
    for number in range(40):
        folder = tmp_path / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 128 * (1 + number % 2), (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    common = f"--model mynet:build --data imagefolder:{tmp_path}/photos --device cpu --quiet"
    raw = f"smooth --from {tmp_path}/w.pt {common} --sigma 0.25 --batch-size 10 --out {tmp_path}/s"
    assert run([*raw.split(), "--mean", "0.5"]) == 2
    assert "--mean, --std: expected both or none" in capsys.readouterr().err
    assert run([*raw.split(), "--mean", "127", "--std", "1"]) == 2
    assert "means of images in [0, 1], got 127; divide by 255" in capsys.readouterr().err
    assert run([*raw.split(), "--mean", "0.5", "--std", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tested_on"] == "the images it was smoothed on"
    other = f"certify --from {tmp_path}/s {common} --sigma 0.5 --n 50 --n0 10 --images 2 --json --out {tmp_path}/o"
    assert run(other.split()) == 0
    assert json.loads(capsys.readouterr().out)["note"] == "smoothed for σ=0.25, certified with σ=0.5"
    certify = f"certify --from {tmp_path}/s {common} --sigma 0.25 --n 50 --n0 10 --out {tmp_path}/c"
    assert run(certify.split()) == 0
    assert json.loads((tmp_path / "c/run.json").read_text())["settings"]["data"]["shape"] == [3, 16, 16]
    assert run([*certify.split()[:-1], str(tmp_path / "c"), "--n", "60"]) == 2
    assert "expected the certificate n it was started with, 50, got 60" in capsys.readouterr().err
    calibrate = f"calibrate --from {tmp_path}/s --model mynet:build --certificates {tmp_path}/c --epsilon 0.4"
    assert run([*calibrate.split(), "--out", str(tmp_path / "k")]) == 0
    assert run(f"one-pass --from {tmp_path}/k {common} --out {tmp_path}/p".split()) == 0
    assert json.loads((tmp_path / "p/run.json").read_text())["settings"]["data"]["shape"] == [3, 16, 16]


def test_the_exact_alpha_is_kept_though_its_text_is_rounded(tmp_path: Path) -> None:
    settings = Settings(0.25, n=100, alpha=0.00123456789)
    data = {"name": "x", "images": 2, "shape": [1, 2, 2]}
    certificate = {"data": data, "model": "x", "certificate": settings.describe()}
    with Run(tmp_path, "certify", certificate) as finished:
        finished.update(status="done")
    with Records(tmp_path / "certificates.jsonl") as lines:
        for index in range(2):
            lines.append(to_json(certificate_of(index=index, basis=settings.basis)))
    assert {item.basis.alpha for item in read_certificates(tmp_path)} == {0.00123457}
    certified = CertifiedRun.read(tmp_path, "held_out")
    assert {item.basis.alpha for item in certified.certificates()} == {settings.alpha}
    with pytest.raises(InputError, match=r"expected certificates that are .*alpha=0\.05.*, got .*alpha=0\.00123457"):
        replace(certified, settings=replace(settings, alpha=0.05)).certificates()


@pytest.mark.parametrize(
    ("learning", "basis"),
    [
        ("--vote-samples 1", "one pass, predicted by a head"),
        ("--vote-epochs 1", "one pass of a copy that learnt the votes"),
    ],
)
def test_votes_are_learnt(
    learning: str, basis: str, certified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate = (
        f"calibrate --from {certified}/network --certificates {certified}/calibration --epsilon 0.1 --device cpu"
    )
    out, quick = tmp_path / "votes", f"--vote-images 128 {learning} --quiet"
    capsys.readouterr()
    words = f"{calibrate} {quick} --learn-votes fashion-mini --held-out {certified}/held-out --out {out} --json"
    assert run(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["head"] == json.loads((out / "calibration.json").read_text())["head"]
    assert found["held_out"]["images"] == 54
    assert 0 < found["agreement"] <= 1
    one_pass = (
        f"one-pass --data fashion-mini --from {out} --images 4 --quiet --json --device cpu --out {tmp_path}/radii"
    )
    assert run(one_pass.split()) == 0
    rows = [json.loads(line) for line in (tmp_path / "radii/one_pass.jsonl").read_text().splitlines()]
    Image.fromarray(load_images("fashion-mini", "test").raw(torch.arange(1))[0, 0].numpy()).save(tmp_path / "a.png")
    capsys.readouterr()
    assert run(["predict", "--from", str(out), "--device", "cpu", "--json", str(tmp_path / "a.png")]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert row["one_pass_class"] == rows[0]["class"]
    assert row["one_pass_radius"] <= rows[0]["radius"] + 1e-9
    _check_exported(out, tmp_path, rows, basis)
    copied = "--vote-epochs" in learning
    assert (out / "learnt-votes/run.json").exists() == copied
    assert ("2 steps are few" in found.get("few_steps", "")) == copied
    again = f"{calibrate} --votes-from {out} --held-out {certified}/held-out --quiet --json --out {tmp_path}/again"
    capsys.readouterr()
    assert run(again.split()) == 0
    expected = {name: value for name, value in found.items() if name != "few_steps"} | {"out": f"{tmp_path}/again"}
    assert json.loads(capsys.readouterr().out) == expected
    assert not (tmp_path / "again/learnt-votes").exists()
    (out / "votes.safetensors").unlink()
    for wrong, message in (
        (f"predict --from {out} {tmp_path}/a.png", "expected a file of weights, got no such file"),
        (f"export --from {out} --sigma 0.25 --out {tmp_path}/m.onnx", "expected a file of weights, got no such file"),
        (f"{calibrate} {quick} --learn-votes fashion-mini --under-attack 0.1 --out {tmp_path}/b", "choose one"),
        (f"{calibrate} --vote-samples 3 --out {tmp_path}/b", "name unlabelled images"),
        (f"{calibrate} --votes-from {out} --vote-samples 3 --out {tmp_path}/b", "no other option for votes"),
        (f"{calibrate} --votes-from {out} --out {tmp_path}/b", "expected a file of weights, got no such file"),
        (f"{calibrate} --votes-from {certified}/calibration --out {tmp_path}/b", "with --learn-votes, got another run"),
        (f"{calibrate} --votes-from {tmp_path}/none --out {tmp_path}/b", "expected a run, got none"),
        (f"{calibrate} --data-root {tmp_path} --out {tmp_path}/b", "reading images again"),
    ):
        assert run(wrong.split()) == 2
        assert message in capsys.readouterr().err


def _check_exported(calibrated: Path, folder: Path, rows: list[dict[str, Any]], basis: str) -> None:
    """The file, and a published copy, give the class and radius of ``one-pass``, and say whose they are."""
    assert run(f"push --from {calibrated} --to {folder}/published --quiet".split()) == 0
    images = load_images("fashion-mini", "test").images(torch.arange(4)).numpy()
    for source in (calibrated, folder / "published"):
        file = folder / f"{source.name}.onnx"
        assert run(f"export --from {source} --sigma 0.25 --out {file} --quiet".split()) == 0
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        assert names == ["probabilities", "class", "votes", "class_of_average", "l_bound", "calibrated_radius"]
        found = dict(zip(names, session.run(None, {"images": images}), strict=True))
        assert found["class_of_average"].tolist() == [row["class"] for row in rows]
        radius, expected = found["calibrated_radius"], [row["radius"] for row in rows]
        assert radius[0] <= expected[0] + 1e-9  # it calibrated: its doubt may be a level, where the last bits decide
        np.testing.assert_allclose(radius[1:], expected[1:], rtol=1e-5)
        np.testing.assert_allclose(found["votes"].sum(1), 1, rtol=1e-5)
        facts = session.get_modelmeta().custom_metadata_map
        assert facts["class_of_average.subject"] == facts["calibrated_radius.subject"] == "average"
        assert facts["votes.basis"] == basis


def test_calibration_images_are_not_learnt_from(certified: Path, tmp_path: Path) -> None:
    from heatsmooth.commands.voting import Again, Votes, learnt_votes
    from heatsmooth.progress import silent

    test = load_images("fashion-mini", "test")
    np.save(tmp_path / "images.npy", test.raw(torch.arange(20)).numpy())
    run_of, model = CertifiedRun.read(certified / "calibration", "certificates"), load_model(certified / "network")
    votes = Votes(learn_votes=f"npy:{tmp_path}/images.npy")
    with pytest.raises(InputError, match="expected none of the calibration images, got 2 of them"):
        learnt_votes(model, [run_of], votes, Again(), seed=0, out=tmp_path / "out", progress=silent)


def test_nothing_is_learnt_before_a_command_is_refused(
    certified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = CertifiedRun.read(certified / "held-out", "held_out")
    seen = load_images("fashion-mini", "test").raw(torch.tensor([held_out.certificates()[1].index]))
    np.save(tmp_path / "seen.npy", seen.numpy())
    shutil.copytree(certified / "network", tmp_path / "other")
    learn = f"calibrate --from {certified}/network --certificates {certified}/calibration --quiet --vote-epochs 1"
    common, new = f"{learn} --learn-votes fashion-mini --vote-images 128", tmp_path / "new"
    for words, message in (
        (f"{common} --epsilon 0.1 --out {tmp_path}/other", "expected a 'calibrate' run"),
        (f"{common} --epsilon 0.001 --out {new}", "expected at least 1498 certified images"),
        (f"{common} --epsilon 0.1 --held-out {tmp_path}/none --out {new}", "--held-out"),
        (
            f"{learn} --learn-votes npy:{tmp_path}/seen.npy --epsilon 0.1 --held-out {certified}/held-out --out {new}",
            "expected none of the held-out images, got 1 of them",
        ),
    ):
        assert run(words.split()) == 2
        assert message in capsys.readouterr().err
        assert not (new / "learnt-votes").exists()
        assert not (tmp_path / "other/learnt-votes").exists()
