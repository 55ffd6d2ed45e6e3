"""Chat messages as clients send them, brought to the form that templates expect.

Rules: `developer` is `system`. Missing or null content is empty. Text parts are joined; other parts are refused by
name. `reasoning` is an alias of `reasoning_content`. A call's arguments may be a JSON string; text that is not a JSON
object is kept whole under the name "arguments", so that a cut call does not end a session. A system message that is
not at the front is rendered in place as a user turn between <system> tags: folding it to the front would change every
earlier token. Several leading system messages are joined by a blank line.

Control-token literals in what others wrote (user, system, tool) are marked with MARK inside, and the renderer encodes
them as ordinary text. Assistant text is left alone: it is the model's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgellm.errors import RequestError

MARK = "\ufdd0"  # a noncharacter: not valid in interchanged text, so it cannot be meant
_ROLES = {"system", "user", "assistant", "tool"}


def normalize(messages: Sequence[Mapping[str, Any]], literal: re.Pattern[str]) -> list[dict[str, Any]]:
    """Messages for a template; `literal` matches control tokens.

    Raises:
        RequestError: names the message and field.
    """
    if not messages:
        raise RequestError("messages is empty", param="messages")
    result: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = message.get("role")
        role = "system" if role == "developer" else role
        if role not in _ROLES:
            raise RequestError(
                f"{where}.role: {role!r} is not one of developer, {', '.join(sorted(_ROLES))}", param=f"{where}.role"
            )
        text = _content(message.get("content"), f"{where}.content")
        if role != "assistant":
            text = literal.sub(lambda match: match[0][0] + MARK + match[0][1:], text.replace(MARK, ""))
        made: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant":
            reasoning = message.get("reasoning_content") or message.get("reasoning")
            if reasoning:
                made["reasoning_content"] = _content(reasoning, f"{where}.reasoning_content")
            if message.get("tool_calls"):
                made["tool_calls"] = [
                    _call(call, f"{where}.tool_calls[{j}]") for j, call in enumerate(message["tool_calls"])
                ]
        elif role == "tool":
            made |= {key: message[key] for key in ("tool_call_id", "name") if message.get(key)}
        elif role == "system" and result:
            if all(earlier["role"] == "system" for earlier in result):
                result[-1]["content"] += "\n\n" + text
                continue
            made = {"role": "user", "content": f"<system>\n{text}\n</system>"}
        result.append(made)
    return result


def _content(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise RequestError(f"{where}: a string or an array of parts is expected", param=where)
    texts = []
    for j, part in enumerate(value):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestError(f"{where}[{j}]: {kind!r} parts are not supported, only text", param=f"{where}[{j}]")
    return "".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function.name is missing", param=f"{where}.function.name")
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else {"arguments": arguments}
    if not isinstance(arguments, Mapping):
        raise RequestError(
            f"{where}.function.arguments: an object or its JSON is expected", param=f"{where}.function.arguments"
        )
    made = {"type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}
    return {**made, "id": call["id"]} if call.get("id") else made
