"""The timeline and the picture: every turn is in them, where it was, and hostile names stay text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from edgellm.server.sessions.identity import Identity
from edgellm.server.tracing.page import page
from edgellm.server.tracing.phases import occupancy, phases, tracks
from edgellm.server.tracing.picture import count, duration, picture
from edgellm.server.tracing.reading import read_traces
from edgellm.server.tracing.sessions import Session, sessions_of
from edgellm.server.tracing.timeline import chrome_trace
from edgellm.server.turns import TurnRecord

from .conftest import START_MS, MakeTurn, Write

Agents = Callable[..., list[TurnRecord]]


@pytest.fixture
def sessions(agents: Agents, write: Write) -> list[Session]:
    return sessions_of(read_traces([write(agents(4, 6, seed=3))]).requests)


def events_of(sessions: list[Session], phase: str) -> list[dict[str, Any]]:
    return [event for event in chrome_trace(sessions)["traceEvents"] if event["ph"] == phase]


def test_each_turn_is_a_slice_with_its_figures(agents: Agents, write: Write) -> None:
    turns = agents(3, 5)
    trace = chrome_trace(sessions_of(read_traces([write(turns)]).requests))
    assert json.loads(json.dumps(trace)) == trace
    slices = {event["args"]["request"]: event for event in trace["traceEvents"] if event.get("cat") == "turn"}
    assert slices.keys() == {turn.request_id for turn in turns}
    start = min(turn.received_unix_ms for turn in turns)
    for turn in turns:
        usage, timing = turn.usage, turn.timing
        assert usage is not None
        assert timing is not None
        found = slices[turn.request_id]
        assert found["ts"] == (turn.received_unix_ms - start) * 1000
        assert found["dur"] == pytest.approx((turn.held_s + timing.total_s) * 1e6, abs=1.5)
        assert found["args"]["input_tokens"] == usage.prompt_tokens
        assert found["args"]["cached_tokens"] == usage.cached_tokens
        assert found["args"]["accepted_length"] == pytest.approx(usage.accepted_length)
    assert trace["otherData"] == {"start_unix_ms": start}


def test_slices_of_a_track_nest_and_never_cross(sessions: list[Session]) -> None:
    by_track = defaultdict(list)
    for event in events_of(sessions, "X"):
        by_track[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for slices in by_track.values():
        open_ends: list[int] = []
        for ts, negative in sorted(slices):
            while open_ends and open_ends[-1] <= ts:
                open_ends.pop()
            assert not open_ends or ts - negative <= open_ends[-1]
            open_ends.append(ts - negative)


def test_a_session_is_a_process_named_with_its_parent(sessions: list[Session]) -> None:
    names = [event["args"]["name"] for event in events_of(sessions, "M") if event["name"] == "process_name"]
    assert names == ["server"] + [
        str(session.id) if session.parent_id is None else f"{session.id} (of {session.parent_id})"
        for session in sessions
    ]


def test_counters_end_at_zero_and_never_go_below(sessions: list[Session]) -> None:
    values = [event["args"] for event in events_of(sessions, "C")]
    assert all(value >= 0 for counts in values for value in counts.values())
    assert set(values[-1].values()) == {0}
    assert max(sum(counts.values()) for counts in values) > 1


def test_phases_fill_a_turn_without_holes(agents: Agents, write: Write) -> None:
    for request in read_traces([write(agents(4, 6))]).requests:
        found = phases(request)
        assert found[0].start_ms == request.received_ms
        assert found[-1].end_ms == request.end_ms
        assert [one.start_ms for one in found[1:]] == [one.end_ms for one in found[:-1]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("held", 0, 50), ("queued", 50, 150), ("prefill", 150, 350), ("decode", 350, 950)]),
        ({"held_s": 0.0}, [("queued", 0, 100), ("prefill", 100, 300), ("decode", 300, 900)]),
        ({"timing": None}, []),
    ],
)
def test_phases(turn: MakeTurn, write: Write, changes: dict[str, Any], expected: list[tuple[str, int, int]]) -> None:
    (request,) = read_traces([write([turn(**changes)])]).requests
    assert [(one.name, one.start_ms - START_MS, one.end_ms - START_MS) for one in phases(request)] == expected


def test_turns_at_the_same_time_get_tracks_of_their_own(turn: MakeTurn, write: Write) -> None:
    starts = (0, 100, 200, 950, 1200)  # 950 ms each
    found = read_traces([write([turn(received_unix_ms=START_MS + at) for at in starts])])
    assert tracks(found.requests) == [0, 1, 2, 0, 1]
    assert max(sum(counts.values()) for _, counts in occupancy(found.requests)) == 3


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_picture_is_whole_and_loads_nothing(sessions: list[Session]) -> None:
    text = page(sessions)
    svg = ElementTree.fromstring(picture(sessions))
    turns = [group for group in svg.iter("g") if group.get("class") == "turn"]
    assert len(turns) == sum(len(session.turns) for session in sessions)
    assert "accepted length" in (turns[0].get("data-tip") or "")
    for tag, attributes in _Page(text).tags:
        assert tag not in ("link", "img", "iframe", "object")
        assert not attributes.keys() & {"src", "href"}
    assert not re.search(r"url\(|@import|https?:", text)


def test_bars_stand_at_their_times_within_the_plot(sessions: list[Session]) -> None:
    svg = ElementTree.fromstring(picture(sessions))
    turns = [turn for session in sessions for turn in session.turns]
    bars = [next(iter(group)) for group in svg.iter("g") if group.get("class") == "turn"]
    lefts = [float(bar.get("x") or 0) for bar in bars]
    first = min(turn.received_ms for turn in turns)
    span = max(turn.end_ms for turn in turns) - first
    plot = max(float(bar.get("x") or 0) + float(bar.get("width") or 0) for bar in bars) - min(lefts)
    for turn, left in zip(turns, lefts, strict=True):
        assert left - min(lefts) == pytest.approx((turn.received_ms - first) / span * plot, abs=2)


@pytest.mark.parametrize(
    "name", ["</script><script>x()</script>", '"><b onload="x">', "&amp;", "a" * 200, "日本\u202e"]
)
def test_names_from_a_trace_stay_text(turn: MakeTurn, write: Write, name: str) -> None:
    turns = [turn(identity=Identity(name)), turn(identity=Identity("child", name), model=name)]
    text = page(sessions_of(read_traces([write(turns)]).requests))
    assert [tag for tag, _ in _Page(text).tags].count("script") == 1
    assert "b" not in [tag for tag, _ in _Page(text).tags]
    tips = [
        attributes["data-tip"] or ""
        for tag, attributes in _Page(text).tags
        if tag == "text" and "data-tip" in attributes
    ]
    assert name in tips


def test_a_single_instant_can_be_drawn(turn: MakeTurn, write: Write) -> None:
    moment = {"received_unix_ms": START_MS, "ended_unix_ms": START_MS, "timing": None, "usage": None}
    found = sessions_of(read_traces([write([turn(**moment), turn(identity=None, **moment)])]).requests)
    ElementTree.fromstring(picture(found))
    chrome_trace(found)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0"), (250, "250 ms"), (4500, "4.5 s"), (9000, "9 s"), (125_000, "2:05 min"), (3_720_000, "1:02:00 h")],
)
def test_durations(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(("number", "text"), [(912, "912"), (4100, "4.1k"), (181_700, "182k"), (2_400_000, "2.4M")])
def test_counts(number: int, text: str) -> None:
    assert count(number) == text
