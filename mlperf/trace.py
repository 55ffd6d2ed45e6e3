"""The recorded agentic workload of the MLPerf edge benchmark and the request bodies that the harness makes of it.

A trace is a JSONL file of rows ``user -> (assistant -> tool)* -> assistant`` per conversation. Each user or tool row is
one request whose history is *recorded*: the served model's own output never feeds back. Bodies have exactly the keys,
in the order, that the MLCommons ``endpoints`` client sends (see ``client.py`` for the bytes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgellm.errors import ConfigError

Message = dict[str, Any]

SEED = 42
MAX_COMPLETION_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation: the messages the client adds, and the recorded answer to it."""

    messages: tuple[Message, ...]
    reply: Message | None  # role, tool_calls, reasoning_content; None when the recording ends with the request


@dataclass(frozen=True, slots=True)
class Conversation:
    """One recorded conversation. `id` is also the harness's X-Session-ID."""

    id: str
    system: str | None
    tools: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]


def load_trace(path: Path | str) -> list[Conversation]:
    """Read a trace; conversations in the order in which they begin in the file.

    Raises:
        ConfigError: a line is not an object of the trace's form, or turns are out of order; names the line.
    """
    grouped: dict[str, list[dict[str, Any]]] = {}
    source = Path(path)
    try:
        lines = source.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read trace {source}: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _parse_row(line, f"{source}:{number}")
            grouped.setdefault(row["conversation_id"], []).append(row)
    return [_conversation(name, rows, source) for name, rows in grouped.items()]


def turn_requests(
    conversation: Conversation, *, model: str = "edgellm", max_completion_tokens: int = MAX_COMPLETION_TOKENS
) -> list[dict[str, Any]]:
    """The streaming chat bodies of all turns, in order. Bodies share message objects: do not change them."""
    history: list[Message] = []
    if conversation.system is not None:
        history.append({"role": "system", "content": conversation.system})
    bodies = []
    for turn in conversation.turns:
        history.extend(turn.messages)
        body = _body(model, list(history), max_completion_tokens)
        if conversation.tools:
            body["tools"] = list(conversation.tools)
        bodies.append(body)
        if turn.reply is not None:
            history.append(turn.reply)
    return bodies


def bfcl_request(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    model: str = "edgellm",
    max_completion_tokens: int = MAX_COMPLETION_TOKENS,
) -> dict[str, Any]:
    """The body of one function-calling sample of the accuracy phase; it is sent without a session id."""
    body = _body(model, [dict(message) for message in messages], max_completion_tokens)
    body["tools"] = [dict(tool) for tool in tools]
    body["tool_choice"] = "auto"
    return body


def _body(model: str, messages: list[Message], max_completion_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages,
        "temperature": 0.0,
        "max_completion_tokens": max_completion_tokens,
        "stream": True,
        "seed": SEED,
    }


def _parse_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a row must be an object")
    for key, kind in (("conversation_id", str), ("turn", int), ("role", str)):
        if not isinstance(row.get(key), kind):
            raise ConfigError(f"{where}: '{key}' is missing or not {kind.__name__}")
    if row["role"] not in ("user", "assistant", "tool"):
        raise ConfigError(f"{where}: unknown role {row['role']!r}")
    return row


def _conversation(name: str, rows: list[dict[str, Any]], source: Path) -> Conversation:
    rows = sorted(rows, key=lambda row: int(row["turn"]))
    if [row["turn"] for row in rows] != list(range(1, len(rows) + 1)):
        raise ConfigError(f"{source}: turns of conversation {name!r} are not numbered 1, 2, 3, …")
    turns: list[Turn] = []
    for row in rows:
        if row["role"] != "assistant":
            turns.append(Turn(_client_messages(row, name, source), None))
        elif turns and turns[-1].reply is None:
            turns[-1] = Turn(turns[-1].messages, _assistant_message(row))
        else:
            raise ConfigError(f"{source}: conversation {name!r} turn {row['turn']}: an answer without a request")
    first = rows[0]
    return Conversation(name, first.get("system") or None, tuple(first.get("tools") or ()), tuple(turns))


def _client_messages(row: dict[str, Any], name: str, source: Path) -> tuple[Message, ...]:
    if row["role"] == "user":
        return ({"role": "user", "content": row.get("content")},)
    results = row.get("tool_results")
    if not isinstance(results, list) or not results:
        raise ConfigError(f"{source}: conversation {name!r} turn {row['turn']}: a tool row needs 'tool_results'")
    return tuple(
        {"role": "tool", "content": result["content"], "tool_call_id": result["tool_call_id"]} for result in results
    )


def _assistant_message(row: dict[str, Any]) -> Message:
    """Keys in the harness's order; absent values are left out, `content` of a tool-calling turn included."""
    message = {"role": "assistant"}
    for key in ("content", "tool_calls", "reasoning_content"):
        if row.get(key) is not None:
            message[key] = row[key]
    return message
