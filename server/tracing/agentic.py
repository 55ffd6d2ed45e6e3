"""A trace as an agentic workload: requests that start when others have started or ended, not at recorded times.

Who waited for whom is inferred: a turn follows the turn before it in its session; a sub-agent's first turn follows the
last turn of its parent before it; a turn also follows the sub-agents that ended since the turn before it began.
Source of the format: "dynamo.agentic_mooncake" version 2 of Dynamo 1.6.1, which reads it as "agentic_mooncake".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgellm.server.tracing.mooncake import BlockIds, Row, arrivals
from edgellm.server.tracing.reading import TracedRequest, TraceError
from edgellm.server.tracing.sessions import Session

Relation = Literal["sequence", "spawn", "join"]


@dataclass(frozen=True, slots=True)
class _Node:
    """A turn and its place by arrival: a turn depends only on earlier places, so nothing can wait in a circle."""

    turn: TracedRequest
    place: int


def agentic_rows(sessions: Sequence[Session]) -> tuple[list[Row], int]:
    """A header and a row for each request, by arrival; and the block size (0 without requests).

    A session tree is a play; a request without a session is a play of its own. Each dependency's `delay_ms` is the time
    between the last thing that the request waited for and its arrival.

    Raises:
        TraceError: a request has no block hashes, block sizes differ, or two requests share an id.
    """
    ids = BlockIds()
    ordered = arrivals(sessions)
    nodes: dict[int, list[_Node]] = {}
    rows: list[Row] = []
    seen: set[str] = set()
    for place, (turn, session) in enumerate(ordered):
        if turn.request_id in seen or not turn.request_id:
            raise TraceError(f"request_id {turn.request_id!r}: not unique")
        seen.add(turn.request_id)
        nodes.setdefault(id(session), []).append(_Node(turn, place))
    for turn, session in ordered:
        needs = [] if session.id is None else _needs(turn, session, nodes)
        rows.append(
            {
                "request_id": turn.request_id,
                "play_id": session.root.id or turn.request_id,
                "session_id": session.id or turn.request_id,
                "model": turn.model or "unknown",
                "input_length": turn.input_tokens,
                "output_length": turn.output_tokens,
                "hash_ids": ids.of(turn),
                "not_before_ms": 0 if needs else turn.received_ms - ordered[0][0].received_ms,
                "dependencies": needs,
            }
        )
    digest = hashlib.sha256("\n".join(json.dumps(row) for row in rows).encode()).hexdigest()
    header: Row = {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": ids.block_tokens,
        "hash_id_scope": "local",
        "source": {"format": "edgellm.request_trace", "digest": digest},
    }
    return [header, *rows], ids.block_tokens


def _needs(turn: TracedRequest, session: Session, nodes: dict[int, list[_Node]]) -> list[Row]:
    own = nodes[id(session)]
    at = next(index for index, node in enumerate(own) if node.turn is turn)
    place = own[at].place
    waited: list[tuple[TracedRequest, Relation]] = []
    if at == 0:
        above = [] if session.parent is None else [n for n in nodes[id(session.parent)] if n.place < place]
        waited += [(node.turn, "spawn") for node in above[-1:]]
    else:
        before = own[at - 1]
        waited.append((before.turn, "sequence"))
        for child in session.children:
            last = nodes[id(child)][-1]
            if before.place < last.place < place and last.turn.end_ms <= turn.received_ms:
                waited.append((last.turn, "join"))
    return _dependencies(turn, waited)


def _dependencies(turn: TracedRequest, waited: list[tuple[TracedRequest, Relation]]) -> list[Row]:
    """On the end of what had ended when the turn arrived, on the start of what still ran."""
    ends = [other.end_ms for other, _ in waited if other.end_ms <= turn.received_ms]
    gap = turn.received_ms - max(ends, default=0.0)
    return [
        {
            "request_id": other.request_id,
            "trigger": "completion" if other.end_ms <= turn.received_ms else "dispatch",
            "delay_ms": round(gap if other.end_ms <= turn.received_ms else turn.received_ms - other.received_ms, 3),
            "relation": relation,
        }
        for other, relation in waited
    ]
