"""Messages in Anthropic's form, brought to the chat form that templates take.

Rules:
* Text blocks of a system prompt, of a user and of a tool's result are joined by a line break; those of the assistant as
  they are, since a server cut them out of one text.
* Several thinking blocks of one message are joined by a line, as templates have one reasoning text a message. A
  signature is opaque and has no effect.
* In a user's message tool results come first, each as a message of its own, then the text.
* A failed result begins with ``Error: ``. What a result holds beside text is named where it stood.
* System messages stay where they are.
* What Anthropic's own tools left in an answer, and redacted thinking, is dropped: it tells this model nothing. Every
  other block that is not text is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type

Turn = dict[str, Any]

ROLES: Final = ("user", "assistant", "system", "developer")
_DROPPED: Final = frozenset({"redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback"})


def read_turns(fields: Fields, *, limit: int) -> list[Turn]:
    """The `messages`, at most `limit`, as chat messages.

    Raises:
        RequestError: naming the field, e.g. ``messages[3].content[0].name``.
    """
    path = fields.at("messages")
    messages = fields.array("messages")
    if messages is None:
        raise bad_value(path, "is required")
    if not 1 <= len(messages) <= limit:
        raise bad_value(path, f"must have 1 to {limit} entries, got {len(messages)}")
    return [turn for message in fields.objects("messages") for turn in _turns(message)]


def read_system(fields: Fields) -> list[Turn]:
    """The `system` prompt as a chat message; none when it is empty.

    Raises:
        RequestError: naming the block, e.g. ``system[1].type``.
    """
    text = _joined(fields, "system")
    return [{"role": "system", "content": text}] if text else []


def blocks(fields: Fields, name: str) -> Iterator[Fields]:
    """The content blocks of a field; a string is one of text."""
    value = fields.data.get(name)
    if isinstance(value, str):
        yield Fields({"type": "text", "text": value}, fields.at(name))
    elif value is None or isinstance(value, list):
        yield from fields.objects(name)
    else:
        raise wrong_type(fields.at(name), "a string or an array of blocks", value)


def _turns(message: Fields) -> Iterator[Turn]:
    role = message.string("role")
    if role not in ROLES:
        raise bad_value(message.at("role"), f"must be one of {', '.join(ROLES)}, got {role!r:.60}")
    if role == "assistant":
        yield _assistant(message)
        return
    if message.data.get("content") is None:
        raise bad_value(message.at("content"), "is required")
    if role == "user":
        yield from _user(message)
    else:
        yield {"role": role, "content": _joined(message, "content")}


def _user(message: Fields) -> Iterator[Turn]:
    texts, results = [], 0
    for block in blocks(message, "content"):
        if _kind(block) == "tool_result":
            results += 1
            yield _result(block)
        else:
            texts.append(_text(block))
    if any(texts) or not results:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(message: Fields) -> Turn:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks(message, "content"):
        kind = _kind(block)
        if kind == "thinking":
            block.string("signature")
            thoughts.append(block.string("thinking") or "")
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind not in _DROPPED and not kind.endswith("_tool_result"):
            texts.append(_text(block))
    turn: Turn = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        turn["reasoning_content"] = "\n".join(thought.removeprefix("\n") for thought in thoughts if thought)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: Fields) -> dict[str, Any]:
    name = block.string("name")
    if not name:
        raise bad_value(block.at("name"), "is required")
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": block.object("input") or {}},
    }
    if (call_id := block.string("id")) is not None:
        call["id"] = call_id
    return call


def _result(block: Fields) -> Turn:
    texts = []
    for part in blocks(block, "content"):
        kind = _kind(part)
        texts.append(_text(part) if kind == "text" else f"[{kind[:60]} left out: the model reads text]")
    text = "\n".join(texts)
    turn: Turn = {"role": "tool", "content": f"Error: {text}" if block.boolean("is_error") else text}
    if (call_id := block.string("tool_use_id")) is not None:
        turn["tool_call_id"] = call_id
    return turn


def _joined(fields: Fields, name: str) -> str:
    return "\n".join(_text(block) for block in blocks(fields, name))


def _kind(block: Fields) -> str:
    kind = block.string("type")
    if not kind:
        raise bad_value(block.at("type"), "is required")
    return kind


def _text(block: Fields) -> str:
    """Of a text block.

    Raises:
        RequestError: it is another one.
    """
    kind = _kind(block)
    if kind != "text":
        raise unsupported(block.path, f"{kind[:60]!r} blocks are not supported here; the model reads text")
    text = block.string("text")
    if text is None:
        raise bad_value(block.at("text"), "is required")
    return text
