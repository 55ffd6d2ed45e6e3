"""A trace of a server on a socket: what clients and the model wrote is in no line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgellm.server.tracing.reading import TracedRequest, read_traces
from edgellm.server.tracing.settings import TraceSettings
from edgellm.server.tracing.sink import RequestTrace

SECRET = "confidential"


class Traced:
    """A running server with a trace. `requests` ends the trace and reads it."""

    def __init__(self, running: Any, path: Path) -> None:
        self.running = running
        self._path = path
        self.trace = RequestTrace(TraceSettings(path=path, format="jsonl"), 64)
        running.app.state.desk.observers.append(self.trace.record)

    def requests(self) -> tuple[TracedRequest, ...]:
        assert self.running.settled()
        self.trace.close()
        assert SECRET not in self._path.read_text()
        return read_traces([self._path]).requests


@pytest.fixture
def traced(running: Any, tmp_path: Path) -> Iterator[Traced]:
    running.script.reply = f"{SECRET} answer"
    found = Traced(running, tmp_path / "t.jsonl")
    yield found
    found.trace.close()


def ask(traced: Traced, **body: Any) -> Any:
    messages = [{"role": "user", "content": f"{SECRET} question " * 30}]
    headers = {"x-session-id": "child", "x-parent-session-id": "parent"}
    body = {"messages": messages, "stop": [f"{SECRET} stop"], **body}
    return traced.running.http.post("/v1/chat/completions", json=body, headers=headers)


def test_turns_of_a_session(traced: Traced) -> None:
    usages = [ask(traced).json()["usage"], ask(traced).json()["usage"]]
    ask(traced, stream=True)
    ask(traced, n=2)  # not traced
    found = traced.requests()
    assert len(found) == 3
    for request, usage in zip(found, usages, strict=False):
        assert (request.session_id, request.parent_id) == ("child", "parent")
        assert (request.input_tokens, request.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert len(request.hashes) == -(-usage["prompt_tokens"] // 64)
        assert request.finish_reason == "stop"
        assert 0 <= (request.wait_ms or 0) <= (request.ttft_ms or 0) <= request.total_ms
    assert found[0].hashes == found[1].hashes == found[2].hashes
    assert (found[0].cached_tokens or 0) < (found[1].cached_tokens or 0)


def test_tool_calls_are_named_without_arguments(traced: Traced) -> None:
    value = f"<parameter=path>\n{SECRET}\n</parameter>"
    traced.running.script.reply = f"<tool_call>\n<function=read>\n{value}\n</function>\n</tool_call>"
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    answer = ask(traced, tools=[{"type": "function", "function": {"name": "read", "parameters": parameters}}])
    assert SECRET in answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    (found,) = traced.requests()
    assert (found.finish_reason, found.tools) == ("tool_calls", ("read",))


def test_a_stop_string_ends_a_turn_unnamed(traced: Traced) -> None:
    traced.running.script.reply = f"One. {SECRET} stop. Two."
    assert ask(traced).json()["choices"][0]["message"]["content"] == "One. "
    (found,) = traced.requests()
    assert found.finish_reason == "stop"


def test_a_request_that_failed_is_told(traced: Traced) -> None:
    traced.running.script.fail_in = 1
    assert ask(traced).status_code >= 500
    (found,) = traced.requests()
    assert found.outcome == "error"
