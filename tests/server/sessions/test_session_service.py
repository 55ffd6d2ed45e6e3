"""Sessions and hints through a server: who is known, what reaches the engine, what comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

HI = [{"role": "user", "content": "hi"}]


def ask(running: Any, headers: dict[str, str], path: str = "/v1/chat/completions", **body: Any) -> Any:
    return running.http.post(path, json={"messages": HI, **body}, headers=headers)


def test_answers_name_their_session(running: Any) -> None:
    headers = {"x-dynamo-session-id": "run-7", "x-dynamo-parent-session-id": "run-1"}
    whole = ask(running, headers)
    assert whole.headers["x-edgellm-session-id"] == "run-7"
    assert whole.json()["metadata"] == {"session_id": "run-7", "parent_session_id": "run-1"}
    for options in ({}, {"include_usage": True}):
        text = ask(running, headers, stream=True, stream_options=options).text
        chunks = [json.loads(part[6:]) for part in text.split("\n\n") if part.startswith("data: {")]
        assert [n for n, chunk in enumerate(chunks) if "metadata" in chunk] == [len(chunks) - 1]
    assert "metadata" not in ask(running, {}).json()
    assert "x-edgellm-session-id" not in ask(running, {}).headers


def test_the_table_of_sessions(running: Any) -> None:
    for _ in range(3):
        ask(running, {"thread-id": "t-1"})
    ask(running, {"x-session-id": "s-1", "x-dynamo-session-final": "true"})
    ask(running, {})
    (row,) = running.http.get("/dashboard/state").json()["sessions"]
    assert (row["id"], row["harness"], row["phase"], row["turns"]) == ("t-1", "codex", "acting", 3)
    assert row["cached_share"] > 0.5
    metrics = running.http.get("/metrics").text
    assert "edgellm_sessions_acting 1.0" in metrics
    assert "edgellm_sessions_seen 2.0" in metrics
    assert "edgellm_sessions_turns_without_session 1.0" in metrics


def test_hints_reach_the_engine(running: Any) -> None:
    hints = {"agent_hints": {"priority": 5, "osl": 100}, "cache_salt": "tenant", "max_thinking_tokens": 7}
    ask(running, {}, nvext=hints).raise_for_status()
    request = running.script.requests[-1]
    assert (request.priority, request.cache.salt) == (5, "tenant")
    ask(running, {"x-dynamo-request-priority": "-3", "x-tenant-id": "other"}, nvext=hints).raise_for_status()
    request = running.script.requests[-1]
    assert (request.priority, request.cache.salt) == (-3, "other")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"max_tokens": 5}),
        ("/v1/responses", {"input": "hi", "messages": None}),
    ],
)
def test_headers_count_on_every_surface(running: Any, path: str, body: dict[str, Any]) -> None:
    headers = {"x-dynamo-request-priority": "4", "x-tenant-id": "t", "x-dynamo-session-id": "s"}
    response = ask(running, headers, path, **body)
    assert response.status_code == 200, response.text
    assert response.headers["x-edgellm-session-id"] == "s"
    request = running.script.requests[-1]
    assert (request.priority, request.cache.salt) == (4, "t")
    assert ask(running, {"x-dynamo-request-priority": "soon"}, path, **body).status_code == 400


@pytest.mark.parametrize(
    ("nvext", "param"),
    [
        ({"agent_context": {}}, "nvext.agent_context"),
        ({"agent_context": {"session_id": "x"}}, "nvext.agent_context"),
        ({"session_control": {"x": 1}}, "nvext.session_control"),
        ({"agent_hints": {"speculative_prefill": True}}, "nvext.agent_hints.speculative_prefill"),
        ({"agent_hints": {"priority": "high"}}, "nvext.agent_hints.priority"),
        ({"agent_hints": {"urgency": 1}}, "nvext.agent_hints.urgency"),
        ({"annotations": ["token_ids"]}, "nvext.annotations"),
        ({"extra_fields": ["worker_id"]}, "nvext.extra_fields[0]"),
        ({"nonsense": 1}, "nvext.nonsense"),
        ({"dp_rank": 0}, None),
    ],
)
def test_hints_are_honoured_or_refused_by_name(running: Any, nvext: Any, param: str | None) -> None:
    response = ask(running, {}, nvext=nvext)
    if param is None:
        assert response.status_code == 200
    else:
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_answers_tell_their_times(running: Any) -> None:
    wish = {"extra_fields": ["timing", "stop_reason"]}
    nvext = ask(running, {}, nvext=wish, stop=["there"]).json()["nvext"]
    assert nvext["stop_reason"] == "there"
    assert 0 <= nvext["timing"]["prefill_wait_time_ms"] <= nvext["timing"]["total_time_ms"]
    text = ask(running, {}, nvext=wish, stream=True).text
    chunks = [json.loads(part[6:]) for part in text.split("\n\n") if part.startswith("data: {")]
    assert ["nvext" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_tenants_with_one_id_have_sessions_of_their_own(running: Any) -> None:
    for tenant in ("a", "b"):
        ask(running, {"x-dynamo-session-id": "same", "x-tenant-id": tenant})
    ask(running, {"x-dynamo-session-id": "same", "x-tenant-id": "a", "x-dynamo-session-final": "1"})
    (row,) = running.http.get("/dashboard/state").json()["sessions"]
    assert (row["id"], row["turns"]) == ("same", 1)
