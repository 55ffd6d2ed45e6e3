"""Writing: everything arrives or is counted, off the caller's thread, in files that are always whole."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import ConfigError
from edgellm.server.tracing import sink
from edgellm.server.tracing.settings import TraceSettings, trace_settings
from edgellm.server.tracing.sink import RequestTrace

from .conftest import MakeTurn

Lines = list[dict[str, Any]]


def opened(path: Path, **settings: Any) -> RequestTrace:
    return RequestTrace(TraceSettings(path=path, **settings), 64)


def lines_of(path: Path) -> Lines:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def ids(lines: Lines) -> list[str]:
    return [line["event"]["request"]["request_id"] for line in lines]


def test_nothing_asked_nothing_made() -> None:
    assert trace_settings({}) is None


def test_lines_in_order_in_a_plain_file_that_grows(tmp_path: Path, turn: MakeTurn) -> None:
    path = tmp_path / "deep" / "t.jsonl"
    for run in range(2):
        settings = trace_settings({"EDGELLM_REQUEST_TRACE": str(path)})
        assert settings is not None
        trace = RequestTrace(settings, block_tokens=16)
        for number in range(5):
            trace.record(turn(request_id=f"{run}-{number}"))
        trace.close()
        assert (trace.written, trace.dropped) == (5, 0)
    lines = lines_of(path)
    assert ids(lines) == [f"{run}-{number}" for run in range(2) for number in range(5)]
    assert all(line.keys() == {"timestamp", "event"} and isinstance(line["timestamp"], int) for line in lines)
    assert lines[0]["event"]["request"]["replay"]["trace_block_size"] == 16


def test_segments_roll_by_lines_and_are_never_overwritten(tmp_path: Path, turn: MakeTurn) -> None:
    for run in range(2):
        trace = opened(tmp_path / "t", roll_lines=2)
        for number in range(5):
            trace.record(turn(request_id=f"{run}-{number}"))
        trace.close()
    found = sorted(tmp_path.iterdir())
    assert [path.name for path in found] == [f"t.{number:06d}.jsonl.gz" for number in range(6)]
    assert [len(lines_of(path)) for path in found] == [2, 2, 1, 2, 2, 1]
    assert ids([line for path in found for line in lines_of(path)]) == [f"{r}-{n}" for r in range(2) for n in range(5)]


def test_segments_roll_by_bytes(tmp_path: Path, turn: MakeTurn) -> None:
    trace = opened(tmp_path / "t", roll_bytes=1)
    for _ in range(3):
        trace.record(turn())
    trace.close()
    assert [len(lines_of(path)) for path in sorted(tmp_path.iterdir())] == [1, 1, 1]


def test_a_segment_can_be_read_while_it_is_written(tmp_path: Path, turn: MakeTurn) -> None:
    trace = opened(tmp_path / "t", flush_interval_ms=1)
    for number in range(3):
        trace.record(turn())
        for _ in range(2000):
            if trace.written == number + 1:
                break
            threading.Event().wait(0.005)
        assert len(lines_of(tmp_path / "t.000000.jsonl.gz")) == number + 1
    trace.close()


def test_records_that_are_not_asked_for(tmp_path: Path, turn: MakeTurn) -> None:
    plain = opened(tmp_path / "a.jsonl", format="jsonl")
    plain.admission(1, "s", "paused", {})
    plain.record(turn(choices=3))
    plain.close()
    assert (plain.written, plain.dropped) == (0, 0)
    chosen = opened(tmp_path / "b.jsonl", format="jsonl", records=frozenset({"edgellm_admission"}))
    chosen.record(turn())
    chosen.admission(1, "s", "paused", {"free_tokens": 3})
    chosen.close()
    assert [line["event"]["edgellm"] for line in lines_of(tmp_path / "b.jsonl")] == [
        {"free_tokens": 3, "decision": "paused"}
    ]


def test_stderr(tmp_path: Path, turn: MakeTurn, capsys: pytest.CaptureFixture[str]) -> None:
    trace = opened(tmp_path / "t", sinks=frozenset({"stderr"}))
    trace.record(turn())
    trace.close()
    assert json.loads(capsys.readouterr().err)["event"]["event_type"] == "request_end"
    assert list(tmp_path.iterdir()) == []


def test_hashing_is_not_done_by_the_caller_and_a_full_queue_loses_and_counts(
    tmp_path: Path, turn: MakeTurn, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, busy, threads = threading.Event(), threading.Event(), []

    def slow(*args: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        busy.set()
        go.wait(30)
        return {"request": {"request_id": args[0].request_id}}

    monkeypatch.setattr(sink, "request_event", slow)
    trace = opened(tmp_path / "t.jsonl", format="jsonl", capacity=3)
    trace.record(turn(request_id="0"))
    assert busy.wait(30)
    for number in range(1, 9):
        trace.record(turn(request_id=str(number)))
    assert trace.dropped == 5
    go.set()
    trace.close()
    assert ids(lines_of(tmp_path / "t.jsonl")) == ["0", "1", "2", "3"]
    assert (trace.written, trace.dropped) == (4, 5)
    assert threading.current_thread() not in threads


def test_after_close_records_are_counted_as_lost(tmp_path: Path, turn: MakeTurn) -> None:
    trace = opened(tmp_path / "t")
    trace.close()
    trace.close()
    trace.record(turn())
    assert (trace.written, trace.dropped) == (0, 1)


@pytest.mark.parametrize("form", ["jsonl", "jsonl_gz"])
def test_a_full_disk_is_told_once_and_leaves_whole_lines(
    tmp_path: Path, turn: MakeTurn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, form: Any
) -> None:
    """The disk takes the first batch, then half of each of the next two, then all again."""
    real, calls = os.write, 0

    def write(fd: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 4):
            return real(fd, data[: len(data) // 2])
        if calls in (3, 5):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    trace = opened(tmp_path / "t", format=form, buffer_bytes=1)  # every line is a batch
    monkeypatch.setattr(os, "write", write)
    with caplog.at_level(logging.ERROR):
        for number in range(4):
            trace.record(turn(request_id=str(number)))
        trace.close()
    monkeypatch.undo()
    assert (trace.written, trace.dropped) == (2, 2)
    assert ids(lines_of(next(tmp_path.iterdir()))) == ["0", "3"]
    assert len([record for record in caplog.records if record.name == "edgellm.server.tracing"]) == 1


def test_a_record_that_cannot_be_made_does_not_end_the_trace(tmp_path: Path, turn: MakeTurn) -> None:
    trace = opened(tmp_path / "t.jsonl", format="jsonl")
    trace.record(turn(prompt=(-1,)))  # no token
    trace.record(turn(request_id="good"))
    trace.close()
    assert (trace.written, trace.dropped) == (1, 1)
    assert ids(lines_of(tmp_path / "t.jsonl")) == ["good"]


def test_a_path_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"request trace: cannot write .*file/t"):
        opened(tmp_path / "file" / "t")
