"""Chat messages and tools: shapes are checked here, the chat template gives them meaning.

Accepted beyond the letter of the OpenAI API, because agents send it: assistant messages without `content`, with
`reasoning_content` (or its alias `reasoning`) as text or as an array of segments; `content` as a list of text parts;
tool messages whose id matches no call; empty assistant turns; tool schemas whose `required` is null. A refusal of the
assistant's is its content. Message keys that no template reads (`id`, `audio`, `cache_control`, …) are dropped. Refused
by name: images, audio and files (the model reads text), tools other than functions, the retired `function` role.
"""

from __future__ import annotations

import re
from typing import Any

from edgellm.server.fields import Fields, bad_value, object_at, unsupported, wrong_type
from edgellm.server.parameters import MESSAGE

ROLES = ("system", "developer", "user", "assistant", "tool")
_TOOL_NAME = re.compile(r"[^\s<>]{1,256}")  # what `<function=NAME>` can carry


def read_messages(fields: Fields, *, limit: int) -> list[dict[str, Any]]:
    """The messages with checked types, at most `limit`, ready for the chat renderer.

    Raises:
        RequestError: naming the field, e.g. ``messages[3].tool_calls[0].function.name``.
    """
    messages = fields.array("messages")
    if messages is None:
        raise bad_value(fields.at("messages"), "is required")
    if not messages:
        raise bad_value(fields.at("messages"), "must have at least one message")
    if len(messages) > limit:
        raise bad_value(fields.at("messages"), f"must have at most {limit} entries, got {len(messages)}")
    return [_message(entry, f"{fields.at('messages')}[{index}]") for index, entry in enumerate(messages)]


def _message(entry: Any, path: str) -> dict[str, Any]:
    fields = object_at(entry, path)
    role = fields.string("role")
    if role is None:
        raise bad_value(fields.at("role"), "is required")
    if role not in ROLES:
        raise bad_value(fields.at("role"), f"must be one of {', '.join(ROLES)}, got {role[:40]!r}")
    message: dict[str, Any] = {"role": role}
    content = read_text(fields, "content")
    if content is None and role == "assistant":
        content = fields.string("refusal")
    if content is None and role not in ("assistant", "tool"):
        raise bad_value(fields.at("content"), "is required")
    message["content"] = content or ""
    if (name := fields.string("name")) is not None:
        message["name"] = name
    if role == "tool" and (call_id := fields.string("tool_call_id")) is not None:
        message["tool_call_id"] = call_id
    if role == "assistant":
        _assistant(fields, message)
    return message


def _assistant(fields: Fields, message: dict[str, Any]) -> None:
    reasoning, alias = _reasoning(fields, "reasoning_content"), _reasoning(fields, "reasoning")
    if (reasoning := reasoning or alias) is not None:
        message["reasoning_content"] = reasoning
    fields.refuse(MESSAGE.refused)
    calls = fields.array("tool_calls")
    if calls:
        message["tool_calls"] = [
            _tool_call(call, f"{fields.at('tool_calls')}[{index}]") for index, call in enumerate(calls)
        ]


def _reasoning(fields: Fields, name: str) -> str | None:
    """A string, or an array of the segments in front of each call: templates have one block a message, so one text."""
    value = fields.data.get(name)
    if not isinstance(value, list):
        return fields.string(name)
    for index, segment in enumerate(value):
        if not isinstance(segment, str):
            raise wrong_type(f"{fields.at(name)}[{index}]", "a string", segment)
    return "\n".join(segment for segment in value if segment)


def _tool_call(entry: Any, path: str) -> dict[str, Any]:
    fields = object_at(entry, path)
    kind = fields.string("type")
    if kind not in (None, "function"):
        raise unsupported(fields.at("type"), f"only 'function' calls are supported, got {kind!r}")
    function = fields.fields("function")
    if function is None:
        raise bad_value(fields.at("function"), "is required")
    name = function.string("name")
    if not name:
        raise bad_value(function.at("name"), "is required")
    arguments = function.data.get("arguments")
    if not isinstance(arguments, (str, dict, type(None))):
        raise wrong_type(function.at("arguments"), "a string holding a JSON object", arguments)
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
    if (call_id := fields.string("id")) is not None:
        call["id"] = call_id
    return call


def read_text(fields: Fields, name: str) -> str | None:
    """Text of a string or of text parts; they are joined as they are, the way the checkpoint's template joins them."""
    value = fields.data.get(name)
    if value is None or isinstance(value, str):
        return value
    path = fields.at(name)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of text parts", value)
    texts: list[str] = []
    for part in fields.objects(name):
        kind = part.string("type")
        key = "refusal" if kind == "refusal" else "text"
        if kind not in ("text", "refusal"):
            raise unsupported(part.at("type"), f"only text parts are supported, got {kind!r}")
        text = part.string(key)
        if text is None:
            raise bad_value(part.at(key), "is required")
        texts.append(text)
    return "".join(texts)


def read_tools(fields: Fields, *, limit: int) -> list[dict[str, Any]]:
    """At most `limit` tool declarations as the client sent them (the template prints them).

    They are checked for what the parser needs.
    """
    tools = fields.array("tools") or []
    if len(tools) > limit:
        raise bad_value(fields.at("tools"), f"must have at most {limit} entries, got {len(tools)}")
    for tool in fields.objects("tools"):
        kind = tool.string("type")
        if kind != "function":
            raise unsupported(tool.at("type"), f"only 'function' tools are supported, got {kind!r}")
        function = tool.fields("function")
        if function is None:
            raise bad_value(tool.at("function"), "is required")
        read_tool_name(function)
        function.string("description")
        function.boolean("strict")
        function.object("parameters")
    return tools


def read_tool_name(function: Fields) -> str:
    """The name that a tool is declared with: what every form of calls can carry."""
    name = function.string("name")
    if name is None or not _TOOL_NAME.fullmatch(name):
        raise bad_value(function.at("name"), "must be 1 to 256 characters without spaces or angle brackets")
    return name
