"""`nvext`, NVIDIA's extension of OpenAI requests: what becomes of each key, and what answers carry for it.

What must stay true: every key that Dynamo 1.6.1 accepts is in exactly one class; any other is an error, as it is there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from edgellm.runtime.types import Output, Usage
from edgellm.server.parameters import Parameters

_ONE_WORKER: Final = "there is one worker"

NVEXT: Final = Parameters(
    honoured={
        "agent_hints": "how soon the request is served, and what answer is expected",
        "cache_salt": "the same as cache_salt",
        "max_thinking_tokens": "the same as max_thinking_tokens",
        "extra_fields": "an array of 'timing' and 'stop_reason': what the answer's nvext has",
    },
    refused={
        "agent_context": "gone; name the session in the header x-dynamo-session-id",
        "session_control": "gone; see the headers x-dynamo-session-id and x-dynamo-session-final",
        "cache_control": "gone; see kv_retention",
        "annotations": "not supported; see /v1/chat/completions/render for prompt and tokens",
        "greed_sampling": "use temperature 0",
        "use_raw_prompt": "use /v1/completions",
        "token_data": "use /v1/completions, whose prompt may be token ids",
        "metadata_upload": "nothing is uploaded",
        "routing_constraints": f"{_ONE_WORKER}, which has no taints",
    },
    ignored={
        **dict.fromkeys(
            ("backend_instance_id", "prefill_worker_id", "decode_worker_id", "dp_rank", "prefill_dp_rank"), _ONE_WORKER
        ),
        "router": f"targets for choosing a worker; {_ONE_WORKER}",
        "request_timestamp_ms": "the server's own clock is used",
    },
)

AGENT_HINTS: Final = Parameters(
    honoured={
        "priority": "among requests that wait: higher is sooner; header x-dynamo-request-priority goes before",
        "strict_priority": "goes before any priority; header x-dynamo-request-strict-priority goes before",
        "osl": "tokens that the answer is expected to have: admission keeps room for them",
    },
    refused={"speculative_prefill": "a prompt is prefilled when it comes"},
    ignored={"latency_sensitivity": "retired; see priority"},
)

EXTRA_FIELDS: Final = Parameters(
    honoured={"timing": "times of the request, in milliseconds", "stop_reason": "the stop string or token id"},
    refused={
        "worker_id": _ONE_WORKER,
        "engine_data": "not supported; see timing",
        "token_ids": "not supported; see /tokenize",
        "routed_experts": "not supported",
    },
    ignored={},
)


def answer_nvext(
    wanted: Collection[str],
    final: Output,
    usage: Usage | None,
    *,
    received_unix_ms: int,
    held_s: float = 0.0,
    queue_depth: int = 0,
) -> dict[str, Any]:
    """`nvext` of an answer: of a whole body, or of a stream's last chunk.

    Args:
        wanted: the request's `extra_fields`.
        final: the last output of its first choice.
        held_s, queue_depth: see `turns.TurnRecord`.
    """
    nvext: dict[str, Any] = {}
    if "stop_reason" in wanted:
        nvext["stop_reason"] = final.stop_reason
    if "timing" in wanted and (timing := final.timing) is not None:
        nvext["timing"] = {
            "request_received_ms": received_unix_ms,
            "prefill_wait_time_ms": _ms(held_s + timing.queued_s),
            "prefill_time_ms": _ms(timing.first_token_s - timing.queued_s),
            "ttft_ms": _ms(held_s + timing.first_token_s),
            "total_time_ms": _ms(held_s + timing.total_s),
            "kv_hit_rate": usage.cached_tokens / usage.prompt_tokens if usage and usage.prompt_tokens else 0.0,
            "router_queue_depth": queue_depth,
        }
    return nvext


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
