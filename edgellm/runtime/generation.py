"""A request's outputs on their way from the engine thread to whoever reads them.

What must stay true: the engine never waits for a reader. What a slow reader has not taken is merged into one output, so
memory is bounded by the request's own length, and the joined tokens and text are the same however slowly it reads.
A generation that nobody holds any more is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

from edgellm.runtime.types import Output, TokenLogprob


class Channel:
    """Outputs between the engine (`push`, any thread) and one reader (`take` and `wait`, or `wait_async`)."""

    __slots__ = ("_ended", "_final", "_logprobs", "_ready", "_text", "_tokens", "_waiter", "on_cancel")

    def __init__(self) -> None:
        self.on_cancel: Callable[[], None] = _nothing  # set by the engine
        self._ready = threading.Condition()
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._final: Output | None = None
        self._ended = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def finished(self) -> bool:
        """The last output was pushed."""
        return self._final is not None or self._ended

    def push(self, output: Output) -> None:
        with self._ready:
            self._tokens += output.token_ids
            self._logprobs += output.logprobs
            if output.text:
                self._text.append(output.text)
            if output.finish_reason is not None:
                self._final = output
                self.on_cancel = _nothing
            waiter, self._waiter = self._waiter, None
            self._ready.notify_all()
        if waiter is not None:
            loop, future = waiter
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # the reader's event loop was closed: nobody can read this any more
                self.cancel()

    def take(self) -> Output | None:
        """Everything that came since the last take; None when nothing did, or after the last output."""
        with self._ready:
            final = self._final
            if final is None and not self._tokens and not self._text:
                return None
            token_ids, text, logprobs = tuple(self._tokens), "".join(self._text), tuple(self._logprobs)
            if final is None:
                output = Output(token_ids=token_ids, text=text, logprobs=logprobs)
            else:
                output = replace(final, token_ids=token_ids, text=text, logprobs=logprobs)
            self._tokens, self._text, self._logprobs = [], [], []
            if final is not None:
                self._final, self._ended = None, True
            return output

    @property
    def ended(self) -> bool:
        """The last output was taken."""
        return self._ended

    def wait(self) -> None:
        """Block until there is something to take."""
        with self._ready:
            self._ready.wait_for(self._something)

    async def wait_async(self) -> None:
        """The same without blocking the running event loop."""
        loop = asyncio.get_running_loop()
        with self._ready:
            if self._something():
                return
            future = loop.create_future()
            self._waiter = (loop, future)
        await future

    def cancel(self) -> None:
        """Ask the engine to stop; the last output then says "abort". Nothing happens when it has finished already."""
        self.on_cancel()

    def _something(self) -> bool:
        return bool(self._tokens or self._text) or self.finished


def _nothing() -> None:
    """There is nothing to cancel."""


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Generation:
    """A running request: iterate over it, `for` or `async for`, for its outputs. For one reader.

    The last output has `finish_reason`. Dropping the object cancels the request.
    """

    __slots__ = ("__weakref__", "_channel", "id")

    def __init__(self, request_id: str, channel: Channel) -> None:
        self.id = request_id
        self._channel = channel

    @property
    def finished(self) -> bool:
        """Whether the engine is through with it; outputs may still wait to be read."""
        return self._channel.finished

    def cancel(self) -> None:
        """Stop as soon as the running step is over. From any thread, at any time, as often as one likes."""
        self._channel.cancel()

    close = cancel

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Output:
        channel = self._channel
        while (output := channel.take()) is None:
            if channel.ended:
                raise StopIteration
            channel.wait()
        return output

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Output:
        channel = self._channel
        while (output := channel.take()) is None:
            if channel.ended:
                raise StopAsyncIteration
            await channel.wait_async()
        return output

    def __del__(self) -> None:
        self._channel.cancel()
