"""A real browser: Chromium, driven by the DevTools protocol over a pipe, and what must hold of any page in it."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SELF_CHECK = r"""
(() => {
  const wrong = [], seen = (e) => e.checkVisibility() && e.getClientRects().length > 0;
  const name = (e) => `${e.tagName}.${e.getAttribute("class") || ""} "${(e.textContent || "").trim().slice(0, 40)}"`;
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) wrong.push(`page wider than the window: ${width}`);
  for (const e of document.querySelectorAll("main *, header *, nav *, footer *")) {
    if (!seen(e) || e.closest("svg, .scroll, pre")) continue;
    const box = e.getBoundingClientRect(), hides = getComputedStyle(e).overflowX === "hidden";
    if (box.right > innerWidth + 1 || box.left < -1) wrong.push(`outside the window: ${name(e)}`);
    if (hides && e.scrollWidth > e.clientWidth + 1) wrong.push(`cut: ${name(e)}`);
  }
  const written = "h1, h2, h3, h4, p, dt, dd, li, summary, figcaption, .tile > *, .tools > *, td, th";
  const blocks = [...document.querySelectorAll(written)].filter((e) => seen(e) && e.textContent.trim());
  for (const e of blocks) {
    if (e.querySelector("pre")) continue;
    const range = document.createRange();
    range.selectNodeContents(e);
    const text = range.getBoundingClientRect(), box = e.getBoundingClientRect();
    if (text.right > box.right + 1.5 || text.bottom > box.bottom + 4) wrong.push(`text leaves its box: ${name(e)}`);
  }
  const leaves = blocks.filter((e) => !e.closest(".scroll")).map((e) => [e, e.getBoundingClientRect()]);
  leaves.forEach(([a, p], i) => leaves.slice(i + 1).forEach(([b, q]) => {
    if (!a.contains(b) && !b.contains(a) && overlap(p, q)) wrong.push(`overlap: ${name(a)} and ${name(b)}`);
  }));
  let figures = 0;
  for (const figure of document.querySelectorAll(".figure")) {
    const key = figure.dataset.key, drawn = [...figure.querySelectorAll("svg.chart")].filter(seen);
    if (drawn.length !== 1) { wrong.push(`${drawn.length} drawings: ${key}`); continue; }
    const svg = drawn[0], frame = svg.getBoundingClientRect();
    const lines = [...svg.querySelectorAll("path.line")].filter((p) => p.getTotalLength() > 30);
    if (!lines.length || frame.height < 120) wrong.push(`not drawn: ${key}`);
    for (const p of lines) {
      const ink = getComputedStyle(p).stroke, ground = getComputedStyle(figure).backgroundColor;
      if (ink === ground || ink === "none") wrong.push(`invisible line: ${key}`);
    }
    const texts = [...svg.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
    texts.forEach(([t, box], i) => {
      const across = box.left < frame.left - 1 || box.right > frame.right + 1;
      if (across || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) wrong.push(`outside ${key}: ${name(t)}`);
      if (box.height < 9) wrong.push(`too small in ${key}: ${name(t)}`);
      texts.slice(i + 1).forEach(([u, other]) => {
        if (overlap(box, other)) wrong.push(`overlap in ${key}: ${name(t)} and ${name(u)}`);
      });
    });
    figures++;
  }
  const images = [...document.images], missing = (image) => seen(image) && (!image.complete || !image.naturalWidth);
  if (images.some(missing)) wrong.push("an image is not drawn");
  return { wrong, figures, images: images.length, ground: getComputedStyle(document.body).backgroundColor };
})()
"""


class Browser:
    """One headless browser; ``errors`` and ``requests`` are those of the page opened last."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", CHROMIUM, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self._out, self._in, self._buffer, self._number = to_write, from_read, b"", 0
        self.session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.events: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self.session = None
        self.send("Browser.close")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._out)
        os.close(self._in)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        call: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session is not None:
            call["sessionId"] = self.session
        os.write(self._out, json.dumps(call).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            message = self._message(deadline)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def open(self, url: str, width: int, scheme: str) -> None:
        self.errors, self.requests, self.events = [], [], []
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while "Page.loadEventFired" not in self.events:
            self._message(deadline)

    def evaluate(self, code: str) -> Any:
        found = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def save(self, path: Path, *, whole: bool = True) -> None:
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
