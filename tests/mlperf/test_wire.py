"""Request bytes equal those of the MLCommons client, and answers are read by its rules."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgellm.errors import ConfigError
from edgellm.mlperf.trace import bfcl_request, load_trace, turn_requests
from edgellm.mlperf.wire import encode_json, merge_tool_calls, read_frames, request_bytes

# SHA-256 over all 1,007 requests of agentic_coding_2.5h.jsonl as built by the harness's own classes
# (mlcommons/endpoints @ ea33275: AgenticInferenceDataset, OpenAIMsgspecAdapter, HttpRequestTemplate) with model
# "edgellm", http://127.0.0.1:8080, temperature 0, seed 42, max_new_tokens 1024, streaming.
HARNESS_DIGEST = "240b4570f8ef325386a5f40a113d71b069e2900fc13cd97b62d0897c371dfb51"
HARNESS_BYTES = 53_995_171


def test_all_recorded_requests_equal_the_harness(shared_dir: Path) -> None:
    digest, size, count = hashlib.sha256(), 0, 0
    for conversation in load_trace(shared_dir / "data" / "agentic_coding_2.5h.jsonl"):
        for body in turn_requests(conversation):
            raw = request_bytes("127.0.0.1", 8080, body, session_id=conversation.id)
            digest.update(raw)
            size += len(raw)
            count += 1
    assert (count, size, digest.hexdigest()) == (1007, HARNESS_BYTES, HARNESS_DIGEST)


def test_bfcl_request_has_the_harness_key_order() -> None:
    tool = {"type": "function", "function": {"name": "area", "parameters": {"type": "object", "properties": {}}}}
    raw = request_bytes("localhost", 80, bfcl_request([{"role": "user", "content": "hi"}], [tool]), api_key="k")
    assert raw == (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n"
        b"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: 259\r\n\r\n"
        b'{"model":"edgellm","messages":[{"role":"user","content":"hi"}],"temperature":0.0,'
        b'"max_completion_tokens":1024,"stream":true,"seed":42,"tools":[{"type":"function","function":'
        b'{"name":"area","parameters":{"type":"object","properties":{}}}}],"tool_choice":"auto"}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (0.0001, "0.0001"),
        (1.5e-5, "0.000015"),
        (-1e-5, "-0.00001"),
        (1e-6, "1e-6"),
        (1.25e-7, "1.25e-7"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (1.5e300, "1.5e300"),
        ('\x00\x1f\x7f\b\f\n\r\t"\\/\u2028é😀', '"\\u0000\\u001f\x7f\\b\\f\\n\\r\\t\\"\\\\/\u2028é😀"'),
        ({"a": [1, None, True, {}], "b": ()}, '{"a":[1,null,true,{}],"b":[]}'),
    ],
)
def test_json_is_written_as_the_harness_writes_it(value: object, text: str) -> None:
    assert encode_json(value) == text.encode()


def test_a_malformed_frame_drops_the_rest_of_its_batch() -> None:
    good = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    for bad in (
        b'{"choices":null}',
        b'{"choices":[{"delta":{"content":["a"]}}]}',
        b'{"choices":[{"delta":{"tool_calls":{}}}]}',
        b'{"choices":[{"delta":{},"finish_reason":1}]}',
        b'{"choices":',
    ):
        frames, warning = read_frames(good + b"data: " + bad + b"}\n\n" * bad.endswith(b":") + b"\n\n" + good)
        assert len(frames) == 1
        assert warning is not None
    frames, warning = read_frames(b": ping\n\nevent: x\n" + good + b'data: [DONE]\n\ndata: {"choices":[]}\n\n')
    assert [frame.delta for frame in frames] == [{"content": "a"}, None]
    assert warning is None


def test_tool_call_fragments_merge_by_index() -> None:
    parts = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": None}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"function": {"arguments": "!"}},
    ]
    first, second = merge_tool_calls(parts)
    assert first == {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}!'}}
    assert second["function"] == {"name": "g", "arguments": ""}


def test_a_broken_trace_names_the_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    for text, match in [
        ("{", ":1: not JSON"),
        ("[]", ":1: a row must be"),
        ('{"conversation_id":"c","turn":1}', "'role'"),
        ('{"conversation_id":"c","turn":1,"role":"robot"}', "unknown role"),
        ('{"conversation_id":"c","turn":2,"role":"user"}', "numbered"),
        ('{"conversation_id":"c","turn":1,"role":"assistant"}', "without a request"),
        ('{"conversation_id":"c","turn":1,"role":"tool"}', "tool_results"),
    ]:
        trace.write_text(text)
        with pytest.raises(ConfigError, match=match):
            load_trace(trace)
    with pytest.raises(ConfigError, match="cannot read"):
        load_trace(tmp_path / "none.jsonl")
