"""The board in a real browser: drawn whole, sorted, rows switched on and off, and the envelope that follows them.

With HEATSMOOTH_SCREENSHOTS=DIR, the pages are saved there.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heatsmooth as hs
from heatsmooth.reporting.board.page import BoardResult
from tests.browser import SELF_CHECK, Browser
from tests.test_board import write_field, write_log
from tests.test_report import HOSTILE

NAMES = "[...document.querySelectorAll('%s tr.row')].map((row) => row.cells[0].textContent.trim())"
PATH = "document.querySelector('svg.wide .%s[data-key=%s]').getAttribute('d')"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> BoardResult:
    """Twenty logs, one of them truncated, and one about other images with a hostile name."""
    root = write_field(tmp_path_factory.mktemp("board") / "logs")
    first = sorted(root.rglob("sigma_0.25"))[0]
    first.write_text("".join(first.read_text().splitlines(keepends=True)[:30]))
    long = "a-rather-long-name-without-any-place-to-break-it-" * 3
    write_log(root / f"other/{long}{HOSTILE.replace('/', '')}/sigma_0.50", 3, sigma=0.5, data=1)
    return hs.board([root], root.parent / "out")


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (corner.split() for corner in path.removeprefix("M").split("L"))]


def column(result: BoardResult, sigma: float, radius: str) -> dict[str, float]:
    rows = [row for row in result.rows if row.data == result.rows[0].data and row.sigma == sigma and row.drawn]
    return {row.name: row.certified_accuracy[radius][0] for row in rows}


def group(browser: Browser, sigma: str) -> str:
    return str(browser.evaluate(f"document.querySelector('tbody.group[data-name=\"σ {sigma}\"]').dataset.group"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_board_is_drawn_whole(browser: Browser, board: BoardResult, width: int, scheme: str) -> None:
    browser.open(Path(board.out).as_uri(), width, scheme)
    found = browser.evaluate(SELF_CHECK)
    if folder := os.environ.get("HEATSMOOTH_SCREENSHOTS"):
        browser.save(Path(folder) / f"board-{width}-{scheme}.png")
    assert found["wrong"] == []
    assert found["figures"] == 2
    assert (max(map(int, found["ground"][4:-1].split(","))) < 60) == (scheme == "dark")
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert "Page.javascriptDialogOpening" not in browser.events


def test_headers_sort_within_a_noise_level_and_over_all(browser: Browser, board: BoardResult) -> None:
    browser.open(Path(board.out).as_uri(), 1280, "light")
    key = group(browser, "0.5")
    head = "document.querySelector('#data-1').querySelectorAll('thead th')[4]"
    assert browser.evaluate(f"{head}.querySelector('button').textContent") == "r = 0.5"
    expected = sorted(column(board, 0.5, "0.5").items(), key=lambda item: -item[1])
    browser.evaluate(f"{head}.querySelector('button').focus()")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    browser.send("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    assert browser.evaluate(f"{head}.ariaSort") == "descending"
    names = browser.evaluate(NAMES % f"tbody[data-group={key}]")
    shares = column(board, 0.5, "0.5")
    assert [shares[name] for name in names] == [share for _, share in expected]
    browser.evaluate(f"{head}.querySelector('button').click()")
    assert browser.evaluate(f"{head}.ariaSort") == "ascending"
    names = browser.evaluate(NAMES % f"tbody[data-group={key}]")
    assert [shares[name] for name in names] == sorted(shares.values())
    browser.evaluate("document.querySelector('[data-grouped]').click()")
    flat = browser.evaluate(
        "[...document.querySelectorAll('#data-1 .flat .row')].map((row) => +row.cells[4].dataset.v)"
    )
    assert len(flat) == 20
    assert flat == sorted(flat)
    browser.evaluate("document.querySelector('[data-grouped]').click()")
    assert len(browser.evaluate(NAMES % f"tbody[data-group={key}]")) == len(shares)
    assert browser.evaluate("document.querySelectorAll('#data-1 th[aria-sort]:not([aria-sort=none])').length") == 1
    browser.evaluate("document.querySelector('#data-1 thead button').click()")
    names = browser.evaluate(NAMES % f"tbody[data-group={key}]")
    assert names == sorted(names, key=lambda name: (name.rpartition("_")[0], int(name.rpartition("_")[2])))
    assert browser.errors == []


def test_switches_remove_lines_and_the_envelope_follows(browser: Browser, board: BoardResult) -> None:
    browser.open(Path(board.out).as_uri(), 1280, "light")
    key, shares = group(browser, "0.5"), column(board, 0.5, "0.5")
    best = max(shares, key=lambda name: shares[name])

    def state() -> dict[str, Any]:
        lines = f"[...document.querySelectorAll('svg.wide .faint[data-key^={key}r]')].length"
        cell = f"document.querySelector('tbody[data-group={key}] tr.best').cells[4].textContent"
        rows = f"[...document.querySelectorAll('tbody[data-group={key}] tr.row')]"
        return {
            "lines": browser.evaluate(lines),
            "envelope": browser.evaluate(cell),
            "top": browser.evaluate(
                f"{rows}.filter((row) => row.cells[4].matches('.top')).map((row) => row.cells[0].textContent.trim())"
            ),
        }

    def switch(name: str) -> None:
        rows = f"[...document.querySelectorAll('tbody[data-group={key}] tr.row')]"
        browser.evaluate(
            f"{rows}.find((row) => row.cells[0].textContent.trim() === '{name}').querySelector('input').click()"
        )

    first = points(browser.evaluate(PATH % ("envelope", key)))
    assert state() == {"lines": len(shares), "envelope": f"{shares[best]:.3f}", "top": [best]}
    switch(best)
    others = {name: share for name, share in shares.items() if name != best}
    second = max(others, key=lambda name: others[name])
    assert state() == {"lines": len(shares) - 1, "envelope": f"{others[second]:.3f}", "top": [second]}
    lowered = points(browser.evaluate(PATH % ("envelope", key)))
    assert lowered != first
    switch(best)
    again = points(browser.evaluate(PATH % ("envelope", key)))
    np.testing.assert_allclose(again, first, atol=0.11)
    for name in others:
        switch(name)
    row = browser.evaluate(f"document.querySelector('svg.wide .faint[data-key^={key}r]').getAttribute('d')")
    assert points(row) == points(browser.evaluate(PATH % ("envelope", key))), "of one row, it is that row"
    browser.evaluate("document.querySelector('#data-1 [data-all=off]').click()")
    assert browser.evaluate("document.querySelectorAll('#data-1 svg.wide .faint').length") == 0
    browser.evaluate(f"document.querySelector('tbody[data-group={key}] .heading input').click()")
    assert state() == {"lines": len(shares), "envelope": f"{shares[best]:.3f}", "top": [best]}
    assert browser.errors == []


def test_a_truncated_log_is_off_at_first_and_can_be_switched_on(browser: Browser, board: BoardResult) -> None:
    (cut,) = [row for row in board.rows if not row.drawn]
    browser.open(Path(board.out).as_uri(), 1280, "light")
    assert browser.evaluate("[...document.querySelectorAll('tr.off')].map((r) => r.cells[0].textContent.trim())") == [
        cut.name
    ]
    assert browser.evaluate("document.querySelectorAll('#data-1 svg.wide .faint').length") == 19
    browser.evaluate("document.querySelector('tr.off input').click()")
    assert browser.evaluate("document.querySelectorAll('#data-1 svg.wide .faint').length") == 20
    assert browser.evaluate("document.querySelectorAll('tr.off').length") == 0


def test_the_envelope_is_read_by_key_and_files_are_saved(browser: Browser, board: BoardResult) -> None:
    browser.open(Path(board.out).as_uri(), 390, "dark")
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.key("ArrowRight")
    words = browser.evaluate("document.querySelector('.tip').textContent")
    assert words.startswith("L2 radius r 0")
    shares = column(board, 0.5, "0")
    assert f"σ 0.5: {max(shares.values()):.3f}, " in words
    browser.evaluate(
        "window.saved = {}; URL.createObjectURL = (blob) => { window.blob = blob; return 'data:,'; };"
        "HTMLAnchorElement.prototype.click = function () { window.saved[this.download] = window.blob; }"
    )
    browser.evaluate("document.querySelectorAll('#data-1 [data-save]').forEach((button) => button.click())")
    svg, curves, table = (
        browser.evaluate(f"window.saved['{name}'].text()") for name in ("data-1.svg", "data-1-curves.csv", "data-1.csv")
    )
    assert "rgb(11, 98, 196)" in svg
    assert "var(" not in svg
    assert curves.splitlines()[0].startswith("radius,envelope σ 0.25,envelope σ 0.5,envelope σ 1,")
    assert len(table.splitlines()) == 1 + 1 + 3 * 2 + 20
