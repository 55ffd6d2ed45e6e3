"""Workloads from traces: block ids mean equal prefixes, and playing a graph back gives the recorded times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edgellm.runtime.types import Timing
from edgellm.server.sessions.identity import Identity
from edgellm.server.tracing.agentic import agentic_rows
from edgellm.server.tracing.mooncake import mooncake_rows
from edgellm.server.tracing.reading import TraceError, read_traces
from edgellm.server.tracing.sessions import Session, sessions_of
from edgellm.server.turns import TurnRecord

from .conftest import BLOCK, START_MS, MakeTurn, Write

Agents = Callable[..., list[TurnRecord]]


def sessions_from(write: Write, turns: list[TurnRecord]) -> list[Session]:
    return sessions_of(read_traces([write(turns)]).requests)


def test_rows_have_the_fields_of_the_format(turn: MakeTurn, write: Write) -> None:
    turns = [
        turn(prompt=tuple(range(64)), identity=None),
        turn(prompt=tuple(range(100)), received_unix_ms=START_MS + 10),
        turn(prompt=tuple(range(200)), received_unix_ms=START_MS + 2000),
        turn(prompt=tuple(range(1, 9)), received_unix_ms=START_MS + 2500),
    ]
    rows, block_tokens = mooncake_rows(sessions_from(write, turns))
    assert block_tokens == BLOCK
    assert rows == [
        {"timestamp": 0, "input_length": 64, "output_length": 21, "hash_ids": [0]},
        {"timestamp": 10, "input_length": 100, "output_length": 21, "hash_ids": [0, 1], "session_id": "s"},
        {"timestamp": 2000, "input_length": 200, "output_length": 21, "hash_ids": [0, 2, 3, 4], "session_id": "s",
         "delay": 1040.0},
        {"timestamp": 2500, "input_length": 8, "output_length": 21, "hash_ids": [5], "session_id": "s", "delay": 0.0},
    ]  # fmt: skip


def test_a_delay_counts_from_the_end_of_all_earlier_turns(turn: MakeTurn, write: Write) -> None:
    long = Timing(0.0, 0.1, 5.0)
    turns = [turn(timing=long, held_s=0.0)] + [turn(received_unix_ms=START_MS + at) for at in (1000, 5500)]
    rows, _ = mooncake_rows(sessions_from(write, turns))
    assert [row.get("delay") for row in rows] == [None, 0.0, 500.0]


def test_equal_ids_are_equal_prefixes(agents: Agents, write: Write) -> None:
    turns = sorted(agents(3, 5), key=lambda turn: turn.received_unix_ms)
    rows, _ = mooncake_rows(sessions_from(write, turns))
    ids = [row["hash_ids"] for row in rows]
    assert sorted({one for row in ids for one in row}) == list(range(max(max(row) for row in ids) + 1))
    seen: dict[int, tuple[int, ...]] = {}
    for turn, row in zip(turns, ids, strict=True):
        assert len(row) == -(-len(turn.prompt) // BLOCK)
        for at, one in enumerate(row, 1):
            prefix = turn.prompt[: at * BLOCK]
            assert seen.setdefault(one, prefix) == prefix
    assert len(set(seen.values())) == len(seen)


def test_a_trace_without_hashes_or_with_two_block_sizes_is_refused(turn: MakeTurn, write: Write) -> None:
    with pytest.raises(TraceError, match="request empty: no block hashes"):
        mooncake_rows(sessions_from(write, [turn(prompt=(), request_id="empty")]))
    found = read_traces([write([turn(), turn(request_id="b")], "two.jsonl")]).requests
    other = replace(found[1], block_tokens=32)
    with pytest.raises(TraceError, match="request b: blocks of 32 tokens after blocks of 64"):
        mooncake_rows(sessions_of([found[0], other]))


def played(rows: list[dict[str, Any]], durations: dict[str, float]) -> dict[str, float]:
    """When each request starts if all waits are as the graph says."""
    starts: dict[str, float] = {}
    for row in rows:  # by arrival: what a row waits for stands above it
        moments = [float(row["not_before_ms"])]
        for need in row["dependencies"]:
            base = starts[need["request_id"]]
            moments.append(
                base + need["delay_ms"] + (durations[need["request_id"]] if need["trigger"] == "completion" else 0)
            )
        starts[row["request_id"]] = max(moments)
    return starts


@pytest.mark.parametrize("seed", range(4))
def test_playing_the_graph_gives_the_recorded_times(agents: Agents, write: Write, seed: int) -> None:
    sessions = sessions_from(write, agents(4, 6, seed=seed))
    (header, *rows), block_tokens = agentic_rows(sessions)
    turns = {turn.request_id: turn for session in sessions for turn in session.turns}
    first = min(turn.received_ms for turn in turns.values())
    starts = played(rows, {name: turn.total_ms for name, turn in turns.items()})
    assert starts == pytest.approx({name: turn.received_ms - first for name, turn in turns.items()}, abs=0.01)
    assert header["block_size"] == block_tokens == BLOCK
    assert {row["play_id"] for row in rows} == {session.root.id for session in sessions}


def test_a_parent_waits_for_its_sub_agents(turn: MakeTurn, write: Write) -> None:
    """950 ms each: the parent's first turn, two sub-agents side by side, the parent's second turn."""

    def at(name: str, parent: str | None, ms: int) -> TurnRecord:
        return turn(request_id=f"{name}@{ms}", identity=Identity(name, parent), received_unix_ms=START_MS + ms)

    turns = [at("p", None, 0), at("c", "p", 1000), at("d", "p", 1100), at("p", None, 2500), at("e", "p", 2600)]
    turns.append(at("p", None, 3500))  # e still runs
    (_, *rows), _ = agentic_rows(sessions_from(write, turns))
    needs = {
        row["request_id"]: [(n["request_id"], n["relation"], n["trigger"], n["delay_ms"]) for n in row["dependencies"]]
        for row in rows
    }
    assert needs == {
        "p@0": [],
        "c@1000": [("p@0", "spawn", "completion", 50)],
        "d@1100": [("p@0", "spawn", "completion", 150)],
        "p@2500": [
            ("p@0", "sequence", "completion", 450),
            ("c@1000", "join", "completion", 450),
            ("d@1100", "join", "completion", 450),
        ],
        "e@2600": [("p@2500", "spawn", "dispatch", 100)],
        "p@3500": [("p@2500", "sequence", "completion", 50)],
    }


def test_requests_without_a_session_are_plays_of_their_own(turn: MakeTurn, write: Write) -> None:
    turns = [turn(identity=None, request_id=name, received_unix_ms=START_MS + at) for at, name in enumerate("ab")]
    (_, *rows), _ = agentic_rows(sessions_from(write, turns))
    assert [(row["play_id"], row["session_id"], row["not_before_ms"]) for row in rows] == [("a", "a", 0), ("b", "b", 1)]


def test_request_ids_must_differ(turn: MakeTurn, write: Write) -> None:
    with pytest.raises(TraceError, match="request_id 'chatcmpl-1': not unique"):
        agentic_rows(sessions_from(write, [turn(), turn()]))
