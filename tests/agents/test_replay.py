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
    """Five steps, two when asked again, then a sub-agent's two and what it takes to start it and to hear of its end."""
    client, _, report = replay
    final = [not turn.answer.calls for turn in report.steps]
    assert final[:7] == [False, False, False, False, True, False, True]
    assert final[7:] in ([False, True], [False, False, True])
    assert [not turn.answer.calls for turn in report.delegated] == [False, True]
    assert any(client.edits(*call) for turn in report.steps for call in turn.answer.calls)
    for turn in (*report.steps, *report.delegated):
        assert turn.answer.reasoning
        assert turn.answer.calls or turn.answer.text.endswith(f"```\n{PRINTED}\n```")
        assert {name for name, _ in turn.answer.calls} <= turn.tools


def test_prompts_and_answers_are_read_once(replay: Replay) -> None:
    """A turn finds all of the one before, its answer included, but for the last token, which is computed again.

    What is written differently when it comes back is read anew, from the first answer to the user's last text on at the
    most: behind a new text the template drops the thoughts of the answers to the one before.
    """
    client, _, report = replay
    for turns in (report.steps, report.delegated):
        asked = turns[0].answer  # the first answer to the user's last text
        for before, after in pairwise(turn.answer for turn in turns):
            if before.calls and client.interrupts.isdisjoint(name for name, _ in before.calls):
                assert after.cached_tokens == before.prompt_tokens + before.answer_tokens - 1
            else:
                assert after.cached_tokens > asked.prompt_tokens - MIN_GAP
            if not before.calls:
                asked = after
