"""The report in a real browser, wide and narrow, light and dark: nothing fails, overlaps or is cut, nothing is fetched.

With HEATSMOOTH_SCREENSHOTS=DIR, the pages are saved there.
"""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heatsmooth.commands.inputs import ImageFiles
from heatsmooth.commands.line import run
from heatsmooth.reporting import build_report
from tests.browser import SELF_CHECK, Browser
from tests.test_report import HEADER, HOSTILE, write_attack, write_certificates, write_story

PUBLISHED = Path(__file__).parents[2] / "shared/data/cohen-logs"


@pytest.fixture(scope="module")
def pages(fashion: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo's own, a whole study, logs alone, and a crowd of long and hostile names."""
    root = tmp_path_factory.mktemp("pages")
    found = {name: root / f"{name}.html" for name in ("story", "logs", "crowd")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heatsmooth.commands.demo.FILES", ImageFiles(data=fashion))
        assert run(["demo", "--epochs", "1", "--images", "10", "--quiet", "--out", str(root / "demo")]) == 0
    found["demo"] = root / "demo/report.html"
    build_report([write_story(root / "runs")], found["story"])
    (root / "logs").mkdir()
    (root / "logs/empty.tsv").write_text("")
    for name in ("noise_0.25_sigma_0.25", "noise_0.50_sigma_0.50"):
        rows = "".join(
            f"{i}\t1\t{1 if i % 5 else -1}\t{i % 90 / 100 if i % 5 else 0}\t1\t0:00:15\n" for i in range(200)
        )
        (root / "logs" / f"{name}.tsv").write_text(HEADER + rows)
    build_report([PUBLISHED if PUBLISHED.exists() else root / "logs", root / "logs/empty.tsv"], found["logs"])
    crowd = root / "crowd"
    for number in range(9):
        name = f"{'a-rather-long-name-of-a-run-' * 3}{number}" if number % 2 else f"x{number}"
        write_certificates(
            crowd / name, f"m{number}", images=50, level=number / 4, sigma=0.1 + number / 20, n=300 + number
        )
        write_attack(crowd / f"{name}-attack", f"m{number}", "ddn", images=50, middle=0.2 + number / 5)
    (crowd / f"{HOSTILE.replace('/', '')}.tsv").write_text(HEADER + "0\t3\t3\t0.378\t1\t15.4\n1\t3\t3\t0.2\t1\t15\n")
    build_report([crowd], found["crowd"])
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("name", "figures"), [("demo", 7), ("story", 6), ("logs", 2), ("crowd", 3)])
def test_the_page_is_drawn_whole(
    browser: Browser, pages: dict[str, Path], name: str, figures: int, width: int, scheme: str
) -> None:
    browser.open(pages[name].as_uri(), width, scheme)
    found = browser.evaluate(SELF_CHECK)
    folder = os.environ.get("HEATSMOOTH_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save(Path(folder) / f"{name}-{width}-{scheme}.png")
    assert found["wrong"] == []
    browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.evaluate(SELF_CHECK)["wrong"] == [], "with everything unfolded"
    assert found["figures"] == figures
    assert (max(map(int, found["ground"][4:-1].split(","))) < 60) == (scheme == "dark")
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def test_values_are_read_by_hand_and_by_key(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["story"].as_uri(), 1280, "light")
    tip = "document.querySelector('#fig-certified-accuracy .tip')"
    browser.evaluate("document.querySelector('#fig-certified-accuracy .plot').focus()")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    assert browser.evaluate(f"{tip}.hidden") is False
    words = browser.evaluate(f"{tip}.textContent")
    assert words.startswith("L2 radius r 0.005")
    assert "smoothed: 0." in words
    box = browser.evaluate(
        "(() => { const p = document.querySelector('#fig-attacked-ddn .plot'); p.scrollIntoView({behavior: 'instant'});"
        "const b = p.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    found = browser.evaluate(
        "(() => { const t = document.querySelector('#fig-attacked-ddn .tip'), b = t.getBoundingClientRect();"
        "return [t.hidden, b.left >= 0 && b.right <= innerWidth, t.querySelectorAll('span').length]; })()"
    )
    assert found == [False, True, 2]
    assert browser.errors == []


def test_figures_are_saved_as_svg_and_csv(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["story"].as_uri(), 1280, "dark")
    browser.evaluate(
        "window.saved = {}; URL.createObjectURL = (blob) => { window.blob = blob; return 'data:,'; };"
        "HTMLAnchorElement.prototype.click = function () { window.saved[this.download] = window.blob; }"
    )
    browser.evaluate("document.querySelectorAll('#fig-certified-accuracy button').forEach((b) => b.click())")
    svg, csv = (browser.evaluate(f"window.saved['certified-accuracy.{ending}'].text()") for ending in ("svg", "csv"))
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in svg
    assert "rgb(11, 98, 196)" in svg, "the light colours, whatever the page shows"
    assert csv.splitlines()[0].startswith('"L2 radius r, images in [0, 1]",baseline,"baseline, low 95 %"')
    assert len(csv.splitlines()) > 80
    assert browser.evaluate("document.documentElement.dataset.theme") is None


def test_the_theme_can_be_chosen(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["story"].as_uri(), 1280, "light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(ground)
    browser.evaluate("document.querySelector('.theme').click(); document.querySelector('.theme').click()")
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.evaluate(ground) != light
    browser.evaluate("document.querySelector('.theme').click()")
    assert browser.evaluate(ground) == light


def test_no_script_from_a_file_runs(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["crowd"].as_uri(), 1280, "light")
    assert "Page.javascriptDialogOpening" not in browser.events
    assert browser.evaluate("document.scripts.length") == 1
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.run = 1'}))"
    )
    assert browser.evaluate("window.run") is None, "the page's policy allows its own script only"
