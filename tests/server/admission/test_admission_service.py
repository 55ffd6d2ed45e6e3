"""Held sessions over HTTP: they wait, ping, leave, run out of time, and go on when another session ends.

A session is counted with more than half of the snapshots, so that two never fit together.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from edgellm.server.admission.settings import AdmissionSettings

SETTINGS = AdmissionSettings(
    snapshots_per_session=300, acting_hold_s=1e6, idle_hold_s=1e6, interval_s=0.05, max_waiting=1
)


def ask(running: Any, session: str | None, *, final: bool = False, **body: Any) -> httpx.Response:
    headers = {} if session is None else {"x-dynamo-session-id": session}
    if final:
        headers["x-dynamo-session-final"] = "true"
    body = {"messages": [{"role": "user", "content": f"hi from {session}"}], **body}
    answer: httpx.Response = running.http.post("/v1/chat/completions", json=body, headers=headers)
    return answer


class Asked(threading.Thread):
    """A request on a thread of its own."""

    def __init__(self, running: Any, session: str, **body: Any) -> None:
        super().__init__(daemon=True)
        self._ask: Callable[[], httpx.Response] = lambda: ask(running, session, **body)
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self._ask()

    def joined(self) -> httpx.Response:
        self.join(20)
        assert self.answer is not None, "no answer"
        return self.answer


def waits_for(running: Any, name: str, value: float) -> bool:
    """Whether a number of admission's in /metrics becomes `value`."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = re.search(rf"^edgellm_admission_{name} (\S+)$", running.http.get("/metrics").text, re.MULTILINE)
        assert found is not None
        if float(found[1]) == value:
            return True
        time.sleep(0.01)
    return False


def test_a_held_session_goes_on_when_the_other_ends(start: Any) -> None:
    running = start(admission=SETTINGS)
    assert ask(running, "a").status_code == 200
    held = Asked(running, "b")
    assert waits_for(running, "waiting_turns", 1)
    assert ask(running, "a").status_code == 200, "an active session is never held"
    assert running.held()[:2] == (0, 0), "the held request is not the engine's yet"
    assert ask(running, "a", final=True).status_code == 200
    assert held.joined().status_code == 200
    assert [request.priority for request in running.script.requests] == [0, 0, 0, 1]
    assert waits_for(running, "acting", 1)


def test_a_request_without_session_makes_room_for_itself_when_it_ends(start: Any) -> None:
    running = start(admission=SETTINGS)
    for _ in range(3):
        assert ask(running, None).status_code == 200
    assert waits_for(running, "utilisation", 0)


def test_a_held_stream_pings_and_then_streams(start: Any) -> None:
    running = start(admission=SETTINGS, headers_after_s=0.02, ping_interval_s=0.02)
    ask(running, "a")
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with running.http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-dynamo-session-id": "b"}
    ) as response:
        lines = response.iter_lines()
        assert response.status_code == 200
        assert any(line.startswith(":") for line in lines)
        assert waits_for(running, "waiting_turns", 1)
        ask(running, "a", final=True)
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_client_that_leaves_while_it_is_held_leaves_nothing(start: Any) -> None:
    running = start(admission=SETTINGS, headers_after_s=0.02, ping_interval_s=0.02)
    ask(running, "a")
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with running.http.stream("POST", "/v1/chat/completions", json=body, headers={"x-dynamo-session-id": "b"}):
        assert waits_for(running, "waiting_turns", 1)
    assert waits_for(running, "waiting_turns", 0)
    assert waits_for(running, "waiting", 0)
    ask(running, "a", final=True)
    assert len(running.script.requests) == 2
    assert waits_for(running, "utilisation", 0)


def test_the_deadline_of_a_held_request(start: Any) -> None:
    running = start(admission=SETTINGS, deadline_s=0.3)
    assert ask(running, "a").status_code == 200
    answer = ask(running, "b")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert waits_for(running, "waiting_turns", 0)
    assert ask(running, "a").status_code == 200


def test_too_many_held_requests(start: Any) -> None:
    running = start(admission=SETTINGS)
    ask(running, "a")
    held = Asked(running, "b")
    assert waits_for(running, "waiting_turns", 1)
    answer = ask(running, "c")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    ask(running, "a", final=True)
    assert held.joined().status_code == 200


def test_a_server_that_drains_refuses_what_it_holds(start: Any) -> None:
    running = start(admission=SETTINGS)
    ask(running, "a")
    held = Asked(running, "b")
    assert waits_for(running, "waiting_turns", 1)
    running.app.state.load.drain()
    answer = held.joined()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")


@pytest.mark.parametrize("fault", ["engine", "request"])
def test_a_request_that_fails_gives_its_place_back(start: Any, fault: str) -> None:
    running = start(admission=SETTINGS)
    if fault == "engine":
        running.script.fail_in = 1
        assert ask(running, "a", final=True).status_code >= 500
    else:
        assert ask(running, "a", final=True, max_tokens=-1).status_code == 400
    assert waits_for(running, "utilisation", 0)
