"""What is known of one finished request, for whoever keeps books: traces, sessions, metrics. No text of anyone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgellm.runtime.types import Timing, Usage
from edgellm.server.sessions.identity import Identity, Trigger


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool call of an answer: no arguments."""

    choice: int
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Attributes:
    request_id: of the answer (chatcmpl-…, msg_…, resp_…).
    x_request_id: of the HTTP request.
    surface: "chat", "completion", "messages" or "responses".
    trigger: what the last message was.
    prompt: its token ids.
    received_unix_ms: when the request arrived; `ended_unix_ms`: when its answer was over.
    outcome: "ok", "cancelled" (the client left) or "error".
    finish_reason, stop_reason: the engine's, of the first choice; None when it never ended.
    held_s: seconds that admission held it back; `paused`: its session had been paused.
    queue_depth: requests that waited for a slot when it was submitted.
    choices: generations that answered it.
    salt: the tenant's; it is not to be written anywhere.
    """

    request_id: str
    x_request_id: str
    surface: str
    model: str
    identity: Identity | None
    trigger: Trigger
    prompt: tuple[int, ...]
    received_unix_ms: int
    ended_unix_ms: int
    outcome: str
    finish_reason: str | None
    stop_reason: str | int | None
    usage: Usage | None
    timing: Timing | None
    tool_calls: tuple[CalledTool, ...]
    held_s: float = 0.0
    paused: bool = False
    queue_depth: int = 0
    choices: int = 1
    salt: str = ""


TurnObserver = Callable[[TurnRecord], None]


def unix_ms() -> int:
    return time.time_ns() // 1_000_000
