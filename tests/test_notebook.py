"""Results show themselves in notebooks, and the notebook of the examples runs from top to bottom."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import heatsmooth as hs
from heatsmooth.results.audit import AuditResult, Verdict, VerdictKind
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.deterministic import NetworkCertificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.radii import Radii
from tests.browser import SELF_CHECK, Browser

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples/quickstart.ipynb"
RECORDED = ROOT / "results/cifar10-small/seed-0"
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


class Balanced(HTMLParser):
    """Every element is closed in order; ``cells`` are the texts of the table, ``tags`` all that was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return Certificates.read(RECORDED / "bootcamp-certified")


@pytest.fixture(scope="module")
def audit() -> AuditResult:
    return AuditResult.read(next(iter(sorted(RECORDED.glob("*/audit.json")))).parent)


def proven(*, labelled: bool) -> NetworkCertificates:
    torch.manual_seed(0)
    student = hs.distill(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3)).eval(),
        [torch.rand(4, 1, 28, 28)],
        student="lipschitz-tiny",
        epochs=1,
    )
    return hs.certify(student, torch.rand(4, 1, 28, 28), labels=torch.tensor([0, 1, 2, 0]) if labelled else None)


def table_of(html: str) -> dict[str, str]:
    cells = [cell.replace("\u00a0", " ") for cell in Balanced(html).cells]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def test_certificates_show_a_curve_and_a_table(certificates: Certificates) -> None:
    html = certificates._repr_html_()
    rows = table_of(html)
    share = float(certificates.certified_accuracy([0.25])[0])
    assert rows["Certified accuracy at 0.25"].startswith(f"{share:.3f} (")
    assert rows["Images"] == "500"
    assert html.count("<svg") == 2, "certified accuracy, then the distribution of p_A"
    assert html.index("Certified accuracy against radius") < html.index("Distribution of p_A")
    assert list(rows).index("Certified accuracy at 0.25") < list(rows).index("ACR: mean radius, 0 where wrong")
    assert re.fullmatch(r"0\.\d{3} · 0\.\d{3} · 0\.\d{3}", rows["p_A, quartiles of its lower bound"])
    assert re.search(r'<path class="line s0" d="M[\d. L]{60,}', html)
    assert "not the network in one pass, keeps its class. Each certificate is false with probability at most α" in html
    assert len(html) < 24_000


def test_without_labels_the_curve_counts_radii(certificates: Certificates) -> None:
    rows = table_of(replace(certificates, correct=None)._repr_html_())
    share = float((certificates.radii >= 0.25).mean())
    assert rows["Share with a radius of at least 0.25"].startswith(f"{share:.3f} (")
    assert not [name for name in rows if "accuracy" in name or "ACR" in name]


@pytest.mark.parametrize("labelled", [True, False])
def test_deterministic_certificates_say_that_they_are_about_the_network(labelled: bool) -> None:
    html = proven(labelled=labelled)._repr_html_()
    assert "the network itself, in one pass, keeps its class. It is a proof from the weights: never false." in html
    assert ("Certified accuracy at 0" in html.replace("\u00a0", " ")) == labelled
    assert "Samples per image" not in html


@pytest.mark.parametrize("kind", list(BasisKind))
def test_every_basis_says_what_it_promises(kind: BasisKind, certificates: Certificates) -> None:
    """Also where every image abstains, and of one image."""
    radii = Radii(
        indices=np.array([0]),
        radii=np.zeros(1),
        abstained=np.ones(1, dtype=bool),
        correct=None,
        subject=certificates.subject,
        basis=Basis(kind, alpha=0.01, confidence=0.9),
    )
    html = radii._repr_html_()
    assert table_of(html)["Abstained"] == "1 (100 %)"
    assert re.search(r"keeps its class\. \w[^<]+\.</p>", html)


def test_audits_show_their_verdict_and_escape_text(audit: AuditResult) -> None:
    hostile = replace(audit, verdict=Verdict(kind=VerdictKind.BROKEN, text=HOSTILE))
    html = hostile._repr_html_()
    assert Balanced(html).tags & {"script", "img"} == set()
    assert "&lt;script&gt;" in html
    assert f"{audit.agreement.count} of {audit.agreement.images}" in html


@pytest.mark.parametrize(("theme", "scheme"), [("true", "dark"), ("false", "light")])
def test_results_are_readable_in_the_theme_of_the_notebook(
    browser: Browser, tmp_path: Path, certificates: Certificates, audit: AuditResult, theme: str, scheme: str
) -> None:
    """The theme of the notebook wins over the one of the system; nothing is cut on a phone, nothing fetched."""
    page = tmp_path / "page.html"
    shown = certificates._repr_html_() + audit._repr_html_()
    page.write_text(f'<!doctype html><meta charset="utf-8"><body data-jp-theme-light="{theme}"><main>{shown}</main>')
    for width in (900, 390):
        browser.open(page.as_uri(), width, scheme)
        assert browser.evaluate(SELF_CHECK)["wrong"] == []
        ground = browser.evaluate("getComputedStyle(document.querySelector('.in-notebook')).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if theme == "true" else "rgb(26, 29, 35)")
    assert browser.requests == [page.as_uri()]


def shown(file: Path) -> list[list[list[str]]]:
    """Per cell of code and output, the kinds of what it shows."""
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    return [[sorted(output.get("data", [output["output_type"]])) for output in cell["outputs"]] for cell in cells]


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    command = [sys.executable, "tools/run_notebook.py", str(NOTEBOOK), "--out", str(tmp_path / "run.ipynb")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    kinds = shown(tmp_path / "run.ipynb")
    assert kinds == shown(NOTEBOOK), "its outputs are not those of its code: python tools/run_notebook.py"
    assert sum(["text/html", "text/plain"] in cell for cell in kinds) == 4
    assert sum(["image/png", "text/plain"] in cell for cell in kinds) == 1
    assert NOTEBOOK.stat().st_size < 200_000
    assert "site-packages" not in NOTEBOOK.read_text()
