"""`nvext` and the routing headers: what each key does, and the errors that name the wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import RequestError
from edgellm.runtime.types import Output, Timing, Usage
from edgellm.server.fields import Fields
from edgellm.server.sessions.hints import NO_HINTS, Hints, header_hints, read_hints
from edgellm.server.sessions.nvext import AGENT_HINTS, EXTRA_FIELDS, NVEXT, answer_nvext

# Every key that Dynamo 1.6.1 accepts.
ACCEPTED = (
    *("greed_sampling", "use_raw_prompt", "annotations", "backend_instance_id", "token_data", "max_thinking_tokens"),
    *("cache_salt", "extra_fields", "metadata_upload", "prefill_worker_id", "decode_worker_id", "dp_rank"),
    *("prefill_dp_rank", "agent_hints", "request_timestamp_ms", "routing_constraints", "router"),
)


def read(**body: Any) -> Hints:
    return read_hints(Fields(body))


def refusal(**body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**body)
    return caught.value


def test_nothing_said() -> None:
    assert read() == read(nvext=None) == read(nvext={}) == read(nvext={"agent_hints": {}}) == NO_HINTS
    assert NO_HINTS.engine_priority == 0


def test_everything_said() -> None:
    hints = {"priority": 5, "strict_priority": 2, "osl": 300, "speculative_prefill": False, "latency_sensitivity": 0.5}
    nvext = {"agent_hints": hints, "cache_salt": "s", "max_thinking_tokens": 9, "extra_fields": ["timing"]}
    assert read(nvext=nvext) == Hints(5, 2, 300, "s", 9, frozenset({"timing"}))


def test_body_fields_that_mean_the_same() -> None:
    assert read(cache_salt="s", thinking_budget=4) == Hints(salt="s", max_thinking_tokens=4)
    both = read(cache_salt="s", nvext={"cache_salt": "s", "max_thinking_tokens": 0}, max_thinking_tokens=0)
    assert both == Hints(salt="s", max_thinking_tokens=0)
    assert refusal(cache_salt="s", nvext={"cache_salt": "t"}).param == "nvext.cache_salt"
    assert refusal(thinking_token_budget=1, nvext={"max_thinking_tokens": 2}).param == "nvext.max_thinking_tokens"
    assert refusal(thinking_budget=1, max_thinking_tokens=2).param == "max_thinking_tokens"


@pytest.mark.parametrize("key", ACCEPTED)
def test_every_key_has_one_class(key: str) -> None:
    assert sum(key in table for table in (NVEXT.honoured, NVEXT.refused, NVEXT.ignored)) == 1


def test_no_key_has_two_classes() -> None:
    for table in (NVEXT, AGENT_HINTS, EXTRA_FIELDS):
        names = [*table.honoured, *table.refused, *table.ignored]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("agent_context", {"session_id": "s"}, "x-dynamo-session-id"),
        ("agent_context", {}, "x-dynamo-session-id"),
        ("session_control", {"action": "close"}, "x-dynamo-session-final"),
        ("cache_control", {"type": "ephemeral"}, "kv_retention"),
        ("annotations", ["token_ids"], "render"),
        ("greed_sampling", True, "temperature 0"),
        ("use_raw_prompt", True, "/v1/completions"),
        ("token_data", [1], "/v1/completions"),
        ("metadata_upload", {"url": "http://x"}, "uploaded"),
        ("routing_constraints", {"required_taints": ["a"]}, "taints"),
        ("nonsense", 1, "unknown"),
        ("nonsense", None, "unknown"),
    ],
)
def test_refused_keys_say_what_to_use(key: str, value: object, instead: str) -> None:
    error = refusal(nvext={key: value})
    assert error.param == f"nvext.{key}"
    assert instead in str(error)


@pytest.mark.parametrize("key", NVEXT.refused)
def test_a_null_is_not_given(key: str) -> None:
    assert read(nvext={key: None}) == NO_HINTS


@pytest.mark.parametrize("key", NVEXT.ignored)
def test_ignored_keys_have_no_effect(key: str) -> None:
    assert read(nvext={key: 3}) == NO_HINTS


@pytest.mark.parametrize(
    ("hints", "param"),
    [
        ({"priority": 2**31}, "priority"),
        ({"priority": -(2**31) - 1}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": "5"}, "priority"),
        ({"strict_priority": -1}, "strict_priority"),
        ({"strict_priority": 2**32}, "strict_priority"),
        ({"osl": -1}, "osl"),
        ({"osl": True}, "osl"),
        ({"speculative_prefill": True}, "speculative_prefill"),
        ({"urgency": 1}, "urgency"),
    ],
)
def test_wrong_hints_are_named(hints: dict[str, Any], param: str) -> None:
    assert refusal(nvext={"agent_hints": hints}).param == f"nvext.agent_hints.{param}"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"nvext": []}, "nvext"),
        ({"nvext": {"agent_hints": 1}}, "nvext.agent_hints"),
        ({"nvext": {"cache_salt": 1}}, "nvext.cache_salt"),
        ({"nvext": {"max_thinking_tokens": -1}}, "nvext.max_thinking_tokens"),
        ({"nvext": {"extra_fields": "timing"}}, "nvext.extra_fields"),
        ({"nvext": {"extra_fields": ["timing", "worker_id"]}}, "nvext.extra_fields[1]"),
        ({"nvext": {"extra_fields": ["engine_data"]}}, "nvext.extra_fields[0]"),
        ({"nvext": {"extra_fields": ["nonsense"]}}, "nvext.extra_fields[0]"),
        ({"nvext": {"extra_fields": [1]}}, "nvext.extra_fields[0]"),
        ({"cache_salt": 5}, "cache_salt"),
    ],
)
def test_wrong_fields_are_named(body: dict[str, Any], param: str) -> None:
    assert refusal(**body).param == param


def test_headers_go_before_the_body() -> None:
    headers = [
        (b"x-dynamo-request-priority", b" -7 "),
        (b"x-dynamo-request-strict-priority", b"3"),
        (b"x-tenant-id", "größe".encode()),
        (b"x-other", b"\xff"),
    ]
    said = header_hints(headers)
    assert said == Hints(-7, 3, salt="größe")
    body = read(nvext={"agent_hints": {"priority": 5, "osl": 9}, "cache_salt": "s", "extra_fields": ["stop_reason"]})
    assert body.behind(said) == Hints(-7, 3, 9, "größe", extra=frozenset({"stop_reason"}))
    assert body.behind(header_hints([(b"x-tenant-id", b"  ")])) == body
    assert body.behind(header_hints([(b"x-dynamo-request-priority", b"0")])).priority == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-dynamo-request-priority", b"high"),
        ("x-dynamo-request-priority", b"1.5"),
        ("x-dynamo-request-priority", b"2147483648"),
        ("x-dynamo-request-priority", "\u0661".encode()),
        ("x-dynamo-request-priority", b"1" * 5000),
        ("x-dynamo-request-strict-priority", b"-1"),
        ("x-tenant-id", b"\xff"),
        ("x-tenant-id", b"a" * 257),
        ("x-tenant-id", b"a\x00"),
    ],
)
def test_wrong_headers_are_named(name: str, value: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        header_hints([(name.encode(), value)])
    assert caught.value.param == name


_SIDE = st.tuples(st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1))


@given(_SIDE, _SIDE, st.integers(-2, 1))
def test_the_strict_tier_goes_before_any_priority(a: tuple[int, int], b: tuple[int, int], added: int) -> None:
    """Also with what admission adds."""
    first, second = (Hints(priority, strict).engine_priority for strict, priority in (a, b))
    if a[0] != b[0]:
        assert (first + added > second) == (a[0] > b[0])
    else:
        assert (first > second) == (a[1] > b[1])


def test_what_an_answer_carries() -> None:
    final = Output(finish_reason="stop", stop_reason="END", timing=Timing(0.5, 1.5, 4.0))
    usage = Usage(200, 150, 7)
    assert answer_nvext((), final, usage, received_unix_ms=5) == {}
    assert answer_nvext({"stop_reason"}, final, usage, received_unix_ms=5) == {"stop_reason": "END"}
    told = answer_nvext({"timing"}, final, usage, received_unix_ms=5, held_s=2.0, queue_depth=3)
    assert told == {
        "timing": {
            "request_received_ms": 5,
            "prefill_wait_time_ms": 2500.0,
            "prefill_time_ms": 1000.0,
            "ttft_ms": 3500.0,
            "total_time_ms": 6000.0,
            "kv_hit_rate": 0.75,
            "router_queue_depth": 3,
        }
    }
