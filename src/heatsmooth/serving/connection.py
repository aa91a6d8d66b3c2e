"""A connection of uvicorn, with limits that uvicorn does not have: slow clients, and too many connections.

This is all the HTTP that is written by hand here.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 512
"""Most connections at a time."""
READING, WRITING = 20.0, 10.0
"""Seconds that a client has to send its whole request, and to receive what was written to it."""
INVALID = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
INVALID += b"expected a valid HTTP request, got another; check it\n"
FULL = b"HTTP/1.1 503 Busy\r\nRetry-After: 5\r\nConnection: close\r\n\r\ntoo many connections; try again\n"


class Connection(H11Protocol):
    """One connection; it is cut if its client sends or receives too slowly, byte by byte or not at all."""

    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that pause_writing tells of every byte that waits
        self._reading = self.loop.call_later(READING, self._cut_if_unread)
        if len(self.connections) > CONNECTIONS:
            transport.write(FULL)
            transport.close()

    def on_response_complete(self) -> None:
        self._stop(self._reading)
        self._reading = self.loop.call_later(READING, self._cut_if_unread)
        super().on_response_complete()

    def _cut_if_unread(self) -> None:
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(WRITING, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop(self._reading)
        self._stop(self._writing)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuse, and read on until the client closes: to close on what it still sends would lose the answer."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else another response has begun
            self.transport.write(INVALID)
        self._refused = True
        self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def _stop(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
