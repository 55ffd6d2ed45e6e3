"""`edgellm trace`: what it writes and prints, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from command_line import edgellm

from edgellm.errors import ConfigError
from edgellm.runtime.types import Timing, Usage
from edgellm.server.sessions.identity import Identity
from edgellm.server.tracing.reading import TraceError
from edgellm.server.turns import TurnRecord

from .conftest import START_MS, MakeTurn, Write

Agents = Callable[..., list[TurnRecord]]


def test_timeline_writes_json_and_a_page(agents: Agents, write: Write, tmp_path: Path) -> None:
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    result = edgellm("trace", "timeline", write(agents(2, 3)), "--out", out, "--html", html)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["traceEvents"]
    assert html.read_text().startswith("<!doctype html>")
    assert str(html) in result.stderr


def test_to_mooncake_writes_rows_and_says_the_block_size(agents: Agents, write: Write, tmp_path: Path) -> None:
    trace, out = write(agents(2, 3)), tmp_path / "out.jsonl"
    for form, extra in (("mooncake", 0), ("agentic", 1)):
        result = edgellm("trace", "to-mooncake", trace, "--out", out, "--format", form)
        assert result.exit_code == 0, result.output
        assert "blocks of 64 tokens" in result.stderr
        assert len(out.read_text().splitlines()) == len(trace.read_text().splitlines()) + extra
    result = edgellm("trace", "to-mooncake", trace, "--out", out, "--format", "weka")
    assert isinstance(result.exception, ConfigError)


def test_to_mooncake_tells_of_unknown_outputs(turn: MakeTurn, write: Write, tmp_path: Path) -> None:
    result = edgellm("trace", "to-mooncake", write([turn(usage=None)]), "--out", tmp_path / "out.jsonl")
    assert "1 requests ended without a count of their output" in result.stderr


def test_summary_weighs_by_tokens_and_steps(turn: MakeTurn, write: Write) -> None:
    turns = [
        turn(usage=Usage(100, 0, 10, 20, 5, 5), timing=Timing(0, 0.4, 0.8), held_s=0.0, prompt=(1,) * 100),
        turn(
            usage=Usage(300, 300, 10, 20, 0, 15),
            timing=Timing(0, 0.2, 1.0),
            held_s=0.0,
            prompt=(1,) * 300,
            trigger="tool_result",
            received_unix_ms=START_MS + 3000,
        ),
        turn(usage=None, timing=None, identity=Identity("t", "s")),
    ]
    result = edgellm("trace", "summary", write(turns), "--json")
    assert json.loads(result.stdout) == [
        {"session_id": "s", "parent_id": None, "turns": 2, "input_tokens": 400, "cached_tokens": 300,
         "output_tokens": 20, "hit_rate": 0.75, "ttft_ms": 300.0, "tools_s": 2.2, "accepted_length": 1.25},
        {"session_id": "t", "parent_id": "s", "turns": 1, "input_tokens": 150, "cached_tokens": None,
         "output_tokens": 0, "hit_rate": None, "ttft_ms": None, "tools_s": 0.0, "accepted_length": None},
    ]  # fmt: skip


def test_summary_prints_a_table(turn: MakeTurn, write: Write) -> None:
    result = edgellm("trace", "summary", write([turn(identity=Identity("[b]n"))]))
    assert "[b]n" in result.stdout
    assert "80.0%" in result.stdout


def test_skipped_lines_are_told_and_an_empty_trace_is_an_error(turn: MakeTurn, write: Write, tmp_path: Path) -> None:
    trace = write([turn()])
    with trace.open("a") as file:
        file.write('{"timestamp"')
    assert "skipped 1 lines cut at the end of a file" in edgellm("trace", "summary", trace).stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    result = edgellm("trace", "summary", empty)
    assert isinstance(result.exception, TraceError)
    assert f"{empty}: no requests" in str(result.exception)
