"""Recorded requests of real coding agents, sent again in order: all are understood, answered and found in the cache.

The fixtures hold an agent's structure without its wording; `python -m agents.run --record` makes them.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .checks import Report, examine
from .clients import CLIENTS, Client
from .redact import FIXTURES, read_fixture
from .script import PRINTED
from .serving import Exchange, served

Replay = tuple[Client, list[Exchange], Report]
RECORDED = [client for client in CLIENTS.values() if (FIXTURES / f"{client.name}.json.gz").is_file()]


def send(http: httpx.Client, request: dict[str, Any]) -> None:
    content = b"" if request["body"] is None else json.dumps(request["body"], ensure_ascii=False).encode()
    with http.stream(request["method"], request["path"], headers=request["headers"], content=content) as response:
        response.read()


@pytest.fixture(scope="module", params=RECORDED, ids=lambda client: client.name)
def replay(request: pytest.FixtureRequest) -> Replay:
    client: Client = request.param
    exchanges: list[Exchange] = []
    with served(exchanges) as server, httpx.Client(base_url=server, timeout=60) as http:
        for recorded in read_fixture(client.name):
            send(http, recorded)
    return client, exchanges, examine(client, exchanges)


def test_requests_are_answered_in_form_and_sessions_and_prefixes_are_known(replay: Replay) -> None:
    _, _, report = replay
    assert report.problems == ()


def test_the_agent_is_led_through_the_task(replay: Replay) -> None:
    client, _, report = replay
    assert len(report.called) == len(report.steps) - 1 == 4
    assert any(client.edits(*call) for turn in report.steps for call in turn.answer.calls)
    assert all(turn.answer.reasoning for turn in report.steps)
    assert report.steps[-1].answer.text.endswith(f"```\n{PRINTED}\n```")
    assert set(report.called) <= report.steps[0].tools


def test_later_turns_read_only_what_is_new(replay: Replay) -> None:
    """Answers are in the cache too: what one turn and its answer took is what the next one finds, but for one token."""
    _, _, report = replay
    for before, after in zip(report.steps, report.steps[1:], strict=False):
        assert before.answer.prompt_tokens <= after.answer.cached_tokens + 1
