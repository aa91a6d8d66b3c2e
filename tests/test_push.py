"""Publishing a network and fetching it again: in a folder, and through a stub of the hub's client. No network."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from markdown_it import MarkdownIt

import heatsmooth as hs
from heatsmooth.calibration import Calibration
from heatsmooth.commands.line import run
from heatsmooth.models import NetworkSpec, build, model_hash, save
from heatsmooth.models.classifier import Classifier
from heatsmooth.reporting.card import CardNetwork, card
from heatsmooth.reporting.sources import read_sources
from tests.conftest import tiny_classifier

RESULTS = Path(__file__).parents[1] / "results"
CERTIFY = ["certify", "--data", "npz:images.npz", "--sigma", "0.25", "--n", "100", "--n0", "10", "--quiet"]
TO_FOLDER = ["push", "--from", "run", "--records", "certified", "--to", "published", "--quiet"]


@pytest.fixture
def images(in_tmp: Path) -> torch.Tensor:
    pixels = np.random.default_rng(0).random((12, 1, 12, 12), dtype=np.float32)
    np.savez("images.npz", images=pixels, labels=np.arange(12) % 3)
    return torch.from_numpy(pixels)


@pytest.fixture
def model(images: torch.Tensor) -> Classifier:
    """A run with a calibration, and certificates of it."""
    torch.manual_seed(0)
    model = build(NetworkSpec("small", 3, 1, (0.5,), (0.25,), 12)).eval()
    Path("run").mkdir()
    save(model, Path("run/model.safetensors"))
    made = Calibration(
        ((0.9, 0.1),), 3, 0.05, 0.001, 0.25, 100, 200, model_hash=model_hash(model), data={"name": "npz:c.npz"}
    )
    Path("run/calibration.json").write_text(json.dumps(made.to_json()))
    assert run([*CERTIFY, "--from", "run", "--out", "certified"]) == 0
    return model


def three_lines(text: str) -> str:
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert lines.count("\n") == 3
    return str(lines)


def check_card(text: str) -> dict[str, Any]:
    """The front matter of a card that renders and has no empty field."""
    _, front, body = text.split("---\n", 2)
    facts: dict[str, Any] = yaml.safe_load(front)
    assert all(facts.values())
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    assert sum(token.type == "table_open" for token in tokens) == body.count("| 95 % interval |")
    kinds = [token.type for token in tokens]
    assert not [kind for kind, after in pairwise(kinds) if kind == after == "heading_close"]
    texts = [token.content for token in tokens if token.type == "inline"]
    assert all(texts)
    for word in ("None", "nan", "inf", "–", "()", "[]", "{"):
        assert not [text for text in texts if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)], word
    assert not re.search(r": *$", re.sub(r"```.*?```", "", body, flags=re.DOTALL), re.MULTILINE)
    return facts


def test_push_and_pull_give_a_network_with_the_same_logits(
    model: Classifier, images: torch.Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*TO_FOLDER, "--license", "apache-2.0"]) == 0
    text = Path("published/README.md").read_text()
    assert check_card(text)["license"] == "apache-2.0"
    left: dict[str, Any] = {"images": images}
    exec(three_lines(text), left)
    assert torch.equal(left["logits"], model(images))
    assert run(["pull", "--from", "published", "--out", "pulled", "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["calibrated"], result["records"]) == (True, ["certified"])
    assert torch.equal(hs.load("pulled")(images), model(images))
    for file in ("certificates.jsonl", "run.json"):
        assert (Path("pulled/records/certified") / file).is_file()
    assert "arguments" not in json.loads(Path("pulled/records/certified/run.json").read_text())
    assert run(["predict", "--from", "pulled", "--help"]) == 0
    assert not [file for file in Path("published").rglob("*") if file.suffix in (".pt", ".bin", ".pkl", ".pth")]


def test_the_card_says_what_the_records_say(model: Classifier) -> None:
    assert run(TO_FOLDER) == 0
    text = Path("published/README.md").read_text()
    certified = hs.Certificates.read(Path("certified"))
    share = 100 * certified.certified_accuracy(0.0)
    assert re.search(rf"\| 0 \| {share:.1f}\xa0% \|" if 0 < share < 100 else r"\| 0 \|", text)
    right = 100 * certified.one_pass_correct.mean()
    assert f"| {right:.1f}\xa0% |" in text
    assert "Covers: the average of the network over Gaussian noise of standard deviation 0.25" in text
    assert "false with probability at most α = 0.001" in text
    assert "too large with probability at most ε = 0.05" in text
    assert "No license is stated." in text
    assert "How the network was made is not recorded here." in text


def about(**changes: Any) -> CardNetwork:
    facts: dict[str, Any] = {"title": "net", "source": "hf:me/net", "architecture": "resnet20", "code": False}
    facts |= {"classes": 10, "channels": 3, "size": None, "mean": (), "std": (), "weights": "0123456789abcdef"}
    return CardNetwork(**facts | changes)


def test_cards_of_published_results_have_no_empty_field() -> None:
    for folders in (
        ("cifar10-bootcamp/smoothed", "cifar10-bootcamp/certified"),
        ("cifar10-adaptive/smoothed", "cifar10-adaptive/adaptive"),
    ):
        records = read_sources([RESULTS / folder for folder in folders])
        assert not records.skipped
        text = card(about(), records, None)
        check_card(text)
        assert "`heatsmooth smooth`" in text
        assert "**Labels**: not used" in text
        assert "test images of the training" in text
    bare = card(about(code=True, architecture="nets:mine"), read_sources([]), None)
    check_card(bare)
    assert "Nothing is guaranteed" in bare
    assert 'hs.load("hf:me/net", model="nets:mine")' in bare


def test_a_proven_radius_covers_the_network_itself(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    save(build(NetworkSpec("lipschitz-tiny", 3, 1, (0.5,), (1.0,), 12)).eval(), Path("student.safetensors"))
    words = ["--from", "student.safetensors", "--quiet"]
    assert run(["certify", "--data", "npz:images.npz", *words, "--out", "proven"]) == 0
    assert run(["push", *words, "--records", "proven", "--to", "published"]) == 0
    text = Path("published/README.md").read_text()
    check_card(text)
    assert "**Deterministic radius. Covers: the network itself, in one pass.**" in text


def test_the_page_on_publishing_runs_as_it_stands(model: Classifier) -> None:
    """What docs/publish.md shows."""
    page = (Path(__file__).parents[1] / "docs/publish.md").read_text()
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    made = ["train", "--data", "npz:images.npz", "--epochs", "1", "--quiet", "--out", "runs/smoothed"]
    assert run(made) == 0  # stands for a smoothed network
    Path("runs/calibrated").mkdir()
    shutil.copyfile("runs/smoothed/model.safetensors", "runs/calibrated/model.safetensors")
    assert run([*CERTIFY, "--from", "runs/smoothed", "--out", "runs/certified"]) == 0
    for line in block.splitlines():
        assert run([*line.split()[1:], "--quiet"]) == 0
    files = {str(file.relative_to("runs/pulled")) for file in Path("runs/pulled").rglob("*") if file.is_file()}
    assert {"README.md", "heatsmooth.json", "records/smoothed/metrics.jsonl"} <= files
    text = Path("runs/pulled/README.md").read_text()
    check_card(text)
    assert "`heatsmooth train`" in text


class Hub(SimpleNamespace):
    """A stub of huggingface_hub: repositories are folders."""

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if not name.startswith("me/"):
            raise OSError("403 Forbidden")
        assert private
        assert exist_ok
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        assert commit_message.startswith("Publish with heatsmooth")
        shutil.copytree(folder_path, self.root / repo_id)

    def hf_hub_download(self, name: str, file: str) -> str:
        if not (self.root / name / file).is_file():
            raise FileNotFoundError(file)
        return str(self.root / name / file)

    def snapshot_download(self, name: str, *, allow_patterns: list[str]) -> str:
        if not (self.root / name).is_dir():
            raise OSError("404 Not Found")
        return str(self.root / name)


def test_the_hub(model: Classifier, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(root=Path("remote").resolve())
    monkeypatch.setattr("heatsmooth.models.published.client", lambda name: hub)
    words = [*TO_FOLDER[:-2], "hf:me/net", "--private", "--quiet"]
    assert run(words) == 0
    left: dict[str, Any] = {"images": images}
    text = (hub.root / "me/net/README.md").read_text()
    assert 'hs.load("hf:me/net")' in text
    exec(three_lines(text), left)
    assert torch.equal(left["logits"], model(images))
    (hub.root / "me/net/harmful.pkl").write_bytes(b"code")
    assert run(["pull", "--from", "hf:me/net", "--out", "pulled", "--quiet"]) == 0
    assert torch.equal(hs.load("pulled")(images), model(images))
    assert not Path("pulled/harmful.pkl").exists()


def test_what_cannot_be_published_or_fetched_is_one_line(
    model: Classifier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub(root=Path("remote").resolve())
    monkeypatch.setattr("heatsmooth.models.published.client", lambda name: hub)
    Path("other").mkdir()
    save(tiny_classifier(), Path("other/model.safetensors"))
    push, pull = ["push", "--from", "run", "--quiet"], ["pull", "--out", "pulled", "--quiet"]
    assert run([*push, "--to", "damaged"]) == 0
    save(build(NetworkSpec("small", 3, 1, (0.5,), (0.25,), 12)), Path("damaged/model.safetensors"))
    for words, message in (
        ([*push, "--to", "certified"], "--to certified: expected a new folder"),
        ([*push, "--to", "hf:you/net", "--private"], "expected a repository that you may write to, got 403 Forbidden"),
        (["push", "--from", "other", "--records", "certified", "--to", "p"], "expected a run about this network"),
        ([*push, "--records", "nowhere", "--to", "p"], "nowhere: expected a run, got none"),
        ([*pull, "--from", "certified"], "expected a network that heatsmooth push wrote, got none"),
        ([*pull, "--from", "hf:me/none"], "hf:me/none: expected a network on the hub, got 404 Not Found"),
        ([*pull, "--from", "damaged"], "damaged: expected the published weights"),
    ):
        capsys.readouterr()
        assert run(words) == 2, words
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_links_out_of_a_published_folder_are_not_followed(
    model: Classifier, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["push", "--from", "run", "--to", "published", "--quiet"]) == 0
    (in_tmp / "secret.json").write_text("{}")
    (in_tmp / "published/records/a").mkdir(parents=True)
    (in_tmp / "published/records/a/x.json").symlink_to(in_tmp / "secret.json")
    capsys.readouterr()
    assert run(["pull", "--from", "published", "--out", "pulled", "--quiet"]) == 2
    assert "expected a file of the published folder" in capsys.readouterr().err
