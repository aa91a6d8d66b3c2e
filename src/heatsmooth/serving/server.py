"""The server: that of Python's standard library, with a limit on everything a visitor can request.

One request per connection. The response to a study is one line of JSON per event, as they occur. Every refusal is one
line of text. No data of a visitor is stored.
"""

import io
import json
import math
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import torch
from torch import Tensor

from heatsmooth.data import ImageSet, as_unit_interval
from heatsmooth.data.folder import read_image
from heatsmooth.errors import InputError
from heatsmooth.serving.limits import TokenBuckets, is_loopback, is_own_name
from heatsmooth.serving.page import Page, page
from heatsmooth.serving.studies import FURTHEST, ServedNetwork, attacking, certifying, png_bytes
from heatsmooth.serving.worker import BusyError, Event, Study, Task, Worker, report_failure

MOST_BYTES = 10_000_000
"""Largest upload."""
STUDIES, CONNECTIONS = 64, 128
"""Most studies and connections at a time."""
BURST, PER_SECOND = 100, 2.0
"""Studies of one client: at once, and per second in the long run."""
READING, WRITING, LINGERING = 20.0, 10.0, 2.0
"""Seconds that a client has to send its request, to receive a line of the response, and to receive a refusal."""
HEARTBEAT = 1.0
"""Seconds without an event after which a "waiting" event is sent, which also detects a closed connection."""
EXAMPLES = 10


class RefusedError(Exception):
    """A request that is refused with a status and one line."""

    def __init__(self, status: HTTPStatus, line: str, **headers: str) -> None:
        super().__init__(line)
        self.status, self.headers = status, headers


class Server(ThreadingHTTPServer):
    """Serves the page about one network; call ``close`` after ``serve_forever``.

    ``served``: the network.
    ``host``, ``port``: the address; port 0 selects a free one.
    ``examples``: images that the page offers.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(
        self, served: ServedNetwork, *, host: str = "127.0.0.1", port: int = 8000, examples: ImageSet | None
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.host, self.served = host, served
        self.rate = TokenBuckets(rate=PER_SECOND, burst=BURST)
        self._connections = threading.Semaphore(CONNECTIONS)
        self.examples = _pictures(examples)
        self.page: Page = page(served, examples=len(self.examples), most_bytes=MOST_BYTES, furthest=FURTHEST)
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"`port` {port}: expected a free port of {host}, got {reason}; use another, or 0 for any free port"
            ) from None
        self.worker = Worker(served.sampler(), most=STUDIES)

    @property
    def url(self) -> str:
        """The address of the page."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_address[1]}/"

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.host)

    def close(self) -> None:
        """Stop the network, notify waiting visitors, and free the port."""
        self.worker.close()
        end = time.monotonic() + LINGERING
        for _ in range(CONNECTIONS):  # those that are free, then those that become free
            self._connections.acquire(timeout=max(0.0, end - time.monotonic()))
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the connection in a thread, or refuse it if there are too many."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(
                b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 5\r\n\r\ntoo many connections; try again\n"
            )
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the connection, then allow another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """One line on the console; nothing if the client disconnected."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            report_failure(error)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "heatsmooth", ""
    refused = False

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Timed(self.connection, READING))

    def handle(self) -> None:
        super().handle()
        if not self.refused:
            return
        with suppress(OSError):  # receive the rest of the request, so that the client can read the response
            self.connection.shutdown(socket.SHUT_WR)
            rest = _Timed(self.connection, LINGERING)
            while rest.read(1 << 16):
                pass

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def _respond(self, method: Callable[[str, str], None]) -> None:
        try:
            if not is_own_name(self.headers.get("Host"), self.server.host):
                raise RefusedError(
                    HTTPStatus.FORBIDDEN, f"expected {self.server.url}, got another host; open that address"
                )
            path, _, query = self.path.partition("?")
            method(path, query)
        except RefusedError as refusal:
            self._refuse(refusal.status, str(refusal), **refusal.headers)
        except InputError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except BusyError:
            line = "too many images in progress; try again in a few seconds"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, line, **{"Retry-After": "5"})

    def _get(self, path: str, _: str) -> None:
        if path == "/":
            shown = self.server.page
            self._send(
                HTTPStatus.OK, shown.html, "text/html; charset=utf-8", **{"Content-Security-Policy": shown.policy}
            )
            return
        number = path.removeprefix("/examples/").removesuffix(".png")
        if path != f"/examples/{number}.png" or number not in self.server.examples:
            raise RefusedError(HTTPStatus.NOT_FOUND, "expected / or one of the examples, got another address; open /")
        self._send(HTTPStatus.OK, self.server.examples[number], "image/png")

    def _post(self, path: str, query: str) -> None:
        origin, own = self.headers.get("Origin"), self.headers["Host"].lower()
        foreign = self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if foreign or origin not in (None, f"http://{own}", f"https://{own}"):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "expected a request from the page of this server, got one from another site; open its page",
            )
        served = self.server.served
        if path == "/certify":
            self._stream(partial(certifying, served, self._image()))
        elif path == "/attack":
            eps = _distance(query)
            self._stream(partial(attacking, served, self._image(), eps=eps))
        else:
            raise RefusedError(
                HTTPStatus.NOT_FOUND, "expected /certify or /attack, got another address; use one of these"
            )

    def _image(self) -> Tensor:
        """The uploaded image in the size of the network, float32 in [0, 1]; read only if a study can start."""
        wait = self.server.rate.wait(self.client_address[0])
        if wait > 0:
            later = {"Retry-After": str(math.ceil(wait))}
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS, f"too many images; try again in {math.ceil(wait)} s", **later
            )
        self.server.worker.check_room()
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(
                HTTPStatus.LENGTH_REQUIRED, "expected the number of bytes as Content-Length, got none; send that header"
            )
        if len(length) > 12 or int(length) > MOST_BYTES:
            most = f"{MOST_BYTES // 1_000_000} MB"
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {most}, got more; make the image smaller"
            )
        content = self.rfile.read(int(length))
        channels, height, width = self.server.served.shape
        pixels = read_image(io.BytesIO(content), (height, width), channels=channels, name="the file")
        return as_unit_interval(torch.from_numpy(pixels))

    def _stream(self, start: Callable[[int], Study]) -> None:
        """Send the events of a study, one per line, until it ends or the visitor disconnects."""
        task = self.server.worker.submit(start)
        try:
            self._head(HTTPStatus.OK, "application/x-ndjson")
            while (event := self._event(task)) is not None:
                self.wfile.write(json.dumps(event).encode() + b"\n")
        finally:
            task.cancelled = True

    def _event(self, task: Task) -> Event | None:
        try:
            return task.event(HEARTBEAT)
        except queue.Empty:
            return {"kind": "waiting", "present": self.server.worker.present}

    def _refuse(self, status: HTTPStatus, line: str, **headers: str) -> None:
        self.refused = True
        self._send(status, f"{line}\n".encode(), "text/plain; charset=utf-8", **headers)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, **headers: str) -> None:
        self._head(status, kind, **{"Content-Length": str(len(content))}, **headers)
        self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, **headers: str) -> None:
        self.connection.settimeout(WRITING)
        self.send_response(status)
        safe = {
            "Content-Type": kind,
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in (safe | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse what the base class refuses: a malformed request, or one of an unknown method."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._refuse(status, status.phrase.lower())

    def log_message(self, *_: Any) -> None:
        """Log nothing about visitors."""


class _Timed(io.RawIOBase):
    """The data of a connection, with ``TimeoutError`` after ``seconds`` in total, however slowly they arrive."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _distance(query: str) -> float:
    text = parse_qs(query).get("eps", [""])[0]
    try:
        eps = float(text)
    except ValueError:
        eps = math.nan
    if not 0 < eps <= FURTHEST:
        raise InputError(f"eps: expected a distance above 0, at most {FURTHEST:g}, got {text[:20]!r}; use another")
    return eps


def _pictures(examples: ImageSet | None) -> dict[str, bytes]:
    """Some images of a set, by number, as PNG files: the first of each class if there are labels."""
    if examples is None:
        return {}
    positions = torch.arange(min(len(examples), EXAMPLES))
    if examples.labels is not None:
        labels = examples.known_labels()
        first = [int((labels == label).nonzero()[0]) for label in labels.unique()[:EXAMPLES]]
        positions = torch.tensor(first)
    pixels = (examples.images(positions) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return {str(number): png_bytes(image) for number, image in enumerate(pixels)}
