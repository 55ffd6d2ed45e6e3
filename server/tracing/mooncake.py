"""A trace as a Mooncake workload: each request's arrival, lengths and block hashes, as Dynamo's replay reads it.

Hashes become ids counted from 0 in the order in which they first appear. Source of the fields: `run_trace_replay` of
Dynamo 1.6.1, format "mooncake"; it must be told the block size that the trace was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgellm.server.tracing.reading import TracedRequest, TraceError
from edgellm.server.tracing.sessions import Session

Row = dict[str, Any]


class BlockIds:
    """Dense ids of block hashes.

    Raises:
        TraceError: (of `of`) a request has no hashes, or hashes of another block size than those before it.
    """

    def __init__(self) -> None:
        self.block_tokens = 0
        self._ids: dict[int, int] = {}

    def of(self, turn: TracedRequest) -> list[int]:
        if not turn.hashes:
            raise TraceError(f"request {turn.request_id}: no block hashes")
        if self.block_tokens not in (0, turn.block_tokens):
            raise TraceError(
                f"request {turn.request_id}: blocks of {turn.block_tokens} tokens after blocks of {self.block_tokens}"
            )
        self.block_tokens = turn.block_tokens
        return [self._ids.setdefault(value, len(self._ids)) for value in turn.hashes]


def arrivals(sessions: Sequence[Session]) -> list[tuple[TracedRequest, Session]]:
    """All turns by arrival; those of one session keep their order."""
    pairs = [(turn, session) for session in sessions for turn in session.turns]
    return sorted(pairs, key=lambda pair: pair[0].received_ms)


def mooncake_rows(sessions: Sequence[Session]) -> tuple[list[Row], int]:
    """Rows by arrival, and the block size (0 without rows).

    `timestamp` is in ms from the first arrival. Turns of a session have `session_id` and, from the second on, `delay`:
    ms from the end of all its earlier turns to this arrival, 0 where they overlap.

    Raises:
        TraceError: a request has no block hashes, or block sizes differ.
    """
    ids = BlockIds()
    rows: list[Row] = []
    ordered = arrivals(sessions)
    busy_until: dict[str, float] = {}
    for turn, session in ordered:
        row: Row = {
            "timestamp": turn.received_ms - ordered[0][0].received_ms,
            "input_length": turn.input_tokens,
            "output_length": turn.output_tokens,
            "hash_ids": ids.of(turn),
        }
        if session.id is not None:
            row["session_id"] = session.id
            before = busy_until.get(session.id)
            if before is not None:
                row["delay"] = max(0.0, round(turn.received_ms - before, 3))
            busy_until[session.id] = turn.end_ms if before is None else max(before, turn.end_ms)
        rows.append(row)
    return rows, ids.block_tokens
