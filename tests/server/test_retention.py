"""`kv_retention` of a request, and what a conversation keeps without it."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.cache.retention import TokenRange

RANGES = "kv_retention.token_range_retention_configs"
SYSTEM = {"role": "system", "content": "You are an agent. " * 20}
HI = {"role": "user", "content": "hi"}


def asked(running: Any, **retention: Any) -> Any:
    """The cache parameters of the request as the engine got it."""
    running.post(messages=[SYSTEM, HI], kv_retention=retention).raise_for_status()
    return running.script.requests[-1].cache


def test_prompt_parts_have_defaults(running: Any) -> None:
    running.post(messages=[SYSTEM, HI])
    running.post(messages=[SYSTEM, {"role": "user", "content": "something else"}])
    first, second = running.script.requests
    (head,) = first.cache.ranges
    assert (head.start, head.priority) == (0, 90)
    assert first.prompt[: head.end] == second.prompt[: head.end]
    assert 0 < head.end < len(first.prompt)
    assert first.cache.decode_priority == 30


def test_ranges_of_a_request(running: Any) -> None:
    made = asked(
        running,
        token_range_retention_configs=[
            {"token_start": 8, "token_end": None, "priority": 60, "duration_ms": 1500},
            {"token_start": 0, "token_end": 8, "priority": 100},
        ],
        decode_retention_priority=0,
        decode_duration_ms=250,
    )
    assert made.ranges == (TokenRange(0, 8, 100), TokenRange(8, None, 60, 1.5))
    assert (made.decode_priority, made.decode_duration_s) == (0, 0.25)


def test_what_is_left_open_has_the_defaults(running: Any) -> None:
    made = asked(running, decode_retention_priority=70)
    assert made.ranges[0].priority == 90
    assert made.decode_priority == 70
    assert asked(running, token_range_retention_configs=[{"token_start": 2}]).ranges == (TokenRange(2, None, 35),)


@pytest.mark.parametrize(
    ("retention", "param"),
    [
        ([], "kv_retention"),
        ({"token_range_retention_configs": {}}, RANGES),
        ({"token_range_retention_configs": [1]}, f"{RANGES}[0]"),
        ({"token_range_retention_configs": [{}] * 65}, RANGES),
        ({"token_range_retention_configs": [{"token_start": -1}]}, f"{RANGES}[0].token_start"),
        ({"token_range_retention_configs": [{"token_start": 5, "token_end": 5}]}, f"{RANGES}[0].token_end"),
        ({"token_range_retention_configs": [{"priority": 101}]}, f"{RANGES}[0].priority"),
        ({"token_range_retention_configs": [{"duration_ms": 0}]}, f"{RANGES}[0].duration_ms"),
        ({"token_range_retention_configs": [{"start": 0}]}, f"{RANGES}[0].start"),
        ({"token_range_retention_configs": [{"token_end": 9}, {"token_start": 8}]}, f"{RANGES}[1].token_start"),
        ({"token_range_retention_configs": [{}, {"token_start": 8}]}, f"{RANGES}[0].token_end"),
        ({"decode_retention_priority": 35.5}, "kv_retention.decode_retention_priority"),
        ({"decode_duration_ms": -1}, "kv_retention.decode_duration_ms"),
        ({"decode_priority": 5}, "kv_retention.decode_priority"),
        ({"directory": "/tmp/x"}, "kv_retention.directory"),
    ],
)
def test_wrong_ones_name_the_field(running: Any, retention: Any, param: str) -> None:
    response = running.post(kv_retention=retention)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
