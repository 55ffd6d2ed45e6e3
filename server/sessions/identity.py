"""Who sent a request: the session identity that agent harnesses put into their headers.

What must stay true: the first row of `HARNESSES` whose session header is usable wins wholly, its parent header too;
without one there is no identity, none is made up; a header is never an error. Usable is a value that after trimming is
not empty, UTF-8 without control characters, and at most 256 bytes; any other counts as an absent header, and of a
header that came more than once the first usable value counts.

Source of the rows and their order: Dynamo 1.6.1 (the fourth: its sources after that). `x-opencode-session-id` is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Trigger = Literal["user_message", "tool_result", "other"]

MAX_ID_BYTES: Final = 256
_FINAL: Final = "x-dynamo-session-final"
_TRUE: Final = frozenset({"true", "1", "yes", "on"})


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


@dataclass(frozen=True, slots=True)
class Harness:
    """A row: `session` names the session, or with `child` the whole family, of which each member has its own id.

    Attributes:
        child: a sub-agent's id, which counts only beside `session`. Its parent is `parent`, else the session, and
            `parent` says nothing of a request that is not a sub-agent's.
    """

    name: str
    session: str
    parent: str
    child: str | None = None


HARNESSES: Final = (
    Harness("dynamo", "x-dynamo-session-id", "x-dynamo-parent-session-id"),
    Harness("claude-code", "x-claude-code-session-id", "x-claude-code-parent-agent-id", child="x-claude-code-agent-id"),
    Harness("codex", "thread-id", "x-codex-parent-thread-id"),
    Harness("deepseek", "x-deepseek-harness-session-id", "x-deepseek-harness-parent-session-id"),
    Harness("opencode", "x-session-id", "x-parent-session-id"),
    Harness("opencode", "x-opencode-session-id", "x-parent-session-id"),
)
_AFFINITY: Final = "x-session-affinity"
_NATIVE: Final = frozenset(
    {
        *("session-id", "x-codex-window-id", _AFFINITY),
        *(name for row in HARNESSES[1:] for name in (row.session, row.parent, row.child) if name is not None),
    }
)
_READ: Final = {
    name.encode(): name for name in (*_NATIVE, HARNESSES[0].session, HARNESSES[0].parent, _FINAL, "user-agent")
}


def identify(headers: Iterable[tuple[bytes, bytes]]) -> Identity | None:
    """The identity that a request's headers give; `headers` as in ASGI, names in lower case."""
    found: dict[str, list[str]] = {}
    for raw_name, raw in headers:
        name = _READ.get(raw_name)
        if name is not None and (value := usable(raw)) is not None:
            found.setdefault(name, []).append(value)
    if not found:
        return None
    given = {name: values[0] for name, values in found.items()}
    row = next((row for row in HARNESSES if row.session in given), None)
    if row is None:
        return None
    session, parent = given[row.session], given.get(row.parent)
    if row.child is not None:
        child = given.get(row.child)
        session, parent = (session, None) if child is None else (child, parent or session)
    return Identity(
        session,
        None if parent == session else parent,
        _label(row, given),
        final=given.get(_FINAL, "").lower() in _TRUE,
        headers={name: tuple(values) for name, values in found.items() if name in _NATIVE},
    )


def usable(raw: bytes) -> str | None:
    """A header's value as an id, or None where it cannot be one."""
    value = raw.strip(b" \t")
    if not value or len(value) > MAX_ID_BYTES:
        return None
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        return None
    return text if text and not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text) else None


def _label(row: Harness, given: Mapping[str, str]) -> str:
    """MLPerf's load generator names sessions in OpenCode's header, but sends none of what else OpenCode does."""
    if row.session != "x-session-id":
        return row.name
    opencode = _AFFINITY in given or row.parent in given or "opencode" in given.get("user-agent", "").lower()
    return row.name if opencode else "mlperf"
