"""Carrying the answer to one request over HTTP: as server-sent events or as one JSON body.

What must stay true:
* Nothing is buffered: each delta is one event and one write (`wire` has their form).
* A failure before the first token is a status other than 200, unless the client already waited `headers_after_s`: then
  the stream has been opened (role delta, pings) so that no proxy gives up during a long prefill.
* A failure after the stream began breaks the connection (an error event where the surface has one; no final event, no
  final chunk) and is logged. It never looks like a complete answer. One generation that fails fails the request.
* When the client leaves, every generation is cancelled at once, whether it is queued, prefilling or decoding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edgellm.runtime.types import Output, Usage
from edgellm.server.errors import ApiError, as_api_error
from edgellm.server.generations import Generations
from edgellm.server.protocol import ABORT, PROBE
from edgellm.server.settings import ServerSettings
from edgellm.server.turns import CalledTool
from edgellm.server.wire import STREAM_HEADERS, Chunk, SideEvent, Wire
from edgellm.server.write_watch import WriteWatch

log = logging.getLogger("edgellm.server")


class Answer(Protocol):
    """Turns the outputs of a request's generations into what one API surface sends. Generations go by number."""

    @property
    def wire(self) -> Wire: ...

    @property
    def usage(self) -> Usage | None:
        """Of the whole request, when all have ended."""
        ...

    def tool_calls(self) -> tuple[CalledTool, ...]: ...

    def complete(self, index: int) -> bool:
        """It is finished although the model would go on: the generation is to be stopped."""
        ...

    def empty(self, index: int) -> bool:
        """It has neither text nor a tool call."""
        ...

    def opening(self) -> Iterable[Chunk]:
        """Chunks that open a stream."""
        ...

    def feed(self, index: int, output: Output) -> Iterable[Chunk | SideEvent]:
        """Chunks of one output; with the last output of a generation its closing ones too."""
        ...

    def closing(self) -> Iterable[Chunk]:
        """Chunks that end a stream, after the last output of all."""
        ...

    def body(self) -> Chunk:
        """The answer as one body, after everything was fed."""
        ...


class Course(Protocol):
    """How the generations of a request begin and end; see `lifecycle`."""

    @property
    def id(self) -> str: ...

    async def begin(self) -> Generations:
        """May wait; cancelled when the client leaves meanwhile."""
        ...

    def saw(self, index: int, output: Output) -> None:
        """Called with each output as it comes."""
        ...

    def end(self, outcome: str, finals: Mapping[int, Output]) -> None:
        """Called once, also when `begin` failed. `outcome`: "ok", "cancelled" or "error"."""
        ...


class GenerationResponse(Response):
    """Sends an answer. Owns its generations: whatever happens, they are finished or cancelled when this returns."""

    def __init__(self, course: Course, answer: Answer, settings: ServerSettings, *, stream: bool) -> None:
        self.status_code = 200
        self.background = None
        self._course = course
        self._generations: Generations | None = None
        self._answer = answer
        self._wire = answer.wire
        self._settings = settings
        self._stream = stream
        self._finals: dict[int, Output] = {}
        self._disconnected = False
        self._started = False
        self._last_write = 0.0
        self._stalled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream:
            scope["state"][PROBE] = self._wire.ping
        task = asyncio.current_task()
        assert task is not None
        self._writing = WriteWatch(self._settings.write_timeout_s, partial(self._give_up, task))
        watcher = asyncio.create_task(self._watch(receive, task))
        pinger = asyncio.create_task(self._keep_alive(send)) if self._stream else None
        error: ApiError | None = None
        try:
            await (self._send_stream(send) if self._stream else self._collect())
        except Exception as caught:
            error = as_api_error(caught, retry_after_s=self._settings.retry_after_s)
        except asyncio.CancelledError:  # by `_give_up`, or the grace period of a stopping server is over
            if self._disconnected:
                task.uncancel()
            elif self._stalled:
                task.uncancel()
                message = f"the client took no data for {self._settings.write_timeout_s:g} s"
                error = ApiError(408, message, code="client_stalled")
            else:
                error = ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down")
        finally:
            self._writing.close()
            watcher.cancel()
            if pinger is not None:
                pinger.cancel()
            if self._generations is not None:
                self._generations.cancel()
            self._record(scope, error)
        if self._disconnected:
            return
        if error is not None:
            if self._stalled and (abort := scope["state"].get(ABORT)) is not None:
                abort()  # closing would wait until the client takes what is buffered
            if self._started:  # returning now makes the server close the connection in the middle of the stream
                log.error("request %s: stream broken: %s", self._course.id, error.message)
                if not self._stalled and (why := self._wire.error(error)):
                    await send({"type": "http.response.body", "body": why, "more_body": True})
            else:
                await error.response(scope)(scope, receive, send)
        elif not self._stream:
            await JSONResponse(self._answer.body())(scope, receive, send)

    async def _watch(self, receive: Receive, task: asyncio.Task[Any]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._disconnected = True
        if self._generations is not None:
            self._generations.cancel()
        else:
            task.cancel()

    async def _keep_alive(self, send: Send) -> None:
        """Open the stream when the first token takes long; then never let it be silent for long."""
        await asyncio.sleep(self._settings.headers_after_s)
        interval = self._settings.ping_interval_s
        while True:
            silent = time.monotonic() - self._last_write
            if silent >= interval:
                await self._open(send)
                await self._write(send, self._wire.ping)
                silent = 0.0
            await asyncio.sleep(interval - silent)

    async def _send_stream(self, send: Send) -> None:
        self._generations = generations = await self._course.begin()
        async with aclosing(generations.outputs()) as outputs:
            async for index, output in outputs:
                self._course.saw(index, output)
                self._check(index, output)
                chunks = list(self._answer.feed(index, output))
                await self._open(send)
                for chunk in chunks:
                    await self._write(send, self._wire.event(chunk))
                self._after(generations, index, output)
        self._check_end(generations)
        for chunk in self._answer.closing():
            await self._write(send, self._wire.event(chunk))
        await send({"type": "http.response.body", "body": self._wire.done, "more_body": False})

    async def _collect(self) -> None:
        self._generations = generations = await self._course.begin()
        async with aclosing(generations.outputs()) as outputs:
            async for index, output in outputs:
                self._course.saw(index, output)
                self._check(index, output)
                for _ in self._answer.feed(index, output):
                    pass
                self._after(generations, index, output)
        self._check_end(generations)

    def _after(self, generations: Generations, index: int, output: Output) -> None:
        if output.finish_reason is not None:
            self._finals[index] = output
        elif self._answer.complete(index):
            generations.cancel(index)

    def _check(self, index: int, output: Output) -> None:
        """Raise the error that a failed generation ends with."""
        if output.finish_reason in (None, "stop", "length"):
            return
        self._finals[index] = output
        if output.finish_reason == "abort" and self._answer.complete(index):
            return
        if output.finish_reason == "deadline":
            message = f"not finished within {self._settings.deadline_s} s"
            raise ApiError(504, message, kind="server_error", code="deadline_exceeded")
        if output.finish_reason == "abort":
            raise ApiError(503, "the request was cancelled by the server", kind="server_error", code="cancelled")
        log.error("request %s failed: %s", self._course.id, output.error)
        raise _failed("generation failed; the server's log has the reason")

    def _check_end(self, generations: Generations) -> None:
        if len(self._finals) < len(generations):
            raise _failed("generation ended without a result")

    async def _open(self, send: Send) -> None:
        if self._started:
            return
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        for chunk in self._answer.opening():
            await self._write(send, self._wire.event(chunk))

    async def _write(self, send: Send, data: bytes) -> None:
        self._last_write = time.monotonic()
        with self._writing:
            await send({"type": "http.response.body", "body": data, "more_body": True})

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        """A client that takes nothing for long is treated as if it had left in the middle."""
        self._stalled = True
        task.cancel()

    def _record(self, scope: Scope, error: ApiError | None) -> None:
        outcome = "cancelled" if self._disconnected else "ok" if error is None else "error"
        self._course.end(outcome, self._finals)
        entry: dict[str, Any] = scope["state"].setdefault("log", {})
        entry["id"] = self._course.id
        entry["outcome"] = outcome
        if (usage := self._answer.usage) is not None:
            entry["prompt"] = usage.prompt_tokens
            entry["cached"] = usage.cached_tokens
            entry["completion"] = usage.completion_tokens
        if first := [final.timing.first_token_s for final in self._finals.values() if final.timing is not None]:
            entry["ttft_ms"] = round(min(first) * 1e3, 1)


def _failed(message: str) -> ApiError:
    return ApiError(500, message, kind="server_error", code="generation_failed")
