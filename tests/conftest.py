import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heatsmooth.models import Classifier, NetworkSpec
from heatsmooth.results.certificates import Certificate
from heatsmooth.results.guarantees import Basis, BasisKind
from tests.browser import CHROMIUM, Browser

collect_ignore_glob = ["faults/*"] if sys.platform == "win32" else []
"""The tests of faults fork, limit resources and send signals."""
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


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


@pytest.fixture
def in_tmp(tmp_path: Path) -> Iterator[Path]:
    """An empty working directory."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


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
