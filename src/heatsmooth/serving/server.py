"""The server: the application on uvicorn, bound to its address, and how it ends."""

import asyncio
import logging
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from heatsmooth.data import ImageSet
from heatsmooth.errors import InputError
from heatsmooth.serving.app import application
from heatsmooth.serving.connection import Connection
from heatsmooth.serving.limits import is_loopback
from heatsmooth.serving.site import Site
from heatsmooth.serving.studies import ServedNetwork

LINGERING = 3.0
"""Seconds that visitors have to receive the rest when the server stops."""


class Server:
    """Serves the page about one network; call ``close`` after ``serve_forever``.

    ``served``: the network.
    ``host``, ``port``: the address; port 0 selects a free one.
    ``examples``: images that the page offers.
    ``token``: what every visitor must give; None for nothing.
    """

    def __init__(
        self,
        served: ServedNetwork,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        examples: ImageSet | None = None,
        token: str | None = None,
    ) -> None:
        self.host = host
        self._socket = _bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._ended = threading.Event()
        self._ended.set()
        try:
            self.site = Site(served, examples)
        except BaseException:
            self._socket.close()
            raise
        self.app = application(self.site, host=host, url=self.url, token=token)
        self._uvicorn = _Uvicorn(self.site, _configuration(self.app))

    @property
    def url(self) -> str:
        """The address of the page."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/"

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def connections(self) -> int:
        """Current number of connections."""
        return len(self._uvicorn.server_state.connections)

    def serve_forever(self) -> None:
        """Serve until ``shutdown``, or until a signal; then SIGINT or SIGTERM takes its usual effect."""
        self._ended.clear()
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Make ``serve_forever`` return, after visitors are told."""
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Stop the network, notify waiting visitors, and free the port."""
        self.shutdown()
        self._ended.wait(2 * LINGERING)
        self.site.worker.close()
        self._socket.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn, which stops the network and so ends all streams before it waits for them to end."""

    def __init__(self, site: Site, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._site.worker.close)
        await super().shutdown(sockets)


def _configuration(app: Starlette) -> uvicorn.Config:
    """One process without logs, lifespan, WebSockets or trust in the headers of proxies."""
    return uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=round(LINGERING),
    )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"`port` {port}: expected a free port of {host}, got {reason}; use another, or 0 for any free port"
        ) from None
