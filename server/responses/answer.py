"""A response of the Responses API, streamed or whole.

Events: ``response.created``, ``response.in_progress``, those of the items (`output`), then ``response.completed`` (the
model ended its turn), ``response.incomplete`` (a limit was reached, or the response was cancelled) or
``response.failed``. They are numbered from 0 without a gap.

What must stay true: the response of the last event is the whole body; it is given to the store before the client sees
that event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from edgellm.runtime.types import Output as Generated
from edgellm.runtime.types import Usage
from edgellm.server.errors import ApiError
from edgellm.server.responses.output import Output
from edgellm.server.responses.tools import Toolbox
from edgellm.server.said import Said
from edgellm.server.turns import CalledTool
from edgellm.server.wire import RESPONSES, Chunk

Status = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
_OPENING = ("response.created", "response.in_progress")
_TOO_LONG = {"reason": "max_output_tokens"}


class ResponseAnswer:
    """Implements `sse.Answer`.

    Args:
        head: the fields of the response that stand from its start, its id among them.
        keep: called once with the whole body of a response that did not fail.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        said: Said,
        tools: Toolbox,
        *,
        summary: bool,
        keep: Callable[[Chunk], None],
    ) -> None:
        self.id: str = head["id"]
        self.wire = replace(RESPONSES, failed=self._failed)
        self._head = head
        self._said = said
        self._keep = keep
        self._output = Output(tools, summary=summary)
        self._status: Status = "in_progress"
        self._error: dict[str, Any] | None = None
        self._completed_at: int | None = None
        self._cancelled = False
        self._stop: Callable[[], None] | None = None
        self._events = len(_OPENING)  # which may go out behind the first output that is read

    @property
    def usage(self) -> Usage | None:
        return self._said.final.usage

    @property
    def running(self) -> bool:
        return self._status == "in_progress"

    def tool_calls(self) -> tuple[CalledTool, ...]:
        return tuple(CalledTool(0, n, call.id, call.name) for n, call in enumerate(self._said.calls))

    def complete(self, index: int) -> bool:
        return self._said.complete or self._cancelled

    def empty(self, index: int) -> bool:
        return self._said.empty

    def stoppable(self, stop: Callable[[], None]) -> None:
        """How to stop it from now on."""
        self._stop = stop
        if self._cancelled:
            stop()

    def cancel(self) -> Chunk:
        """Stop it, wherever it is; the body with the status "cancelled". Event loop only."""
        if not self._cancelled and self._stop is not None:
            self._stop()
        self._cancelled = True
        return {**self.body(), "status": "cancelled"}

    def opening(self) -> Iterator[Chunk]:
        response = self._body("in_progress", [])
        for number, kind in enumerate(_OPENING):
            yield {"type": kind, "sequence_number": number, "response": response}

    def feed(self, index: int, output: Generated) -> Iterator[Chunk]:
        for delta in self._said.feed(output):
            yield from map(self._event, self._output.feed(delta))
        if output.finish_reason is None:
            return
        cut = self._said.finish == "length" or (self._cancelled and not self._said.complete)
        yield from map(self._event, self._output.finish(whole=not cut))
        self._status = "completed" if not cut else "incomplete" if self._said.finish == "length" else "cancelled"
        self._completed_at = int(time.time()) if self._status == "completed" else None
        self._keep(self.body())

    def closing(self) -> Iterable[Chunk]:
        kind = "response.completed" if self._status == "completed" else "response.incomplete"
        return [self._event({"type": kind, "response": self.body()})]

    def body(self) -> Chunk:
        return {
            **self._body(self._status, self._output.items),
            "completed_at": self._completed_at,
            "error": self._error,
            "usage": _usage(self.usage, self._said.reasoning_tokens),
        }

    def _body(self, status: Status, output: list[Chunk]) -> Chunk:
        return {
            **self._head,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": _TOO_LONG if status == "incomplete" else None,
            "output": output,
            "usage": None,
        }

    def _failed(self, error: ApiError) -> Chunk:
        self._status = "failed"
        self._error = {"code": "server_error", "message": error.message}  # of the API's codes the one that fits all
        return self._event({"type": "response.failed", "response": self.body()})

    def _event(self, event: Chunk) -> Chunk:
        number = self._events
        self._events += 1
        return {"type": event["type"], "sequence_number": number, **event}


def _usage(usage: Usage | None, reasoning_tokens: int | None) -> dict[str, Any] | None:
    """`cache_write_tokens` is 0: nothing is charged for what the cache keeps."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
