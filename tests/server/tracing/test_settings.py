"""The environment of a trace: Dynamo's names, our own, and errors that name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.errors import ConfigError
from edgellm.server.tracing.settings import TraceSettings, trace_settings


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"DYN_REQUEST_TRACE": "0"},
        {"DYN_REQUEST_TRACE": ""},
        {"DYN_REQUEST_TRACE_FILE_PATH": "/x"},  # not switched on
        {"DYN_REQUEST_TRACE": "1", "EDGELLM_REQUEST_TRACE": "0"},  # ours stands above
        {"EDGELLM_REQUEST_TRACE": ""},
    ],
)
def test_off(environ: dict[str, str]) -> None:
    assert trace_settings(environ) is None


@pytest.mark.parametrize("name", ["DYN_REQUEST_TRACE", "EDGELLM_REQUEST_TRACE"])
@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_switched_on_with_the_defaults_of_the_reference(name: str, value: str) -> None:
    assert trace_settings({name: value}) == TraceSettings(
        path=Path("/tmp/dynamo-request-trace"),
        format="jsonl_gz",
        records=frozenset({"request_end", "tool"} | ({"edgellm_admission"} if name.startswith("EDGELLM") else set())),
        sinks=frozenset({"file"}),
        capacity=1024,
        buffer_bytes=1048576,
        flush_interval_ms=1000,
        roll_bytes=268435456,
        roll_lines=0,
    )


@pytest.mark.parametrize(
    ("environ", "path", "form"),
    [
        ({"EDGELLM_REQUEST_TRACE": "/a/t.jsonl"}, "/a/t.jsonl", "jsonl"),
        ({"EDGELLM_REQUEST_TRACE": "/a/t"}, "/a/t", "jsonl_gz"),
        ({"EDGELLM_REQUEST_TRACE": "/a/t", "DYN_REQUEST_TRACE_FILE_PATH": "/b"}, "/a/t", "jsonl_gz"),
        (
            {"EDGELLM_REQUEST_TRACE": "/a/t.jsonl", "DYN_REQUEST_TRACE_FILE_FORMAT": "jsonl_gz"},
            "/a/t.jsonl",
            "jsonl_gz",
        ),
        ({"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_PATH": "/b.jsonl"}, "/b.jsonl", "jsonl_gz"),
        ({"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_OUTPUT_PATH": "/c"}, "/c", "jsonl_gz"),
        ({"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_FORMAT": "jsonl"}, "/tmp/dynamo-request-trace", "jsonl"),
    ],
)
def test_path_and_format(environ: dict[str, str], path: str, form: str) -> None:
    settings = trace_settings(environ)
    assert settings is not None
    assert (str(settings.path), settings.format) == (path, form)


def test_every_setting_is_read() -> None:
    rest = {
        "RECORDS": "request_end, edgellm_admission",
        "SINKS": "stderr,file",
        "CAPACITY": "7",
        "FILE_BUFFER_BYTES": "8",
        "FILE_FLUSH_INTERVAL_MS": "9",
        "FILE_ROLL_BYTES": "10",
        "FILE_ROLL_LINES": "11",
        "S3_BUCKET": "of a sink that is not chosen",
    }
    settings = trace_settings({"DYN_REQUEST_TRACE": "1"} | {f"DYN_REQUEST_TRACE_{n}": v for n, v in rest.items()})
    assert settings is not None
    assert settings.records == {"request_end", "edgellm_admission"}
    assert settings.sinks == {"stderr", "file"}
    assert (settings.capacity, settings.buffer_bytes, settings.flush_interval_ms) == (7, 8, 9)
    assert (settings.roll_bytes, settings.roll_lines) == (10, 11)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("", "maybe", "DYN_REQUEST_TRACE: must be 1 or 0"),
        ("_SINKS", "file,nats", "DYN_REQUEST_TRACE_SINKS: 'nats'"),
        ("_SINKS", "s3", "'s3'"),
        ("_RECORDS", "request_end,request_payload", "DYN_REQUEST_TRACE_RECORDS: 'request_payload'"),
        ("_FILE_FORMAT", "parquet", "DYN_REQUEST_TRACE_FILE_FORMAT: must be"),
        ("_CAPACITY", "0", "DYN_REQUEST_TRACE_CAPACITY: must be a whole number of at least 1"),
        ("_FILE_ROLL_BYTES", "1e6", "DYN_REQUEST_TRACE_FILE_ROLL_BYTES"),
        ("_FILE_ROLL_LINES", "-1", "DYN_REQUEST_TRACE_FILE_ROLL_LINES"),
        ("_TOOL_EVENTS_ZMQ_ENDPOINT", "tcp://0.0.0.0:1", "DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT: not supported"),
        ("_FILE_PATHS", "/x", "DYN_REQUEST_TRACE_FILE_PATHS: not supported"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        trace_settings({"DYN_REQUEST_TRACE": "1", f"DYN_REQUEST_TRACE{name}": value})
