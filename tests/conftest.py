import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from heatsmooth.data import load_images
from heatsmooth.models import Classifier, NetworkSpec
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.guarantees import Basis, BasisKind
from tests.browser import CHROMIUM, Browser

collect_ignore_glob = ["faults/*"] if sys.platform == "win32" else []
"""The tests of faults fork, limit resources and send signals."""
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _settle_art() -> None:
    """Write the settings file that ART makes when it is first imported: two processes that make it at once fail."""
    folder = Path.home() / ".art"
    file, part = folder / "config.json", folder / f"config-{os.getpid()}.json"
    if file.exists():
        return
    with suppress(OSError):  # then ART uses another folder
        folder.mkdir(exist_ok=True)
        part.write_text(json.dumps({"ART_DATA_PATH": str(folder / "data")}))
        part.replace(file)


_settle_art()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test, and what it is given, meets the same chance, whichever tests ran before it."""
    torch.manual_seed(0)


class Linear(torch.nn.Module):
    """logits = W·flatten(x) + b: every Jacobian, radius and average is known in closed form."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)
        self.bias = torch.nn.Parameter(torch.zeros(len(weight)) if bias is None else bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


@pytest.fixture
def linear() -> Linear:
    """A linear classifier of 1×4×4 images into 5 classes."""
    return Linear(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)))


def certificate_of(**changes: Any) -> Certificate:
    """A valid certificate of one image with these fields; counts that are not given are all of the predicted class."""
    facts = {"index": 0, "label": 1, "sigma": 0.25, "adaptive": False, "clean_class": 1, "predicted": 1} | changes
    facts = {
        "clean_probabilities": (0.25, 0.75),
        "selection": None,
        "seconds": 0.5,
        "target": facts["predicted"],
    } | facts
    if "counts" not in facts:
        facts["counts"] = tuple(100 * (c == facts["predicted"]) for c in range(len(facts["clean_probabilities"])))
    drawn = {"n": sum(facts["counts"]), "n0": sum(facts["selection"] or ())}
    drawn["samples"] = 1 + drawn["n"] + drawn["n0"]
    claim = {"radius": 0.2, "abstain": False, "class_from": "clean", "basis": Basis(BasisKind.STATISTICAL, alpha=0.001)}
    return Certificate(**drawn | claim | facts)


def tiny_classifier(channels: int = 1, classes: int = 10, seed: int = 0) -> Classifier:
    """The built-in network with random weights."""
    from heatsmooth.models import build

    torch.manual_seed(seed)
    return build(NetworkSpec("small", classes, channels, (0.5,), (0.25,)))


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that a wrong command prints."""
    from heatsmooth.commands.line import run

    code = run([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.err.startswith("heatsmooth: error: "), captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def colour_folders(root: Path) -> str:
    """Options of ``compare`` that name 20 images to certify and 20 others to smooth on, made in ``root``."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        folder = root / ("smoothing" if number % 2 else "held-out") / f"n{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    (root / "classes.json").write_text(json.dumps({f"n{number}": number for number in range(10)}))
    folders = f"--data imagefolder:{root}/held-out --smooth-on imagefolder:{root}/smoothing"
    return f"{folders} --image-size 16 --class-index {root}/classes.json"


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    """An empty working directory."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.fixture(scope="session")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first 2,000 training and 100 test images of ``fashion-mini``, as ``--data`` names them."""
    path = tmp_path_factory.mktemp("fashion") / "images.npz"
    arrays: dict[str, Any] = {}
    for split, count in (("train", 2000), ("test", 100)):
        images = load_images("fashion-mini", "train" if split == "train" else "test")
        arrays[f"{split}_images"] = np.asarray(images.pixels)[:count, 0]
        arrays[f"{split}_labels"] = images.known_labels()[:count].numpy()
    np.savez(path, **arrays)
    return f"npz:{path}"


@pytest.fixture(scope="session")
def network(fashion: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a network that knows the images."""
    from heatsmooth.commands.line import run

    path = tmp_path_factory.mktemp("network")
    words = f"train --data {fashion} --epochs 1 --batch-size 50 --lr 0.05 --quiet --device cpu --out {path}"
    assert run(words.split()) == 0
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts that tests gave with ``record_property``, summed over all of them."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, count in report.user_properties:
            counts[name] += count
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {count:,}")
