"""The JSON interface of ``heatsmooth serve``, what watches over it, and hostile clients of its connections."""

import base64
import http.client
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import torch

from heatsmooth.certification.settings import Settings
from heatsmooth.commands.line import run
from heatsmooth.models import Classifier, NetworkSpec, build, save
from heatsmooth.serving import ServedNetwork, Server, connection, events, site, uploads
from heatsmooth.serving.limits import Rate
from heatsmooth.serving.openapi import ATTACKED, OPERATIONS, STREAMED
from tests.conftest import Linear
from tests.test_serve import ask, in_this_process, picture, serving

ROOT = Path(__file__).parents[1]
TOKEN = "0123456789abcdef"
SENT = {"Accept": "text/event-stream"}


@pytest.fixture
def subject(linear: Linear) -> ServedNetwork:
    settings = Settings(0.25, n=400, n0=100, adaptive=True, tolerance=0.01)
    return ServedNetwork(linear.eval(), settings, seed=3, shape=(1, 4, 4))


def lipschitz() -> Classifier:
    torch.manual_seed(0)
    return build(NetworkSpec("lipschitz-tiny", 10, 1, (0.5,), (1.0,), 28)).eval()


def endless(subject: ServedNetwork) -> ServedNetwork:
    subject.settings = Settings(0.25, n=10**8, adaptive=True, tolerance=1e-9)
    return subject


def form(*contents: bytes, field: str = "images") -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a form of files."""
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"; filename="%d.png"\r\n\r\n%s\r\n'
        % (field.encode(), number, content)
        for number, content in enumerate(contents)
    )
    return parts + b"--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def answered(url: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    status, content, _ = ask(url, path, body, **headers)
    assert status == 200, content
    return json.loads(content)


def agrees(kind: Any, value: Any) -> None:
    """The JSON is what the type, and so the OpenAPI document, says; nothing more and nothing less."""
    assert json.loads(msgspec.json.encode(msgspec.convert(value, kind))) == value


def test_batches_are_predicted_certified_and_attacked(subject: ServedNetwork) -> None:
    body, headers = form(picture(), picture(size=(9, 30)), picture("JPEG"))
    with in_this_process(subject) as server:
        predictions = answered(server.url, "/api/predict", body, **headers)
        agrees(events.Predictions, predictions)
        certificates = answered(server.url, "/api/certify", body, **headers)
        agrees(events.Certificates, certificates)
        attacks = answered(server.url, "/api/attack?eps=2", body, **headers)
        agrees(events.Attacks, attacks)
        alone = answered(server.url, "/api/predict", picture())
        agrees(events.Facts, answered(server.url, "/api/network"))
        agrees(events.Health, answered(server.url, "/healthz"))
    for answer, name in ((predictions, "predictions"), (certificates, "certificates"), (attacks, "attacks")):
        assert [one["image"] for one in answer[name]] == ["0.png", "1.png", "2.png"]
    assert alone["predictions"][0]["class"] == predictions["predictions"][0]["class"]
    assert alone["predictions"][0]["probability"] == pytest.approx(predictions["predictions"][0]["probability"], 1e-5)
    for one, certificate in zip(predictions["predictions"], certificates["certificates"], strict=True):
        assert "deterministic" not in one
        assert "network" not in certificate, "it is not Lipschitz by construction"
        average = certificate["average"]
        assert (average["subject"], average["abstain"]) == ("average", average["radius"] == 0)
        assert average["basis"].startswith("statistical, alpha=0.001")
    assert {(one["attack"]["subject"], one["average"]["n"]) for one in attacks["attacks"]} == {("network", 1000)}


def test_events_of_a_batch_say_which_image(subject: ServedNetwork) -> None:
    body, headers = form(picture(), picture(size=(9, 30)))
    with in_this_process(subject) as server:
        _, content, answer = ask(server.url, "/api/certify", body, **headers, **SENT)
        _, attack, _ = ask(server.url, "/api/attack?eps=2", picture(), **SENT)
    assert answer["content-type"] == "text/event-stream; charset=utf-8"
    told = sent_events(content)
    for event in told:
        agrees(_union(STREAMED), event)
    for index in (0, 1):
        kinds = [event["kind"] for event in told if event.get("index") == index]
        assert kinds[:2] == ["image", "copies"]
        assert kinds[-1] == "done"
        assert kinds.count("radius") > 1
    assert [event["kind"] for event in sent_events(attack)] == ["attack", "average"]
    for event in sent_events(attack):
        agrees(_union(ATTACKED), event)


def _union(kinds: tuple[type, ...]) -> Any:
    found: Any = kinds[0]
    for kind in kinds[1:]:
        found = found | kind
    return found


def sent_events(content: bytes) -> list[dict[str, Any]]:
    found = []
    for block in content.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['kind']}"
    return found


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_events_reach_curl_as_they_come_and_stop_when_it_leaves(subject: ServedNetwork) -> None:
    """The study never ends by itself, so whatever curl prints came while it ran."""
    with in_this_process(endless(subject)) as server:
        command = "curl --silent --no-buffer --header 'Accept: text/event-stream' --data-binary @-"
        curl = subprocess.Popen(
            [*shlex.split(command), f"{server.url}api/certify"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert curl.stdin is not None
        assert curl.stdout is not None
        curl.stdin.write(picture())
        curl.stdin.close()
        lines = [curl.stdout.readline() for _ in range(30)]
        radii = [json.loads(line[6:]) for line in lines if line.startswith(b'data: {"kind":"radius"')]
        assert len(radii) > 5
        assert [event["n"] for event in radii] == sorted({event["n"] for event in radii})
        assert server.site.worker.present == 1
        curl.kill()
        curl.stdout.close()
        curl.wait()
        until(lambda: server.site.worker.present == 0)
        waiting = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        waiting.request("POST", "/api/certify", picture())
        until(lambda: server.site.worker.present == 1)
        waiting.close()
        until(lambda: server.site.worker.present == 0)


def test_the_openapi_document_names_every_address(subject: ServedNetwork) -> None:
    with in_this_process(subject) as server:
        document = answered(server.url, "/openapi.json")
        status, page, headers = ask(server.url, "/api")
        routes = {(route.path, method) for route in server.app.routes for method in route.methods}  # type: ignore[attr-defined]
    told = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    assert told == {(path, method) for path, method in routes if method != "HEAD"}
    assert len(told) == len(OPERATIONS)
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(schemas)
    assert document["openapi"] == "3.1.0"
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'none'" in headers["content-security-policy"]
    for name in (*schemas, *(path for path, _ in told)):
        assert name in page.decode()
    assert not re.findall(rb"(?:src|href)=\"(?!#|/|data:)", page), "it loads nothing"


def test_metrics_are_text_for_prometheus(subject: ServedNetwork) -> None:
    body, headers = form(picture(), picture())
    with in_this_process(subject) as server:
        told = sent_events(ask(server.url, "/api/certify", body, **headers, **SENT)[1])
        ask(server.url, "/secret-path")
        _, content, answer = ask(server.url, "/metrics")
    assert answer["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in content.decode().splitlines() if not line.startswith("#"))
    assert float(lines["heatsmooth_images_total"]) == 2
    assert float(lines["heatsmooth_samples_total"]) == sum(event.get("samples", 0) for event in told) > 400
    assert float(lines['heatsmooth_requests_total{path="/api/certify",status="200"}']) == 1
    assert float(lines['heatsmooth_requests_total{path="other",status="404"}']) == 1
    assert float(lines["process_resident_memory_bytes"]) > 1e7
    assert "secret" not in content.decode()


def test_a_network_that_is_lipschitz_needs_no_noise() -> None:
    model = lipschitz()
    with in_this_process(ServedNetwork(model, None, seed=0, shape=(1, 28, 28))) as server:
        (prediction,) = answered(server.url, "/api/predict", picture())["predictions"]
        (certificate,) = answered(server.url, "/api/certify", picture())["certificates"]
        (attack,) = answered(server.url, "/api/attack?eps=0.001", picture())["attacks"]
        _, page, _ = ask(server.url)
    assert prediction["deterministic"]["basis"] == "deterministic"
    assert "l_bound" not in prediction
    assert certificate["network"] == prediction["deterministic"] | {
        "class": prediction["class"],
        "abstain": prediction["deterministic"]["radius"] == 0,
    }
    assert "average" not in certificate
    assert "average" not in attack
    assert b'id="proof"' in page
    assert b'id="copies"' not in page
    both = ServedNetwork(model, Settings(0.25, n=100, alpha=0.1, adaptive=True), seed=0, shape=(1, 28, 28))
    with in_this_process(both) as server:
        (certificate,) = answered(server.url, "/api/certify", picture())["certificates"]
    assert (certificate["network"]["subject"], certificate["average"]["subject"]) == ("network", "average")


def test_a_token_is_asked_of_everybody(subject: ServedNetwork) -> None:
    server = Server(subject, port=0, token=TOKEN)
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    with running(server):
        for path in ("/", "/api", "/metrics", "/api/network", "/nothing"):
            status, line, headers = ask(server.url, path)
            assert status == 401
            assert headers["www-authenticate"].startswith("Basic ")
            assert line.startswith(b"expected the token of this server")
            assert line.count(b"\n") == 1
        for wrong in ("Bearer", "Bearer x", f"Bearer {TOKEN}x", "Basic \xff", "Basic " + basic[:-4], f"Digest {TOKEN}"):
            assert ask(server.url, "/api/predict", picture(), Authorization=wrong)[0] == 401
        assert ask(server.url, "/healthz")[0] == 200
        for right in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
            assert ask(server.url, "/api/predict", picture(), Authorization=right)[0] == 200
        evil = {"Authorization": f"Basic {basic}", "Origin": "http://evil.example"}
        assert ask(server.url, "/api/predict", picture(), **evil)[0] == 403


@contextmanager
def running(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def test_hostile_forms_are_refused_in_one_line(subject: ServedNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture()
    many, headers = form(*[image] * 33)
    bad, _ = form(image, b"no image")
    large, _ = form(bytes(300_000))
    monkeypatch.setattr(uploads, "MOST_BYTES", 200_000)
    with in_this_process(subject) as server:
        for body, kind, status, words in (
            (many, headers, 400, "expected a form of 1 to 32 files, got: Too many files"),
            (bad, headers, 400, "file 2: expected a readable image"),
            (b"--x--\r\n", headers, 400, "expected a form of 1 to 32 files, got"),
            (b"garbage", headers, 400, "expected a form of 1 to 32 files"),
            (image, {"Content-Type": "multipart/form-data"}, 400, "expected a form of 1 to 32 files"),
            (bad.replace(b'; filename="0.png"', b""), headers, 400, "expected a form of 1 to 32 files"),
            (large, headers, 413, "expected at most"),
        ):
            found, line, _ = ask(server.url, "/api/predict", body, **kind)
            assert (found, words in line.decode(), line.count(b"\n")) == (status, True, 1), line
        connection_ = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        connection_.request("POST", "/api/predict", iter([bytes(1000)] * 300), {}, encode_chunked=True)
        assert connection_.getresponse().status == 413, "no length was announced, and it is counted all the same"
        connection_.close()
        server.site.rate = Rate(4, 1000)
        two, _ = form(image, image)
        spoofed = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"}
        assert ask(server.url, "/api/predict", two, **headers)[0] == 200
        assert ask(server.url, "/api/predict", form(image, image, image)[0], **headers, **spoofed)[0] == 429, (
            "each counts"
        )
        assert ask(server.url, "/api/predict")[0] == 405
        assert not server.site._uploading
        server.site.rate = Rate(100, 1000)
        for limit, why in (("UPLOADED_BY_ONE", "no client takes all of it"), ("UPLOADED", "uploads share the memory")):
            monkeypatch.setattr(site, limit, len(image) - 1)
            assert ask(server.url, "/api/predict", image)[0] == 503, why
            monkeypatch.undo()


def test_slow_and_many_connections_are_cut(subject: ServedNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READING", 0.3)
    monkeypatch.setattr(connection, "WRITING", 0.3)
    monkeypatch.setattr(connection, "CONNECTIONS", 2)
    with in_this_process(subject) as server:
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address) as silent, socket.create_connection(address) as drips:
            until(lambda: server.connections == 2)
            drips.sendall(b"GET / HTTP/1.1\r\n")
            with socket.create_connection(address) as third:
                assert third.recv(1000).startswith(b"HTTP/1.1 503 ")
            with pytest.raises(ConnectionError):
                repeat(drips, b"a: b\r\n", 200, 0.05)
            assert silent.recv(1) == b""
        until(lambda: not server.connections)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(address)
            with pytest.raises(ConnectionError):
                repeat(deaf, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 2000, 0.005)
        until(lambda: not server.connections)
        assert ask(server.url)[0] == 200


def repeat(client: socket.socket, content: bytes, times: int, pause: float) -> None:
    for _ in range(times):
        client.sendall(content)
        time.sleep(pause)


def test_the_dockerfile_serves_as_it_says(tmp_path: Path) -> None:
    """Docker does not run here: its files, its words and its two commands are tried without it."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    words = dict(steps)
    copied = [name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]]
    assert copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert int(words["USER"]) > 0
    assert f"--uid {words['USER']}" in words["RUN"]
    assert ".[serve]" in words["RUN"]
    assert "constraints.txt" in words["RUN"]
    (tmp_path / "model").mkdir()
    save(lipschitz(), tmp_path / "model/model.safetensors")
    (tmp_path / "token").write_text(TOKEN + "\n")
    entry = json.loads(words["ENTRYPOINT"])
    assert entry[:2] == ["heatsmooth", "serve"]
    assert (entry[entry.index("--host") + 1], entry[entry.index("--port") + 1]) == ("0.0.0.0", words["EXPOSE"])
    options = " ".join(entry[2:]).replace("/model", str(tmp_path / "model")).replace("--port 8000", "--port 0")
    with serving(None, *options.split(), "--token-file", str(tmp_path / "token")) as (url, process):
        check = json.loads(words["HEALTHCHECK"].split("CMD ")[1])
        assert check[0] == "python"
        url = url.replace("0.0.0.0", "127.0.0.1")
        used = [sys.executable, *(word.replace("http://127.0.0.1:8000/", url) for word in check[1:])]
        subprocess.run(used, check=True)
        assert ask(url)[0] == 401
        one = answered(url, "/api/predict", picture(), Authorization=f"Bearer {TOKEN}")["predictions"][0]
        assert one["deterministic"]["subject"] == "network"
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read().splitlines() == [
            f"heatsmooth: warning: whoever has the token can use {url.replace('127.0.0.1', '0.0.0.0')}; there is no "
            "encryption",
            "heatsmooth: stopped",
        ]


def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(build(NetworkSpec("tiny", 10, 1)), tmp_path / "plain.safetensors")
    arguments = ["serve", "--from", str(tmp_path / "plain.safetensors"), "--image-size", "12", "--port", "0"]
    (tmp_path / "short").write_text("1234")
    for options, words in (
        ([], "--sigma: expected the noise level, got none"),
        (["--sigma", "1", "--token-file", str(tmp_path / "short")], "--token-file"),
        (["--sigma", "1", "--token-file", str(tmp_path / "none")], "--token-file"),
    ):
        assert run([*arguments, *options]) == 2
        line = capsys.readouterr().err
        assert words in line
        assert line.count("\n") == 1
    for name in [name for name in sys.modules if name.startswith("heatsmooth.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run([*arguments, "--sigma", "1"]) == 2
    expected = "serve: expected starlette and uvicorn, got no uvicorn; pip install 'heatsmooth[serve]'"
    assert expected in capsys.readouterr().err


def test_little_http_is_written_by_hand() -> None:
    """Lines of code about connections, bytes and time limits; the rest is uvicorn's and Starlette's."""
    text = (ROOT / "src/heatsmooth/serving/connection.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 60
    for path in sorted((ROOT / "src/heatsmooth/serving").glob("*.py")):
        if path.name != "connection.py":
            assert not re.search(r"import h11|http\.server|HTTP/1|\.recv\(|\.sendall\(", path.read_text()), path
