"""Recorded answers as the official clients read them, after the rules of their streams were checked.

Every rule that is broken raises AssertionError with the rule in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import anthropic
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from .serving import Exchange

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Answer:
    """Attributes:
    calls: (tool, arguments as JSON text or the text of a custom tool).
    ended: why, in the surface's own word.
    """

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    ended: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class _Event:
    name: str | None
    data: str
    value: Mapping[str, Any] = field(default_factory=dict)


def path_of(exchange: Exchange) -> str:
    return exchange.path.partition("?")[0]


def generates(exchange: Exchange) -> bool:
    return exchange.method == "POST" and path_of(exchange) in _READERS


def read_answer(exchange: Exchange) -> Answer:
    """Of an exchange that `generates`."""
    assert exchange.status == 200, f"status {exchange.status}: {exchange.answer[:500]!r}"
    assert exchange.complete, "the answer was broken off"
    check, read = _READERS[path_of(exchange)]
    if streams := exchange.answer_headers["content-type"].startswith("text/event-stream"):
        check(list(_events(exchange.answer)))
    return read(exchange, streams)


def _events(body: bytes) -> Iterator[_Event]:
    """Events of a stream; comment lines are passed over."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), "the stream does not end with an empty line"
    for block in text[:-2].split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[len("event: ") :]
            elif line.startswith("data: "):
                assert data is None, f"two data lines in one event: {block[:200]}"
                data = line[len("data: ") :]
            else:
                assert line.startswith(":"), f"not a line of an event: {line[:200]}"
        if data is not None:
            yield _Event(name, data, {} if data == "[DONE]" else json.loads(data))


def _check_chat(events: list[_Event]) -> None:
    assert events[-1].data == "[DONE]", "the stream does not end with [DONE]"
    chunks = [event.value for event in events[:-1] if event.name is None]
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1, "id, model or time change"
    with_choice = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert with_choice[0]["delta"].get("role") == "assistant", "the first delta names no role"
    reasons = [choice["finish_reason"] for choice in with_choice]
    assert reasons[-1] is not None, "no finish_reason at the end"
    assert not any(reasons[:-1]), "a finish_reason before the last delta"
    assert chunks[-1]["choices"] == [], "usage is not in a chunk of its own at the end"


def _check_messages(events: list[_Event]) -> None:
    kinds = [event.value.get("type") for event in events]
    assert all(event.name == kind for event, kind in zip(events, kinds, strict=True)), "event names differ from types"
    kinds = [kind for kind in kinds if kind != "ping"]
    assert kinds[0] == "message_start", f"begins with {kinds[0]}"
    assert kinds[-2:] == ["message_delta", "message_stop"], f"ends with {kinds[-2:]}"
    opened: int | None = None
    count = 0
    for event in events:
        kind, index = event.value["type"], event.value.get("index")
        if kind == "content_block_start":
            assert opened is None, f"block {index} starts inside block {opened}"
            assert index == count, f"block {index} follows block {count - 1}"
            opened, count = count, count + 1
        elif kind in ("content_block_delta", "content_block_stop"):
            assert index == opened, f"{kind} of block {index} while {opened} is open"
            opened = None if kind == "content_block_stop" else opened
        elif kind == "message_delta":
            assert opened is None, f"the message ends inside block {opened}"


def _check_responses(events: list[_Event]) -> None:
    if events[-1].data == "[DONE]":
        events = events[:-1]
    kinds = [event.value["type"] for event in events]
    assert all(event.name in (None, kind) for event, kind in zip(events, kinds, strict=True)), "names differ from types"
    assert kinds[:2] == ["response.created", "response.in_progress"], f"begins with {kinds[:2]}"
    assert kinds[-1] == "response.completed", f"ends with {kinds[-1]}"
    numbers = [event.value["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "sequence numbers have a gap"
    added = [event.value["output_index"] for event in events if event.value["type"] == "response.output_item.added"]
    done = [event.value["output_index"] for event in events if event.value["type"] == "response.output_item.done"]
    assert added == sorted(done) == list(range(len(added))), f"items added {added}, done {done}"
    items = [event.value["item"] for event in events if event.value["type"] == "response.output_item.done"]
    assert events[-1].value["response"]["output"] == items, "the completed response differs from its items"


def _client(kind: Any, exchange: Exchange) -> Any:
    """A client of this class, to whom every request is answered with what was recorded.

    The libraries' versions differ in the HTTP package that they take a transport of.
    """
    made = import_module(kind.__module__.partition(".")[0]).DefaultHttpxClient.__mro__
    http = import_module(next(c.__module__ for c in made if c.__module__.startswith("httpx")).partition(".")[0])
    headers = {"content-type": exchange.answer_headers["content-type"]}
    transport = http.MockTransport(lambda _: http.Response(200, headers=headers, content=exchange.answer))
    return kind(api_key="none", base_url="http://recorded", http_client=http.Client(transport=transport))


def _read_chat(exchange: Exchange, streams: bool) -> Answer:
    client = _client(openai.OpenAI, exchange)
    if streams:
        state = ChatCompletionStreamState()
        for chunk in client.chat.completions.create(model="m", messages=[], stream=True):
            state.handle_chunk(chunk)
        whole: Any = state.get_final_completion()
    else:
        whole = client.chat.completions.create(model="m", messages=[])
    (choice,) = whole.choices
    calls = tuple((call.function.name, call.function.arguments) for call in choice.message.tool_calls or ())
    return Answer(
        text=choice.message.content or "",
        reasoning=getattr(choice.message, "reasoning_content", None) or "",
        calls=calls,
        ended=choice.finish_reason,
        prompt_tokens=whole.usage.prompt_tokens,
        cached_tokens=whole.usage.prompt_tokens_details.cached_tokens,
        answer_tokens=whole.usage.completion_tokens,
    )


def _read_messages(exchange: Exchange, streams: bool) -> Answer:
    client = _client(anthropic.Anthropic, exchange)
    asked: Any = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    if streams:
        with client.messages.stream(**asked) as stream:
            message: Any = stream.get_final_message()
    else:
        message = client.messages.create(**asked)
    blocks = message.content
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    return Answer(
        text="".join(block.text for block in blocks if block.type == "text"),
        reasoning="".join(block.thinking for block in blocks if block.type == "thinking"),
        calls=tuple((block.name, json.dumps(block.input)) for block in blocks if block.type == "tool_use"),
        ended=message.stop_reason,
        prompt_tokens=usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0),
        cached_tokens=cached,
        answer_tokens=usage.output_tokens,
    )


def _read_responses(exchange: Exchange, streams: bool) -> Answer:
    client = _client(openai.OpenAI, exchange)
    if streams:
        with client.responses.stream(model="m", input="x") as stream:
            response: Any = stream.get_final_response()
    else:
        response = client.responses.create(model="m", input="x")
    items = response.output
    parts = [part for item in items if item.type == "reasoning" for part in (item.content or item.summary)]
    calls = [(item.name, item.arguments) for item in items if item.type == "function_call"]
    calls += [(item.name, item.input) for item in items if item.type == "custom_tool_call"]
    return Answer(
        text=response.output_text,
        reasoning="".join(part.text for part in parts),
        calls=tuple(calls),
        ended=response.status,
        prompt_tokens=response.usage.input_tokens,
        cached_tokens=response.usage.input_tokens_details.cached_tokens,
        answer_tokens=response.usage.output_tokens,
    )


_READERS: Final[dict[str, tuple[Callable[[list[_Event]], None], Callable[[Exchange, bool], Answer]]]] = {
    CHAT: (_check_chat, _read_chat),
    MESSAGES: (_check_messages, _read_messages),
    RESPONSES: (_check_responses, _read_responses),
}
