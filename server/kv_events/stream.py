"""GET /v1/kv/events: the cache's events as server-sent events, or with `poll=true` as a JSON array.

What must stay true: a reader sees a picture and then every change, or, when it names a place that is still kept, every
change from there on; a reader that is too slow is dropped, and its connection broken so that it can tell; nobody waits
for a reader; a reader that has left holds nothing; a stopping server ends its streams.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from edgellm.server.errors import ApiError, overloaded
from edgellm.server.kv_events.ledger import Behind
from edgellm.server.kv_events.mirror import KvMirror, Numbered, Reader
from edgellm.server.kv_events.query import read_query
from edgellm.server.kv_events.trtllm import event_json
from edgellm.server.load import Load
from edgellm.server.protocol import ABORT, PROBE
from edgellm.server.settings import ServerSettings
from edgellm.server.wire import COMMENT, STREAM_HEADERS, to_json
from edgellm.server.write_watch import WriteWatch

log = logging.getLogger("edgellm.server")

PATH = "/v1/kv/events"
MOST_READERS = 64
_SLICE = 16  # events encoded and written at once: about a millisecond
_TICK_S = 0.25  # how soon a reader notices that the server stops


def add_kv_events(app: FastAPI, mirror: KvMirror, settings: ServerSettings, load: Load, *, window_size: int) -> None:
    """Add the route. `window_size`: the engine's context in tokens. The caller keeps and closes `mirror`."""
    room = Room(mirror, load, settings, window_size)

    @app.get(PATH)
    async def kv_events(http: Request) -> Response:
        query = read_query(http)
        if mirror.closed:
            raise ApiError(503, "the cache is no longer followed", kind="server_error", code="engine_dead")
        if room.readers >= MOST_READERS:
            raise overloaded(f"{room.readers} readers of KV events are connected", settings.retry_after_s)
        reader = mirror.reader(snapshots=query.snapshots, resume=query.resume)
        if not query.poll:
            return EventStream(room, reader)
        try:
            events = await room.poll(reader, query.timeout_ms / 1e3)
        except Behind:
            raise overloaded("the reader fell behind", settings.retry_after_s) from None
        headers = {"last-event-id": reader.place, "cache-control": "no-cache"}
        return StreamingResponse(room.array(events), media_type="application/json", headers=headers)


class Room:
    """What the readers of one server share."""

    def __init__(self, mirror: KvMirror, load: Load, settings: ServerSettings, window_size: int) -> None:
        self.mirror = mirror
        self.settings = settings
        self.readers = 0
        self._load = load
        self._window_size = window_size

    @property
    def closing(self) -> bool:
        return self.mirror.closed or self._load.draining

    @contextmanager
    def seat(self) -> Iterator[asyncio.Event]:
        """Around one reader: counts it, and gives what is set whenever there may be more to read."""
        loop, more = asyncio.get_running_loop(), asyncio.Event()
        end = self.mirror.on_change(lambda: loop.call_soon_threadsafe(more.set))
        self.readers += 1
        try:
            yield more
        finally:
            self.readers -= 1
            end()

    def text(self, numbered: Numbered) -> str:
        """One event as JSON, ASCII."""
        return to_json(event_json(numbered, self._window_size))

    async def poll(self, reader: Reader, timeout_s: float) -> list[Numbered]:
        """What there is for a reader, waiting for the first event at most `timeout_s`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        with self.seat() as more:
            while True:
                more.clear()
                found = reader.take(sys.maxsize)  # a picture is whole, or it is none
                left = end - loop.time()
                if found or left <= 0 or self.closing:
                    return found
                await _wait(more, min(left, _TICK_S))

    async def array(self, events: list[Numbered]) -> AsyncIterator[str]:
        """JSON in slices, so that a large picture does not hold up the event loop."""
        for start in range(0, len(events), _SLICE):
            part = ",".join(map(self.text, events[start : start + _SLICE]))
            yield f",{part}" if start else f"[{part}"
            await asyncio.sleep(0)
        yield "]" if events else "[]"


class EventStream(Response):
    """One reader's stream."""

    def __init__(self, room: Room, reader: Reader) -> None:
        self.status_code = 200
        self.background = None
        self._room = room
        self._reader = reader
        self._left = False
        self._stalled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][PROBE] = COMMENT
        task = asyncio.current_task()
        assert task is not None
        self._writing = WriteWatch(self._room.settings.write_timeout_s, partial(self._give_up, task))
        with self._room.seat() as more:
            watcher = asyncio.create_task(self._watch(receive, more))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                await self._follow(send, more)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except (Behind, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError):
                    if not self._stalled:
                        raise
                    task.uncancel()
                log.warning("a reader of KV events was too slow and is dropped")
                if (abort := scope["state"].get(ABORT)) is not None:
                    abort()  # closing would wait until the reader takes what is buffered
                    await asyncio.sleep(0)  # the connection is lost before the answer is taken for incomplete
            finally:
                self._writing.close()
                watcher.cancel()

    async def _follow(self, send: Send, more: asyncio.Event) -> None:
        loop, ping_s = asyncio.get_running_loop(), self._room.settings.ping_interval_s
        written = -ping_s  # a stream that resumes with nothing to tell says at once that it is there
        while not self._left:
            more.clear()
            while not self._left and (events := self._reader.take(_SLICE)):
                await self._write(send, "".join(map(self._event, events)).encode("ascii"))
                written = loop.time()
            if self._room.closing:
                return
            if loop.time() - written >= ping_s:
                await self._write(send, COMMENT)
                written = loop.time()
            await _wait(more, min(_TICK_S, ping_s))

    def _event(self, numbered: Numbered) -> str:
        place = "" if numbered.resume is None else f"id: {numbered.resume}\n"
        return f"{place}data: {self._room.text(numbered)}\n\n"

    async def _write(self, send: Send, data: bytes) -> None:
        with self._writing:
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _watch(self, receive: Receive, more: asyncio.Event) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        more.set()

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        self._stalled = True
        task.cancel()


async def _wait(more: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(more.wait(), timeout_s)
