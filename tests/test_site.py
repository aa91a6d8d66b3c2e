"""The site of docs/: a strict build, in which a broken link, a missing heading or an unknown name is an error."""

import importlib.util
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

import heatsmooth as hs
from tests.browser import Browser

ROOT = Path(__file__).parents[1]
FOREIGN = re.compile(r'<(?:script|link|img|iframe|source)[^>]+(?:src|href)="?(https?:[^">\s]+)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return folder


def text_of(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.read_text())).split())


def test_every_page_is_on_the_site_and_fetches_nothing(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} | {"index", "CONTRIBUTING"}
    assert pages <= {page.stem for page in site.glob("*.html")}
    for page in site.rglob("*.html"):
        assert FOREIGN.findall(page.read_text()) == [], page


def test_the_reference_has_every_public_name_with_its_parameters(site: Path) -> None:
    listed = re.findall(r"^::: heatsmooth\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(hs.__all__) - {"__version__"})
    html = (site / "api.html").read_text()
    assert [name for name in listed if f'id="heatsmooth.{name}"' not in html] == []
    assert "<li><code>sigma</code>: standard deviation of the Gaussian noise" in html
    assert "``" not in text_of(site / "api.html")
    assert "<blockquote>" not in html, "an example of a docstring that is not shown as code"


def test_the_first_page_is_the_readme(site: Path) -> None:
    html = (site / "index.html").read_text()
    assert 'href="how-to.html"' in html
    assert 'href="docs/' not in html
    assert 'src="figures/benefit-dark.svg#only-dark"' in html
    assert re.search(r"<li><strong>The default loss.*?<ul>\s*<li>On CIFAR-10", html, re.DOTALL), "a nested list"


def test_a_newcomer_finds_what_to_do_in_one_step(site: Path) -> None:
    """Each task is a row of the how-to page, and its link leads to a heading with a command for it."""
    rows = {
        line.split("|")[1].strip(): line for line in (ROOT / "docs/how-to.md").read_text().splitlines() if "|" in line
    }
    for task, words in {
        "smooth a timm model": "timm",
        "certify a folder of images": "heatsmooth certify --from runs/unlabelled --data imagefolder:pictures",
        "deploy with a radius": "heatsmooth export --from runs/calibrated",
        "run on eight GPUs": "torchrun --nproc-per-node 2 -m -- heatsmooth smooth",
        "know what a radius promises": "May be false",
    }.items():
        page, _, heading = re.findall(r"\(([^)]+)\)", rows[task])[-1].partition("#")
        html = (site / page.replace(".md", ".html")).read_text()
        part = html[html.index(f'id="{heading}"') :] if heading else html
        assert words in " ".join(unescape(re.sub(r"<[^>]+>", "", part[: part.find("<h2", 10)])).split()), task


def test_the_notebook_is_a_page_with_its_outputs(site: Path) -> None:
    html = (site / "examples/quickstart.html").read_text()
    assert html.count('class="heatsmooth in-notebook"') == 4
    assert html.count('src="data:image/png;base64,') == 1
    assert 'href="../glossary.html"' in html


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_window(browser: Browser, site: Path, width: int) -> None:
    for name in ("index", "how-to", "guarantees", "api", "examples/quickstart"):
        browser.open((site / f"{name}.html").as_uri(), width, "dark")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, name
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
        assert browser.evaluate("document.body.dataset.mdColorScheme") == "slate"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools/docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lists_of_a_code_host_become_lists_of_python_markdown(hooks: ModuleType) -> None:
    written = "Text\n- a\n  more\n  - b\n\n1. c\n\n       code\n\n   rest\n2. d\n\n```\n  - e\n```\n"
    expected = "Text\n\n- a\n    more\n    - b\n\n1. c\n\n        code\n\n    rest\n\n2. d\n\n```\n  - e\n```\n"
    assert hooks.nested(written) == expected


def test_docstrings_become_lists_and_code(hooks: ModuleType) -> None:
    written = "Doubles.\n\n``x``: a number. ``y`` and ``z``:\nothers, as ``x``: 1\nor 2.\n\n>>> 2 * 1\n2"
    expected = (
        "Doubles.\n\n- ``x``: a number.\n- ``y`` and ``z``: others, as ``x``: 1 or 2.\n\n```pycon\n>>> 2 * 1\n2\n```"
    )
    assert hooks.listed(written) == expected
