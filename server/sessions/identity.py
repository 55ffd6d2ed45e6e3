"""Who sent a request: the session identity that agent harnesses put into their headers.

The first row of `HARNESSES` that matches wins wholly; values are trimmed, not empty, UTF-8, at most 256 bytes. Without
a session header there is no identity: none is made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Trigger = Literal["user_message", "tool_result", "other"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Attributes:
    session_id: of the agent's session; a sub-agent has its own.
    parent_id: the session that started this one.
    harness: "dynamo", "claude-code", "codex", "deepseek", "opencode" or "mlperf": whose header it was.
    final: the client says that the session ends with this request.
    headers: the harness's own identity headers as they came, for traces: lower-case name to values.
    """

    session_id: str
    parent_id: str | None = None
    harness: str = "dynamo"
    final: bool = False
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
