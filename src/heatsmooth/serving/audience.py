"""From the thread of the network to a visitor: events of studies, as server-sent events, lines of JSON, or a list."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from heatsmooth.serving.events import Event, Failed, Waiting
from heatsmooth.serving.worker import FAILURE, STOPPED, Study, Worker

HEARTBEAT = 1.0
"""Seconds without an event after which a ``Waiting`` event is sent."""
Encode = Callable[[Event], bytes]


def as_line(event: Event) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(event) + b"\n"


def as_sent_event(event: Event) -> bytes:
    """One server-sent event, named after its kind."""
    return b"event: " + str(event.__struct_config__.tag).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


class Audience:
    """One visitor of some studies, which start at once; ``leave`` stops them.

    Raises ``BusyError`` if there is no room for all of them.
    """

    def __init__(self, worker: Worker, starts: list[Callable[[int], Study]]) -> None:
        worker.check_room(len(starts))
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()
        self._tasks = [worker.submit(start, partial(self._tell, index)) for index, start in enumerate(starts)]

    def _tell(self, index: int, event: Event | None) -> None:
        """Called in the thread of the worker."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    async def events(self) -> AsyncIterator[Event]:
        """The events of all studies as they occur; of several, each says which."""
        left = len(self._tasks)
        several = left > 1
        while left:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    index, event = await self._events.get()
            except TimeoutError:
                yield Waiting(present=self._worker.present)
                continue
            if event is None:
                left -= 1
            else:
                yield structs.replace(event, index=index) if several else event

    async def all_events(self, request: Request) -> list[list[Event]]:
        """The events of each study, when all have ended; an error if one failed, or if the visitor left."""
        gathering = asyncio.create_task(self._gathered())
        leaving = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({gathering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not gathering.done():
                raise ClientDisconnect
            return gathering.result()
        finally:
            gathering.cancel()
            leaving.cancel()
            self.leave()

    async def _gathered(self) -> list[list[Event]]:
        told: list[list[Event]] = [[] for _ in self._tasks]
        async for event in self.events():
            if isinstance(event, Failed):
                raise HTTPException({FAILURE: 500, STOPPED: 503}.get(event.message, 400), event.message)
            if not isinstance(event, Waiting):
                told[event.index or 0].append(event)
        return told

    def leave(self) -> None:
        """Stop the studies."""
        for task in self._tasks:
            task.cancelled = True


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Stream(StreamingResponse):
    """The events of an audience as they occur; it leaves when the visitor does."""

    def __init__(self, audience: Audience, encode: Encode, media_type: str) -> None:
        self._audience = audience
        headers = {"X-Accel-Buffering": "no"}  # a proxy must not hold the events back
        super().__init__((encode(event) async for event in audience.events()), headers=headers, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._audience.leave()
