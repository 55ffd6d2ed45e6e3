"""The events of a request trace: a finished request as `dynamo.request.trace.v1` has it, and admission decisions.

An event holds ids, names, counts, times and hashes of token blocks; never text of a prompt or an answer, arguments of a
call, or a stop string. What Dynamo does not have is under the event's key `edgellm`, which its readers skip.
Source of the field names: Dynamo 1.6.1, whose `dynamo.replay.run_trace_replay` reads these lines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edgellm.cache.block_hashes import local_hashes, sequence_hashes
from edgellm.server.sessions.identity import Identity
from edgellm.server.turns import TurnRecord

SCHEMA: Final = "dynamo.request.trace.v1"
REQUEST_END: Final = "request_end"
ADMISSION: Final = "edgellm_admission"
Event = dict[str, Any]

_BLOCKS_AT_ONCE: Final = 64
_CANCELLED: Final = "cancelled"


def request_event(turn: TurnRecord, block_tokens: int) -> Event | None:
    """The `request_end` event of a turn. It hashes the whole prompt: not for an event loop.

    Args:
        block_tokens: tokens of a hashed block, the bundle's block size; a last block that is not full is hashed too.

    Returns:
        None for a request of several choices: like Dynamo, traces leave those out.
    """
    if turn.choices != 1:
        return None
    event: Event = {"schema": SCHEMA, "event_type": REQUEST_END, "event_time_unix_ms": turn.ended_unix_ms}
    request: Event = {"request_id": turn.request_id}
    if turn.identity is not None:
        event |= {"event_source": "dynamo", "agent_context": _agent_context(turn.identity, turn.trigger)}
        request |= {"x_request_id": turn.x_request_id, "model": turn.model}
    request |= _tokens(turn) | _times(turn)
    request["queue_depth"] = turn.queue_depth
    request["replay"] = {
        "trace_block_size": block_tokens,
        "input_length": len(turn.prompt),
        "input_sequence_hashes": prompt_hashes(turn.prompt, block_tokens),
    }
    if turn.identity is not None:
        request["finish_reason_metadata"] = _finish(turn)
    event["request"] = request
    event["edgellm"] = _ours(turn)
    return event


def admission_event(
    unix_ms: int, session_id: str, decision: str, details: Mapping[str, float | int | str | bool]
) -> Event:
    """A decision of the admission scheduler about a session, e.g. "paused", with the figures it was made on."""
    return {
        "schema": SCHEMA,
        "event_type": ADMISSION,
        "event_time_unix_ms": unix_ms,
        "agent_context": {"session_id": session_id},
        "edgellm": {**details, "decision": decision},
    }


def prompt_hashes(prompt: Sequence[int], block_tokens: int) -> list[int]:
    """Chained hashes of the prompt's blocks, as unsigned 64-bit numbers; the last may cover fewer tokens.

    Other threads get their turn after every piece of `_BLOCKS_AT_ONCE` blocks.
    """
    step = _BLOCKS_AT_ONCE * block_tokens
    chained: list[int] = []
    for start in range(0, len(prompt), step):
        local = local_hashes(prompt[start : start + step], block_tokens, partial=True)
        chained[-1:] = sequence_hashes(chained[-1:] + local)
        time.sleep(0)
    return chained


def _agent_context(identity: Identity, trigger: str) -> Event:
    context: Event = {"session_id": identity.session_id}
    if identity.parent_id is not None:
        context["parent_session_id"] = identity.parent_id
    if identity.final:
        context["session_final"] = True
    if identity.headers:
        context["agent_headers"] = {name: list(values) for name, values in identity.headers.items()}
    context["input_trigger"] = trigger
    return context


def _tokens(turn: TurnRecord) -> Event:
    """Without usage the answer's length is unknown: readers need a number and get 0, and `_ours` tells."""
    usage = turn.usage
    if usage is None:
        return {"input_tokens": len(turn.prompt), "output_tokens": 0}
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "kv_hit_rate": usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0,
    }


def _times(turn: TurnRecord) -> Event:
    """Milliseconds from the request's arrival; the wait holds both admission and the engine's queue."""
    times: Event = {"request_received_ms": turn.received_unix_ms}
    timing, usage = turn.timing, turn.usage
    if timing is None:
        return times | {"total_time_ms": float(turn.ended_unix_ms - turn.received_unix_ms)}
    times |= {"prefill_wait_time_ms": _ms(turn.held_s + timing.queued_s)}
    if usage is not None and usage.completion_tokens:
        times |= {
            "prefill_time_ms": _ms(timing.first_token_s - timing.queued_s),
            "ttft_ms": _ms(turn.held_s + timing.first_token_s),
        }
        if usage.completion_tokens > 1:
            times["avg_itl_ms"] = _ms((timing.total_s - timing.first_token_s) / (usage.completion_tokens - 1))
    return times | {"total_time_ms": _ms(turn.held_s + timing.total_s)}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def _finish(turn: TurnRecord) -> Event:
    backend = turn.finish_reason
    if turn.outcome == _CANCELLED or backend == "abort":
        reason: str | None = _CANCELLED
    elif backend == "stop" and turn.tool_calls:
        reason = "tool_calls"
    else:
        reason = backend or turn.outcome
    choice: Event = {"choice_index": 0, "finish_reason": reason}
    if backend is not None:
        choice["backend_finish_reason"] = backend
    if isinstance(turn.stop_reason, int):
        choice["stop_reason"] = turn.stop_reason
    finish: Event = {name: value for name, value in choice.items() if name != "choice_index"}
    if turn.tool_calls:
        finish["tool_calls"] = [
            {"choice_index": call.choice, "tool_call_index": call.index, "id": call.id, "name": call.name}
            for call in turn.tool_calls
        ]
    return finish | {"choices": [choice]}


def _ours(turn: TurnRecord) -> Event:
    ours: Event = {"surface": turn.surface, "outcome": turn.outcome}
    if turn.identity is not None:
        ours["harness"] = turn.identity.harness
    ours |= {"held_ms": _ms(turn.held_s), "paused": turn.paused, "stop_string": isinstance(turn.stop_reason, str)}
    usage = turn.usage
    if usage is None:
        return ours | {"output_unknown": True}
    if usage.accepted_length is not None:
        ours |= {
            "accepted_length": usage.accepted_length,
            "verify_steps": usage.verify_steps,
            "drafted_tokens": usage.drafted_tokens,
            "accepted_tokens": usage.accepted_tokens,
        }
    if usage.predicted_tokens:
        ours |= {
            "predicted_tokens": usage.predicted_tokens,
            "accepted_predicted_tokens": usage.accepted_predicted_tokens,
        }
    return ours
