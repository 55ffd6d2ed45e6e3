"""Recorded requests of real coding agents, sent again in order: all are understood, answered and found in the cache.

The fixtures hold an agent's structure without its wording; `python -m agents.run --record` makes them.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest

from edgellm.cache.policy import MIN_GAP

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


def test_every_agent_is_recorded() -> None:
    assert {client.name for client in RECORDED} == CLIENTS.keys()


def test_requests_are_answered_in_form_and_sessions_and_prefixes_are_known(replay: Replay) -> None:
    _, _, report = replay
    assert report.problems == ()


def test_the_agent_is_led_through_the_task(replay: Replay) -> None:
    client, _, report = replay
    assert len(report.called) == 5
    assert [not turn.answer.calls for turn in report.steps] == [False, False, False, False, True, False, True]
    assert any(client.edits(*call) for turn in report.steps for call in turn.answer.calls)
    assert all(turn.answer.reasoning for turn in report.steps)
    assert all(turn.answer.text.endswith(f"```\n{PRINTED}\n```") for turn in report.steps if not turn.answer.calls)
    assert set(report.called) <= report.steps[0].tools


def test_prompts_and_answers_are_read_once(replay: Replay) -> None:
    """A turn finds all of the one before, its answer included, but for the last token, which is computed again.

    What is written differently when it comes back is read anew: calls that the agent rewrites, and behind a new text of
    the user the answers to the one before, whose thoughts the template drops.
    """
    client, _, report = replay
    first = report.steps[0].answer
    for before, after in pairwise(turn.answer for turn in report.steps):
        if not before.calls:
            assert after.cached_tokens > first.prompt_tokens - MIN_GAP
        elif not client.rewrites.isdisjoint(name for name, _ in before.calls):
            assert after.cached_tokens > before.prompt_tokens - MIN_GAP
        else:
            assert after.cached_tokens == before.prompt_tokens + before.answer_tokens - 1
