"""``heatsmooth serve`` over HTTP: a process of its own, or a server in this one where limits are set low."""

import http.client
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from heatsmooth.certification.settings import Settings
from heatsmooth.commands.inputs import Network
from heatsmooth.commands.line import run
from heatsmooth.commands.serve import Serve
from heatsmooth.models import save
from heatsmooth.serving import ServedNetwork, Server, connection, site
from heatsmooth.serving.events import Done, Event
from heatsmooth.serving.limits import Rate
from heatsmooth.serving.worker import Study
from tests.conftest import Linear, tiny_classifier
from tests.faults.bombs import png

SIDE = 12


def picture(kind: str = "PNG", *, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0]), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.fixture
def subject(linear: Linear) -> ServedNetwork:
    settings = Settings(0.25, n=1000, n0=100, adaptive=True, tolerance=0.01)
    return ServedNetwork(linear.eval(), settings, seed=3, shape=(1, 4, 4))


@contextmanager
def serving(model: Path | None, *options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "heatsmooth", "serve", "--port", "0"]
    if model is not None:
        command += ["--from", str(model), "--sigma", "0.25"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(("http://127.0.0.1:", "http://0.0.0.0:")), (
            line,
            process.stderr and process.stderr.read(),
        )
        yield line.split()[0], process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "tiny.safetensors"
    save(tiny_classifier(), path)
    return path


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with serving(model, "--image-size", str(SIDE), "--n", "300") as (address, _):
        yield address


def ask(url: str, path: str = "/", body: bytes | None = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return found


def events(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


@contextmanager
def in_this_process(subject: ServedNetwork) -> Iterator[Server]:
    found = Server(subject, port=0)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.close()
        thread.join()


def test_the_page_brings_all_it_needs(url: str) -> None:
    status, html, headers = ask(url)
    assert status == 200
    assert "script-src 'sha256-" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert headers["x-content-type-options"] == "nosniff"
    assert b"http://" not in html.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in html


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_kind_of_image_is_certified(url: str, kind: str) -> None:
    status, content, _ = ask(url, "/certify", picture(kind))
    found = events(content)
    assert status == 200
    assert found[-1]["kind"] == "done"
    assert max(event["radius"] for event in found if event["kind"] == "radius") > 0.1


def test_modes_are_converted(url: str) -> None:
    for mode in ("1", "L", "LA", "P", "RGBA", "I;16"):
        assert ask(url, "/certify", picture(mode=mode))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/certify", b"no image", {}, 400, "expected a readable image"),
        ("/certify", b"", {}, 400, "expected a readable image"),
        ("/certify", picture()[:200], {}, 400, "expected a readable image"),
        ("/certify", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", {}, 400, "another kind"),
        (
            "/certify",
            png(1_000_000, 1),
            {},
            400,
            "sides of at most 65,535 pixels, got 1000000×1 pixels; make it smaller",
        ),
        ("/certify", png(7_000, 7_200), {}, 400, "at most 50,000,000 pixels"),
        ("/certify", bytes(10_000_001), {}, 413, "at most 10 MB"),
        ("/certify", b"x", {"Content-Length": "9" * 18}, 413, "at most 10 MB"),
        ("/certify", b"x", {"Content-Length": "9" * 30}, 400, "expected a valid HTTP request"),
        ("/certify", b"x", {"Content-Length": "-1"}, 400, "expected a valid HTTP request"),
        ("/attack?eps=nan", picture(), {}, 400, "eps: expected a distance"),
        ("/attack?eps=1e9", picture(), {}, 400, "eps: expected a distance"),
        ("/attack", picture(), {}, 400, "eps: expected a distance"),
        ("/nothing", picture(), {}, 404, "expected /certify"),
        ("/examples/../x.png", None, {}, 404, "expected /"),
        ("/", None, {"Host": "evil.example"}, 403, "another host"),
        ("/certify", picture(), {"Host": "evil.example:80"}, 403, "another host"),
        ("/certify", picture(), {"Origin": "http://evil.example"}, 403, "another site"),
        ("/certify", picture(), {"Sec-Fetch-Site": "cross-site"}, 403, "another site"),
    ],
    ids=range(19),
)
def test_what_it_refuses_it_says_in_one_line(
    url: str, path: str, body: bytes | None, headers: dict[str, str], status: int, words: str
) -> None:
    found, content, _ = ask(url, path, body, **headers)
    assert found == status
    assert words in content.decode()
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")
    assert b"0x" not in content


def test_a_decompression_bomb_is_not_unpacked(url: str) -> None:
    for side in (7100, 20_000):
        file = io.BytesIO()
        Image.fromarray(np.zeros((1, 1), np.uint8)).save(file, "PNG")
        content = bytearray(file.getvalue())
        content[16:24] = side.to_bytes(4, "big") * 2
        content[29:33] = zlib.crc32(bytes(content[12:29])).to_bytes(4, "big")
        status, line, _ = ask(url, "/certify", bytes(content))
        assert status == 400
        assert line.count(b"\n") == 1


def test_it_survives_nonsense(url: str) -> None:
    address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
    lines = (b"\x16\x03\x01\x02\x00", b"BREW / HTTP/1.1\r\n\r\n", b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"")
    for line in (*lines, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"GET /" + b"a" * 70_000 + b"\r\n\r\n"):
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(line + b"\n")
            connection.shutdown(socket.SHUT_WR)
            assert b" 200 " not in connection.recv(100)
    assert ask(url)[0] == 200


def test_fifty_at_once(url: str) -> None:
    pictures = [picture(size=(20 + i, 20)) for i in range(50)]
    with ThreadPoolExecutor(50) as visitors:
        asked = [
            visitors.submit(ask, url, "/attack?eps=0.5" if i % 5 == 0 else "/certify", p)
            for i, p in enumerate(pictures)
        ]
        answers = [answer.result() for answer in asked]
    assert [status for status, _, _ in answers] == [200] * 50
    assert {events(content)[-1]["kind"] for _, content, _ in answers} == {"done", "average"}
    assert b"error" not in b"".join(content for _, content, _ in answers)


def test_too_much_is_refused_and_then_it_goes_on(subject: ServedNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "STUDIES", 1)
    with in_this_process(subject) as found:
        gate = threading.Event()

        def waiting(_: int) -> Study:
            gate.wait()
            yield Done(samples=7)

        told: SimpleQueue[Event | None] = SimpleQueue()
        found.site.worker.submit(waiting, told.put)
        status, line, headers = ask(found.url, "/certify", picture())
        assert (status, headers["retry-after"]) == (503, "5")
        assert line == b"too many images in progress; try again in a few seconds\n"
        gate.set()
        assert told.get(timeout=10) == Done(samples=7)
        assert told.get(timeout=10) is None
        for rate in (found.site.rate, Rate(1, 1000)):
            while found.site.worker.present:
                time.sleep(0.01)
            found.site.rate = rate
            assert ask(found.url, "/certify", picture())[0] == 200
        while found.site.worker.present:
            time.sleep(0.01)
        status, line, headers = ask(found.url, "/certify", picture())
        assert status == 429
        assert 900 < int(headers["retry-after"]) <= 1000
        assert line.decode() == f"too many images; try again in {headers['retry-after']} s\n"
        assert ask(found.url)[0] == 200, "the page itself is free"


def test_slow_clients_are_left(subject: ServedNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READING", 0.3)
    with in_this_process(subject) as found, socket.create_connection(("127.0.0.1", found.port)) as client:
        client.sendall(b"POST /certify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n")
        with pytest.raises(ConnectionError):
            drip(client)


def drip(client: socket.socket) -> None:
    for _ in range(100):
        client.sendall(b"x")
        time.sleep(0.05)


def test_who_leaves_stops_the_work(subject: ServedNetwork) -> None:
    subject.settings = Settings(0.25, n=10**8, adaptive=True, tolerance=1e-9)
    with in_this_process(subject) as found:
        connection = http.client.HTTPConnection(urlsplit(found.url).netloc, timeout=30)
        connection.request("POST", "/certify", picture())
        answer = connection.getresponse()
        assert json.loads(answer.readline())["kind"] == "image"
        assert found.site.worker.present == 1
        answer.close()
        connection.close()
        end = time.monotonic() + 10
        while found.site.worker.present:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_it_stops_when_asked(model: Path, name: str) -> None:
    with serving(model, "--image-size", str(SIDE), "--n", "100000000") as (url, process):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request("POST", "/certify", picture())
        answer = connection.getresponse()
        answer.readline()
        process.send_signal(getattr(signal, name))
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "heatsmooth: stopped\n"
        last = answer.read().splitlines()[-1]
        assert json.loads(last) == {"kind": "error", "message": "the server was stopped"}
        connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_page_about_it(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "docs/serve.md").read_text()
    commands = [
        shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()
    ]
    _, train, serve, predict, certify, attack, watch, token, exposed, build, docker = commands
    assert run([*train[1:], "--quiet"]) == 0
    assert serve[:2] == ["heatsmooth", "serve"]
    with serving(None, *serve[2:], "--n", "200") as (url, _):
        assert ask(url, "/examples/9.png")[0] == 200, "the embedded images, as the network knows them"
        Path("image.png").write_bytes(picture())
        for command, words in (
            (predict, b'{"predictions":[{'),
            (certify, b'{"certificates":[{"image":"image.png","average":'),
            (attack, b'{"attacks":[{'),
            (watch, b"event: image\ndata: {"),
        ):
            used = [part.replace("http://127.0.0.1:8000/", url) for part in command]
            done = subprocess.run(used, capture_output=True, check=True)
            assert done.stdout.startswith(words)
    Path(token[-1]).write_text("0123456789abcdef" * 2)
    assert token[:4] == ["openssl", "rand", "-hex", "16"]
    monkeypatch.setattr(Server, "serve_forever", lambda _: None)
    assert run([*exposed[1:], "--port", "0"]) == 0
    assert build == ["docker", "build", "--tag", "heatsmooth", "."]
    assert docker[docker.index("heatsmooth") :] == ["heatsmooth", *serve[-2:]], "what follows goes to heatsmooth serve"
    assert any(part.endswith("/runs/noisy:/model:ro") for part in docker)


def test_others_are_let_in_only_on_demand(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "--from", str(model), "--sigma", "0.25", "--image-size", "12"]
    assert run([*arguments, "--host", "0.0.0.0"]) == 2
    assert "add --expose" in capsys.readouterr().err
    opened = Serve(network=Network(source=model, image_size=12), sigma=0.25, host="0.0.0.0", port=0, expose=True).open()
    assert opened.exposed
    opened.close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run([*arguments, "--port", str(port)]) == 2
        assert "expected a free port" in capsys.readouterr().err


def test_bad_options_are_one_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "--from", str(model), "--image-size", "12", "--port", "0"]
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    for options, words in (
        (["--sigma", "-1"], "--sigma: expected"),
        (["--sigma", "0.25", "--class-names", str(names)], "expected 10 names"),
        (["--sigma", "0.25", "--class-names", str(tmp_path / "none")], "expected one name per line"),
        (["--sigma", "0.25", "--n", "5"], "--n: expected enough samples"),
        (["--sigma", "0.25", "--data", "nothing"], "--data: expected"),
    ):
        assert run([*arguments, *options]) == 2
        line = capsys.readouterr().err
        assert words in line
        assert line.count("\n") == 1
