"""The page of ``heatsmooth serve`` in a real browser: drop an image, see its radius grow, attack it, drop a bad file.

With HEATSMOOTH_SCREENSHOTS=DIR, the pages are saved there.
"""

import base64
import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from heatsmooth.data import load_images
from heatsmooth.models import save
from heatsmooth.serving import ServedNetwork
from heatsmooth.serving.studies import png_bytes
from tests.browser import CHROMIUM, SELF_CHECK, Browser
from tests.conftest import tiny_classifier
from tests.test_serve import in_this_process, picture, serving
from tests.test_serve_api import lipschitz

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

WATCH = """
window.seen = [];
new MutationObserver(() => seen.push(document.getElementById("radius").textContent))
  .observe(document.getElementById("radius"), { childList: true });
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = tmp_path_factory.mktemp("network") / "tiny.safetensors"
    save(tiny_classifier(), model)
    with serving(model, "--data", "fashion-mini", "--n", "600") as (address, _):
        yield address


def drop(browser: Browser, content: bytes, name: str = "image.png") -> None:
    """Let go of a file over the page."""
    drop_all(browser, [(name, content)])


def drop_all(browser: Browser, files: list[tuple[str, bytes]]) -> None:
    """Let go of files over the page."""
    given = json.dumps([[name, base64.b64encode(content).decode()] for name, content in files])
    browser.evaluate(
        f"""(() => {{
          const dataTransfer = new DataTransfer();
          for (const [name, content] of {given})
            dataTransfer.items.add(new File([Uint8Array.from(atob(content), (c) => c.charCodeAt(0))], name));
          for (const kind of ["dragenter", "dragover", "drop"])
            document.getElementById("drop").dispatchEvent(new DragEvent(kind, {{ dataTransfer, bubbles: true }}));
        }})()"""
    )


def until(browser: Browser, condition: str, seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while not (found := browser.evaluate(condition)):
        assert time.monotonic() < end, (condition, browser.evaluate("document.body.innerText"), browser.errors)
        time.sleep(0.05)
    return found


def text(browser: Browser, where: str) -> str:
    found: str = browser.evaluate(f"document.getElementById('{where}').innerText")
    return found


def photograph(browser: Browser, name: str) -> None:
    if folder := os.environ.get("HEATSMOOTH_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save(Path(folder) / name)


DONE = "document.getElementById('state').textContent.startsWith('Done')"
ATTACKED = "document.querySelectorAll('#findings li').length === 3"


@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (390, "dark")])
def test_an_image_is_dropped_certified_and_attacked(browser: Browser, url: str, width: int, scheme: str) -> None:
    browser.open(url, width, scheme)
    browser.evaluate(WATCH)
    drop(browser, png_bytes(load_images("fashion-mini").raw(torch.tensor([0]))[0].permute(1, 2, 0).numpy()))
    until(browser, DONE)
    radii = [float(value) for value in browser.evaluate("window.seen") if value[0].isdigit()]
    assert len(radii) > 5
    assert all(a <= b for a, b in pairwise(radii))
    assert radii[-1] > radii[0] > 0
    assert "Within this distance the average says" in text(browser, "verdict")
    assert browser.evaluate("document.querySelectorAll('#noisy img').length") == 8
    assert "600 of 600" in text(browser, "counts")
    for distance, place, fate in (
        ("to-radius", "inside the certified radius", "The attack failed"),
        ("4", "outside the certified radius", "is fooled at distance"),
    ):
        browser.evaluate(
            "document.getElementById('to-radius').click()"
            if distance == "to-radius"
            else f"document.getElementById('distance').value = '{distance}'"
        )
        browser.evaluate("document.getElementById('findings').replaceChildren()")
        browser.evaluate("document.querySelector('#attacking .main').click()")
        until(browser, ATTACKED)
        found = text(browser, "findings")
        assert place in found
        assert fate in found
        assert "The average was tested at the attacked image" in found
        assert "contradicts" not in found
        assert found.count("Covers the network in one pass.") == 1
        assert found.count("Covers the Gaussian average.") == 2
    drawn = browser.evaluate(SELF_CHECK)
    assert drawn["wrong"] == []
    assert (max(map(int, drawn["ground"][4:-1].split(","))) < 60) == (scheme == "dark")
    photograph(browser, f"serve-{width}-{scheme}.png")
    assert browser.errors == []
    assert [address for address in browser.requests if not address.startswith((url, "data:"))] == []


def test_a_bad_file_is_told_and_the_next_is_welcome(browser: Browser, url: str) -> None:
    browser.open(url, 390, "light")
    drop(browser, b"this is no image", "notes.txt")
    until(browser, "!document.getElementById('message').hidden")
    assert "expected a readable image" in text(browser, "message")
    assert browser.evaluate("document.getElementById('results').hidden") is True
    assert browser.evaluate(SELF_CHECK)["wrong"] == []
    browser.evaluate(
        """(() => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([new Uint8Array(10_000_001)], "large.png"));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
        })()"""
    )
    assert "at most 10 MB" in text(browser, "message")
    drop(browser, picture("JPEG"), "photo.jpg")
    until(browser, DONE)
    assert browser.evaluate("document.getElementById('message').hidden") is True


def test_the_keyboard_is_enough(browser: Browser, url: str) -> None:
    browser.open(url, 1100, "light")
    browser.evaluate("document.querySelector('.example').focus()")
    assert browser.evaluate("document.querySelectorAll('.example').length") == 10
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    browser.send("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    until(browser, "!document.getElementById('results').hidden")
    browser.evaluate("document.getElementById('stop').click()")
    assert browser.evaluate("document.getElementById('stop').hidden") is True
    assert text(browser, "state").startswith(("Stopped after", "Done after"))
    browser.evaluate("document.getElementById('file').focus()")
    focused = browser.evaluate("getComputedStyle(document.getElementById('drop')).outlineStyle")
    assert focused == "solid"
    assert browser.errors == []


def test_a_server_that_went_away_is_told(browser: Browser, tmp_path: Path) -> None:
    save(tiny_classifier(), tmp_path / "tiny.safetensors")
    with serving(tmp_path / "tiny.safetensors", "--image-size", "12", "--n", "100000000") as (url, process):
        browser.open(url, 1100, "light")
        drop(browser, picture())
        until(browser, "document.getElementById('radius').textContent.startsWith('0.')")
        process.terminate()
        process.wait(20)
        until(browser, "!document.getElementById('message').hidden")
        assert text(browser, "message") == "the server was stopped"
        drop(browser, picture())
        until(browser, "document.getElementById('message').innerText.includes('does not answer')")


TILES = "[...document.querySelectorAll('.tile-of')].map((tile) => tile.innerText)"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_several_images_at_once(browser: Browser, url: str, width: int, scheme: str) -> None:
    browser.open(url, width, scheme)
    pixels = load_images("fashion-mini").raw(torch.arange(4)).permute(0, 2, 3, 1).numpy()
    files = [(f"{number}.png", png_bytes(image)) for number, image in enumerate(pixels)]
    drop_all(browser, [*files, ("notes.txt", b"this is no image")])
    until(
        browser,
        f"{TILES}.every((text) => text.includes('Certified') && !text.includes('…') || text.includes('refused'))",
    )
    tiles = browser.evaluate(TILES)
    assert [tile.split()[0] for tile in tiles][4] == "refused"
    assert len(tiles) == 5
    assert text(browser, "state").startswith("Done"), "the first one is shown"
    first = browser.evaluate("document.getElementById('seen').src")
    browser.evaluate("document.querySelectorAll('.tile-of')[2].click()")
    assert browser.evaluate("document.getElementById('seen').src") != first
    assert text(browser, "radius") in browser.evaluate(TILES)[2]
    assert browser.evaluate(SELF_CHECK)["wrong"] == []
    photograph(browser, f"several-{width}-{scheme}.png")
    browser.evaluate("document.querySelectorAll('.tile-of')[4].click()")
    assert text(browser, "message").startswith("notes.txt: the file: expected a readable image")
    drop(browser, files[0][1])
    until(browser, DONE)
    assert browser.evaluate("document.getElementById('images').hidden") is True


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_proven_radius_is_shown_at_once(browser: Browser, width: int, scheme: str) -> None:
    with in_this_process(ServedNetwork(lipschitz(), None, seed=0, shape=(1, 28, 28))) as server:
        browser.open(server.url, width, scheme)
        drop(browser, picture())
        until(browser, "!document.getElementById('results').hidden")
        assert float(text(browser, "proven")) > 0
        assert "Within this distance the network says" in text(browser, "proven-verdict")
        assert browser.evaluate("document.getElementById('copies')") is None
        browser.evaluate("document.getElementById('to-radius').click()")
        browser.evaluate("document.querySelector('#attacking .main').click()")
        until(browser, "document.querySelectorAll('#findings li').length === 2")
        assert "side the proven radius" in text(browser, "findings")
        assert browser.evaluate("document.getElementById('attack-message').hidden") is True
        assert browser.evaluate(SELF_CHECK)["wrong"] == []
        photograph(browser, f"proven-{width}-{scheme}.png")
        assert browser.errors == []
        browser.open(f"{server.url}api", width, scheme)
        assert browser.evaluate(SELF_CHECK)["wrong"] == []
        photograph(browser, f"api-{width}-{scheme}.png")
        assert browser.errors == []
        assert [address for address in browser.requests if not address.startswith((server.url, "data:"))] == []
