"""The envelope of an OpenAI answer: ids, choices, usage. The choices themselves are those of one API surface.

What must stay true: a chunk carries exactly one choice (some clients read no other), but for the last one of
`include_usage`, which carries none; the whole body has the choices in the order of their numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgellm.runtime.types import Output, Request, Usage
from edgellm.server.sampling import Streaming
from edgellm.server.sessions.identity import Trigger
from edgellm.server.sessions.nvext import answer_nvext
from edgellm.server.sse import Answer
from edgellm.server.turns import CalledTool, unix_ms
from edgellm.server.usage import running_usage, total_usage, usage_object
from edgellm.server.wire import OPENAI, Chunk, SideEvent


class Choice(Protocol):
    """One answer among those of a request. It makes entries of `choices`."""

    @property
    def complete(self) -> bool:
        """Finished although the model would go on: its generation is to be stopped."""
        ...

    @property
    def empty(self) -> bool:
        """Neither text nor a tool call."""
        ...

    @property
    def reasoning_tokens(self) -> int | None:
        """Generated tokens that were reasoning; None when they are not counted."""
        ...

    @property
    def tool_calls(self) -> tuple[CalledTool, ...]: ...

    def opening(self) -> Iterable[Chunk]:
        """Entries that open its stream."""
        ...

    def feed(self, output: Output) -> Iterable[Chunk | SideEvent]:
        """Entries of one output; with the last output the closing one too."""
        ...

    def whole(self) -> Chunk:
        """The entry of the whole body, after everything was fed."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """Names of an API surface: `object` of a chunk and of a whole body."""

    chunk: str
    whole: str


@dataclass(slots=True)
class Facts:
    """What becomes known of a request on its way: `held_s` seconds that admission held it back, `queue_depth` requests
    that waited for a slot when it was submitted."""

    received_unix_ms: int = field(default_factory=unix_ms)
    held_s: float = 0.0
    queue_depth: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A request that was read and found to fit: what remains is to run it.

    Attributes:
        requests: one per choice.
        surface, trigger: see `turns.TurnRecord`.
        preamble: one was removed.
        expected_output: tokens that the answer is expected to have; 0: unknown.
        stoppable: hears how to stop it, anew when that changes: while it waits, once it is in the engine.
    """

    requests: tuple[Request, ...]
    answer: Answer
    stream: bool
    surface: str
    trigger: Trigger = "other"
    preamble: bool = False
    expected_output: int = 0
    facts: Facts = field(default_factory=Facts)
    stoppable: Callable[[Callable[[], None]], None] | None = None


class OpenAIAnswer:
    """Implements `sse.Answer`.

    Args:
        requests: one per choice, `per_prompt` to each prompt; the answer's id is that of the first.
        model: the name to answer under.
        fingerprint: of the model and this version.
        choices: one per request.
        metadata, and the `nvext` that `extra` names, go with the whole body, or with the last chunk of a stream.
    """

    wire = OPENAI

    def __init__(
        self,
        kind: Kind,
        requests: Sequence[Request],
        choices: Sequence[Choice],
        *,
        model: str,
        fingerprint: str,
        per_prompt: int,
        streaming: Streaming,
        metadata: dict[str, str] | None = None,
        extra: Collection[str] = (),
        facts: Facts | None = None,
    ) -> None:
        self._metadata = {"metadata": metadata} if metadata else {}
        self._extra = extra
        self._facts = facts or Facts()
        self._first = Output()  # the last output of the first choice
        self._head = {
            "id": requests[0].id,
            "object": kind.chunk if streaming.stream else kind.whole,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._choices = choices
        self._per_prompt = per_prompt
        self._streaming = streaming
        self._prompt_tokens = sum(len(request.prompt) for request in requests[::per_prompt])
        self._predicted = requests[0].prediction is not None
        self._generated = 0
        self._usages: list[Usage | None] = [None] * len(choices)

    @property
    def usage(self) -> Usage | None:
        return total_usage(self._usages, self._per_prompt)

    def complete(self, index: int) -> bool:
        return self._choices[index].complete

    def empty(self, index: int) -> bool:
        return self._choices[index].empty

    def tool_calls(self) -> tuple[CalledTool, ...]:
        return tuple(call for choice in self._choices for call in choice.tool_calls)

    def opening(self) -> Iterator[Chunk]:
        for choice in self._choices:
            yield from map(self._chunk, choice.opening())

    def feed(self, index: int, output: Output) -> Iterator[Chunk | SideEvent]:
        self._generated += len(output.token_ids)
        if output.finish_reason is not None:
            self._usages[index] = output.usage
            if index == 0:
                self._first = output
        last = None not in self._usages and not self._streaming.usage
        for entry in self._choices[index].feed(output):
            if isinstance(entry, SideEvent):
                yield entry
            elif last and entry["finish_reason"] is not None:
                yield self._chunk(entry) | self._rest()
            else:
                yield self._chunk(entry)

    def closing(self) -> Iterator[Chunk]:
        if self._streaming.usage:
            yield {**self._head, **self._rest(), "choices": [], "usage": self._usage_object()}

    def body(self) -> Chunk:
        choices = [choice.whole() for choice in self._choices]
        return {**self._head, **self._rest(), "choices": choices, "usage": self._usage_object()}

    def _rest(self) -> Chunk:
        facts = self._facts
        made = answer_nvext(
            self._extra,
            self._first,
            self._usages[0],
            received_unix_ms=facts.received_unix_ms,
            held_s=facts.held_s,
            queue_depth=facts.queue_depth,
        )
        return {**self._metadata, "nvext": made} if made else self._metadata

    def _chunk(self, entry: Chunk) -> Chunk:
        chunk: Chunk = {**self._head, "choices": [entry]}
        if self._streaming.usage:
            running = self._streaming.running_usage
            chunk["usage"] = running_usage(self._prompt_tokens, self._generated) if running else None
        return chunk

    def _usage_object(self) -> dict[str, Any] | None:
        counts = [choice.reasoning_tokens for choice in self._choices]
        reasoning = None if None in counts else sum(count for count in counts if count is not None)
        return usage_object(self.usage, reasoning, predicted=self._predicted)
