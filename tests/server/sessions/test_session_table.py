"""The table of sessions: what it shows of each, and that it stays bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.runtime.types import Usage
from edgellm.server.admission.program import Action, Decision, Key
from edgellm.server.sessions.identity import Identity
from edgellm.server.sessions.table import SessionCounts, Sessions
from edgellm.server.turns import CalledTool, TurnRecord

TURN = TurnRecord(
    request_id="chatcmpl-1",
    x_request_id="req-1",
    surface="chat",
    model="tiny",
    identity=None,
    trigger="other",
    prompt=(1,) * 100,
    received_unix_ms=0,
    ended_unix_ms=1,
    outcome="ok",
    finish_reason="stop",
    stop_reason=None,
    usage=Usage(100, 75, 20, drafted_tokens=40, accepted_tokens=12, verify_steps=8),
    timing=None,
    tool_calls=(),
)


class Table:
    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.sessions = Sessions(clock=lambda: self.now, **settings)

    def turn(self, name: str | None, *, parent: str | None = None, final: bool = False, **changes: Any) -> None:
        identity = None if name is None else Identity(name, parent, "codex", final=final)
        self.sessions.begin(identity, 100)
        self.now += 1
        self.sessions.on_turn(replace(TURN, identity=identity, **changes))

    def names(self) -> list[str]:
        return [row.session_id for row in self.sessions.snapshot()]


def test_a_row() -> None:
    table = Table()
    table.turn("s", parent="p", tool_calls=(CalledTool(0, 0, "c", "bash"),), held_s=0.5)
    table.sessions.begin(Identity("s", "p", "codex"), 150)
    (row,) = table.sessions.snapshot()
    assert (row.session_id, row.parent_id, row.harness) == ("s", "p", "codex")
    assert (row.phase, row.in_flight, row.turns, row.failed, row.tool_calls) == ("reasoning", 1, 1, 0, 1)
    assert (row.prompt_tokens, row.cached_share) == (150, 0.75)
    table.now += 9
    usage = Usage(150, 120, 5, accepted_tokens=4, verify_steps=2)
    table.sessions.on_turn(
        replace(TURN, identity=Identity("s", "p", "codex"), usage=usage, held_s=1.0, outcome="error")
    )
    (row,) = table.sessions.snapshot()
    assert (row.phase, row.in_flight, row.turns, row.failed) == ("acting", 0, 2, 1)
    assert (row.total_prompt_tokens, row.total_cached_tokens, row.total_completion_tokens) == (250, 195, 25)
    assert (row.cached_share, row.accepted_length, row.held_s) == (0.8, 2.6, 1.5)
    assert (row.first_seen, row.last_seen) == (1000.0, 1010.0)


def test_a_turn_that_never_ended_tells_no_usage() -> None:
    table = Table()
    table.turn("s", usage=None, outcome="cancelled")
    (row,) = table.sessions.snapshot()
    assert (row.turns, row.failed, row.cached_share, row.accepted_length) == (1, 0, None, None)


def test_requests_without_a_session_are_only_counted() -> None:
    table = Table()
    table.turn(None)
    table.turn("s")
    assert table.names() == ["s"]
    assert table.sessions.counts() == SessionCounts(0, 1, 0, 0, 1, 0, 2, 1)


def test_the_last_turn_of_a_session_forgets_it() -> None:
    table = Table()
    table.turn("s")
    table.turn("s", final=True)
    assert table.names() == []
    assert table.sessions.counts() == SessionCounts(0, 0, 0, 0, 1, 1, 2, 0)


def test_it_is_forgotten_with_the_last_of_parallel_turns() -> None:
    table = Table()
    table.sessions.begin(Identity("s"), 10)
    table.turn("s", final=True)
    assert table.names() == ["s"]
    table.sessions.on_turn(replace(TURN, identity=Identity("s")))
    assert table.names() == []


@pytest.mark.parametrize(
    ("actions", "idle", "busy"),
    [
        (["admit"], "acting", "reasoning"),
        (["queue"], "paused", "waiting"),
        (["pause"], "paused", "waiting"),
        (["pause", "resume"], "acting", "reasoning"),
        (["pause", "force"], "acting", "reasoning"),
        (["queue", "admit", "mark", "demote", "unmark"], "acting", "reasoning"),
        (["pause", "forget"], "acting", "reasoning"),
        (["pause", "leave"], "paused", "waiting"),
    ],
)
def test_phases_follow_admission(actions: list[Action], idle: str, busy: str) -> None:
    table = Table()
    table.turn("s")
    for action in actions:
        table.sessions.on_decision(Decision(0.0, Key("s"), action, 0.5))
        table.sessions.on_decision(Decision(0.0, Key("unknown"), action, 0.5))
    assert table.sessions.snapshot()[0].phase == idle
    table.sessions.begin(Identity("s"), 5)
    assert table.sessions.snapshot()[0].phase == busy


def test_idle_sessions_are_forgotten_after_their_time() -> None:
    table = Table(retention_s=60)
    table.turn("a")
    table.sessions.begin(Identity("busy"), 1)
    table.now += 30
    table.turn("b")
    table.now += 29
    assert table.names() == ["b", "busy"]
    table.now += 1000
    assert table.names() == ["busy"]


def test_beyond_the_limit_the_longest_idle_goes() -> None:
    table = Table(max_sessions=2)
    table.sessions.begin(Identity("busy"), 1)
    table.turn("a")
    table.turn("b")
    assert table.names() == ["b", "busy"]
    table.sessions.begin(Identity("b"), 1)
    table.turn("c")
    assert table.names() == ["c", "b", "busy"], "those with turns in flight stay"


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 40), st.booleans()), max_size=60))
def test_the_table_is_bounded_and_its_counts_add_up(turns: list[tuple[str, int, bool]]) -> None:
    table = Table(max_sessions=3, retention_s=50)
    for name, wait, final in turns:
        table.turn(name, final=final)
        table.now += wait
        counts = table.sessions.counts()
        assert len(table.sessions) <= 3
        assert counts.acting == len(table.sessions) == counts.seen - counts.forgotten
        seen = [row.last_seen for row in table.sessions.snapshot()]
        assert seen == sorted(seen, reverse=True)
    assert table.sessions.counts().turns == len(turns)
