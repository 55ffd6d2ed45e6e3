"""Reading back: what was written, from whole and from cut files, and faults by file, line and field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.runtime.types import Timing
from edgellm.server.sessions.identity import Identity
from edgellm.server.tracing.reading import TraceError, read_traces
from edgellm.server.tracing.records import prompt_hashes
from edgellm.server.tracing.sessions import sessions_of

from .conftest import START_MS, MakeTurn, Write


def event_line(**changes: Any) -> dict[str, Any]:
    request = {"request_id": "r", "request_received_ms": 1000, "total_time_ms": 5.5, "input_tokens": 3}
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1006}
    return {"timestamp": 1, "event": event | {"request": request} | changes}


def test_a_turn_comes_back(turn: MakeTurn, write: Write) -> None:
    given = turn(identity=Identity("child", "parent"), paused=True)
    found = read_traces([write([given])])
    assert (dict(found.skipped), found.cut) == ({}, 0)
    (read,) = found.requests
    assert (read.request_id, read.session_id, read.parent_id) == ("chatcmpl-1", "child", "parent")
    assert (read.received_ms, read.total_ms, read.end_ms) == (START_MS, 950, START_MS + 950)
    assert (read.wait_ms, read.held_ms, read.prefill_ms, read.ttft_ms, read.itl_ms) == (150, 50, 200, 350, 30)
    assert (read.input_tokens, read.cached_tokens, read.output_tokens, read.output_known) == (150, 120, 21, True)
    assert read.hashes == tuple(prompt_hashes(given.prompt, 64))
    assert (read.accepted_length, read.verify_steps, read.paused, read.tools) == (2.5, 8, True, ("read",))
    assert read.finish_reason == "tool_calls"


def test_files_are_joined_and_sorted_by_arrival(turn: MakeTurn, write: Write) -> None:
    late = write([turn(received_unix_ms=START_MS + 5), turn(received_unix_ms=START_MS + 1)], "late.jsonl")
    early = write([turn(received_unix_ms=START_MS)], "early.jsonl")
    found = read_traces([late, early])
    assert [request.received_ms - START_MS for request in found.requests] == [0, 1, 5]


def test_a_record_of_dynamo_is_read(tmp_path: Path) -> None:
    """As its frontend writes one for a request without a session."""
    row = {
        "timestamp": 12399,
        "event": {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": 1796085286315,
            "request": {
                "request_id": "78cbc65e", "input_tokens": 70, "output_tokens": 14, "cached_tokens": 0,
                "request_received_ms": 1796085286160, "prefill_wait_time_ms": 2.2, "prefill_time_ms": 13.4,
                "ttft_ms": 15.6, "total_time_ms": 154.9, "avg_itl_ms": 10.7, "kv_hit_rate": 0.0, "queue_depth": 0,
                "worker": {"prefill_worker_id": 3316147820931829261, "prefill_dp_rank": 0},
                "replay": {"trace_block_size": 64, "input_length": 70, "input_sequence_hashes": [2**64 - 1, 0]},
            },
        },
    }  # fmt: skip
    path = tmp_path / "dynamo.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (request,) = read_traces([path]).requests
    assert request.session_id is None
    assert request.hashes == (2**64 - 1, 0)
    assert request.accepted_length is None


def test_other_events_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [event_line(), event_line(event_type="tool_end"), event_line(event_type="tool_end"), event_line(schema="x")]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    found = read_traces([path])
    assert len(found.requests) == 1
    assert found.notes() == ["skipped 1 events request_end", "skipped 2 events tool_end"]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_anywhere_gives_its_whole_lines(tmp_path: Path, turn: MakeTurn, write: Write, zipped: bool) -> None:
    data = write([turn(request_id=str(number), prompt=(number,) * 70) for number in range(3)]).read_bytes()
    lines = data.splitlines(keepends=True)
    whole = b"".join(gzip.compress(line) for line in lines) if zipped else data
    path = tmp_path / "cut"
    ends = [sum(len(gzip.compress(line)) if zipped else len(line) for line in lines[:at]) for at in (1, 2, 3)]
    for size in sorted({*range(0, len(whole), 7), *ends}):
        path.write_bytes(whole[:size])
        found = read_traces([path])
        names = [request.request_id for request in found.requests]
        assert names == ["0", "1", "2"][: len(names)]
        assert len(names) >= sum(end <= size for end in ends)
        text = data[:size]
        if not zipped:
            assert len(names) in (text.count(b"\n"), text.count(b"\n") + 1)
            assert found.cut == (len(names) == text.count(b"\n") and bool(text) and not text.endswith(b"\n"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "t.jsonl:2: not JSON"),
        ("[]", "t.jsonl:2: the line: must be an object"),
        (event_line(event_time_unix_ms="x"), "t.jsonl:2: event.event_time_unix_ms: must be a number of at least 0"),
        (event_line(request={"total_time_ms": 1}), "t.jsonl:2: event.request.input_tokens: must be a whole number"),
        (event_line(agent_context=[]), "event.agent_context: must be an object"),
        (event_line(agent_context={"session_id": 5}), "event.agent_context.session_id: must be a string, got 5"),
        (event_line(request={"input_tokens": -1}), "event.request.input_tokens: must be a number of at least 0"),
        (
            event_line(request={"replay": {"input_length": 3, "input_sequence_hashes": [2**64]}}),
            "event.request.replay.input_sequence_hashes: must be unsigned 64-bit",
        ),
        (
            event_line(request={"replay": {"input_length": 9, "trace_block_size": 4, "input_sequence_hashes": [1]}}),
            "t.jsonl:2: 1 hashes of blocks of 4 tokens do not fit",
        ),
    ],
)
def test_a_fault_names_file_line_and_field(tmp_path: Path, line: Any, told: str) -> None:
    path = tmp_path / "t.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(json.dumps(event_line()) + "\n" + text + "\n")
    with pytest.raises(TraceError) as caught:
        read_traces([path])
    assert told in str(caught.value)


def test_a_missing_file_and_damaged_gzip_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none"):
        read_traces([tmp_path / "none"])
    path = tmp_path / "bad.gz"
    path.write_bytes(b"\x1f\x8b" + b"\xff" * 40)
    with pytest.raises(TraceError, match=r"bad\.gz: damaged gzip data"):
        read_traces([path])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("agent_context", "request", "edgellm", "event_time_unix_ms")
OF_REQUEST = ("replay", "finish_reason_metadata", "input_tokens", "total_time_ms", "request_received_ms", "ttft_ms")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.dictionaries(st.sampled_from(OF_REQUEST), JSON))
def test_any_line_is_read_or_named(tmp_path: Path, event: dict[str, Any], request: dict[str, Any]) -> None:
    line = event_line()
    line["event"] |= event
    if isinstance(line["event"]["request"], dict):
        line["event"]["request"] |= request
    path = tmp_path / "any.jsonl"
    path.write_text(json.dumps(line) + "\n")
    told = ""
    try:
        (found,) = read_traces([path]).requests
    except TraceError as error:
        told = str(error)
    assert told.startswith(f"{path}:1: ") if told else found.total_ms >= 0


def test_sessions_stand_under_their_parents(turn: MakeTurn, write: Write) -> None:
    parents = {"b": None, "a": None, "b1": "b", "a1": "a", "a2": "a", "a11": "a1", "orphan": "gone", None: None}
    turns = [
        turn(received_unix_ms=START_MS + at, identity=Identity(name, parent) if name else None)
        for at, (name, parent) in enumerate(parents.items())
    ]
    found = sessions_of(read_traces([write(turns)]).requests)
    assert [(session.id, session.depth) for session in found] == [
        ("b", 0), ("b1", 1), ("a", 0), ("a1", 1), ("a11", 2), ("a2", 1), ("orphan", 0), (None, 0)
    ]  # fmt: skip
    assert next(session for session in found if session.id == "a11").root.id == "a"


def test_parents_in_a_circle_lose_no_session(turn: MakeTurn, write: Write) -> None:
    circle = {"a": "c", "b": "a", "c": "b", "self": "self"}
    found = sessions_of(read_traces([write([turn(identity=Identity(*pair)) for pair in circle.items()])]).requests)
    assert {session.id for session in found} == circle.keys()
    assert any(session.depth == 0 for session in found)


def test_gaps_tell_tools_from_the_user_and_leave_out_overlaps(turn: MakeTurn, write: Write) -> None:
    moments = [(0, "user_message"), (500, "tool_result"), (2000, "tool_result"), (4000, "user_message")]
    turns = [turn(received_unix_ms=START_MS + at, trigger=trigger) for at, trigger in moments]  # 950 ms each
    (session,) = sessions_of(read_traces([write(turns)]).requests)
    assert [(gap.kind, gap.start_ms - START_MS, gap.end_ms - START_MS) for gap in session.gaps()] == [
        ("tools", 1450, 2000),
        ("user", 2950, 4000),
    ]


def test_a_gap_begins_where_the_longest_of_the_earlier_turns_ends(turn: MakeTurn, write: Write) -> None:
    turns = [turn(timing=Timing(0.0, 0.1, 5.0), held_s=0.0)]
    turns += [turn(received_unix_ms=START_MS + at) for at in (1000, 3000, 6000)]
    (session,) = sessions_of(read_traces([write(turns)]).requests)
    assert [(gap.start_ms - START_MS, gap.end_ms - START_MS) for gap in session.gaps()] == [(5000, 6000)]
