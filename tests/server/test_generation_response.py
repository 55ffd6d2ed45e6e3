"""The response object alone: clients that take no data, engines that end oddly, unforeseen faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.types import Message

from edgellm.runtime.types import Output, Request, Usage
from edgellm.server.answer import Job, Kind, OpenAIAnswer
from edgellm.server.caller import ANONYMOUS
from edgellm.server.completion_answer import CompletionChoice
from edgellm.server.generations import Generations
from edgellm.server.lifecycle import Desk, Lifecycle
from edgellm.server.metrics import Metrics
from edgellm.server.sampling import Streaming
from edgellm.server.sessions.table import Sessions
from edgellm.server.settings import ServerSettings
from edgellm.server.sse import GenerationResponse


@dataclass
class NoState:
    running: int = 0


class Listed:
    """A generation that gives a list of outputs; an exception in it is raised."""

    id = "x"

    def __init__(self, *items: Output | Exception) -> None:
        self._items = items
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[Output]:
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            yield item


LAST = Output(text="b", finish_reason="stop", usage=Usage(3, 1, 2))


def run(*generations: Listed, stream: bool, stalled: bool = False, **changes: Any) -> tuple[list[Message], Metrics]:
    """Messages that the response sent. `stalled`: the client takes nothing after the headers."""
    sent: list[Message] = []
    metrics = Metrics(NoState)

    async def send(message: Message) -> None:
        if stalled and message["type"] == "http.response.body":
            await asyncio.sleep(60)
        sent.append(message)

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    waiting = iter(generations)

    def started(_: Request) -> Any:
        return next(waiting)

    async def go() -> None:
        numbers = range(len(generations))
        requests = [Request(str(n), (1,)) for n in numbers]
        answer = OpenAIAnswer(
            Kind("chunk", "whole"),
            requests,
            [CompletionChoice(n, None, echo="", logprobs=False) for n in numbers],  # type: ignore[arg-type]
            model="m",
            fingerprint="fp",
            per_prompt=len(generations),
            streaming=Streaming(stream, usage=False, running_usage=False),
        )
        settings = ServerSettings(model="m", **changes)
        job = Job(tuple(requests), answer, stream, "completion")
        course = Lifecycle(Desk("m", started, lambda: 0, metrics, Sessions()), job, ANONYMOUS, "req")
        response = GenerationResponse(course, answer, settings, stream=stream)
        await response({"type": "http", "state": {}, "path": "/v1/completions", "headers": []}, receive, send)

    asyncio.run(go())
    return sent, metrics


def outcome(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value("edgellm_requests_total", {"outcome": name}) or 0.0


@pytest.mark.parametrize("stream", [True, False])
def test_a_normal_end(stream: bool) -> None:
    sent, metrics = run(Listed(Output(text="a"), LAST), stream=stream)
    assert sent[0]["status"] == 200
    assert not sent[-1].get("more_body", False)
    assert outcome(metrics, "ok") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("items", "status"),
    [
        ((Output(finish_reason="deadline"),), 504),
        ((Output(finish_reason="abort"),), 503),
        ((Output(finish_reason="error", error="boom"),), 500),
        ((RuntimeError("bug"),), 500),
        ((), 500),
    ],
)
def test_ends_without_a_token_are_statuses(items: Any, status: int, stream: bool) -> None:
    generation = Listed(*items)
    sent, metrics = run(generation, stream=stream)
    assert [message.get("status") for message in sent] == [status, None]
    assert b'"error"' in sent[1]["body"]
    assert b"bug" not in sent[1]["body"]
    assert generation.cancelled
    assert outcome(metrics, "error") == 1


@pytest.mark.parametrize(
    "item", [Output(finish_reason="deadline"), Output(finish_reason="abort"), RuntimeError("bug"), None]
)
def test_ends_after_a_token_leave_the_stream_open_for_the_server_to_break(
    item: Any, caplog: pytest.LogCaptureFixture
) -> None:
    generation = Listed(Output(text="a"), *([item] if item else []))
    with caplog.at_level(logging.ERROR, "edgellm.server"):
        sent, _ = run(generation, stream=True)
    assert sent[0]["status"] == 200
    assert all(message["more_body"] for message in sent[1:])
    assert not any(b'finish_reason":"' in message["body"] or b"[DONE]" in message["body"] for message in sent[1:])
    assert "stream broken" in caplog.text
    assert generation.cancelled


def test_a_client_that_takes_no_data_is_given_up() -> None:
    generation = Listed(Output(text="a"), LAST)
    sent, metrics = run(generation, stream=True, stalled=True, write_timeout_s=0.05)
    assert len(sent) == 1
    assert generation.cancelled
    assert outcome(metrics, "error") == 1


class Endless(Listed):
    """Gives text until it is cancelled, and then its abort."""

    async def __aiter__(self) -> AsyncIterator[Output]:
        while not self.cancelled:
            await asyncio.sleep(0)
            yield Output(text="x")
        yield Output(finish_reason="abort")


@pytest.mark.parametrize("stream", [True, False])
def test_one_generation_that_fails_fails_all(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    others = Endless(), Endless()
    failing = Listed(Output(finish_reason="error", error="boom"))
    sent, metrics = run(others[0], failing, others[1], stream=stream)
    assert all(generation.cancelled for generation in (failing, *others))
    if sent[0]["status"] == 200:  # another choice had begun the stream
        assert stream
        assert sent[-1]["more_body"]
    else:
        assert sent[0]["status"] == 500
    assert outcome(metrics, "error") == 3
    assert "boom" in caplog.text


def test_no_generation_is_left_when_one_is_refused() -> None:
    started: list[Listed] = []

    def submit(_: Request) -> Listed:
        if len(started) == 2:
            raise ValueError("full")
        started.append(Listed())
        return started[-1]

    with pytest.raises(ValueError, match="full"):
        Generations.submit(submit, [Request(str(n), (1,)) for n in range(3)])  # type: ignore[arg-type]
    assert [generation.cancelled for generation in started] == [True, True]
