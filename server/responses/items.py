"""Input items of the Responses API as the messages of a chat.

Rules that clients may rely on:
* A turn of the assistant is whatever stands between two other items: reasoning, words and calls in it become one
  message, as the model wrote them in one answer. Only a message right behind another message begins a new one.
* Reasoning is read from `content`, else from `summary`; `encrypted_content` is ignored, and so is an item without text.
* Messages and results are texts or arrays of text parts. Images and files in messages are refused by name; in results,
  which no user chose, they are named where they stood.
* Kinds of `parameters.ITEM_IGNORED` are ignored; so is a compaction without readable text. Others are refused by name.

What must stay true: what `output` made is read back to the message that the chat surface would get for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from edgellm.server.fields import Fields, bad_value, object_at, unsupported, wrong_type
from edgellm.server.names import new_id
from edgellm.server.responses.parameters import ITEM_IGNORED
from edgellm.server.responses.tools import INPUT, known_as

Item = dict[str, Any]
_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
_LEFT_OUT: Final = "[{} left out: the model reads text]"
_PREFIXES: Final = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "function_call_output": "fco_",
    "custom_tool_call_output": "ctco_",
}


def read_items(fields: Fields, find: Callable[[str], Item | None], *, limit: int) -> list[Item]:
    """The input as items that have a type and an id; references are replaced by what they refer to.

    Args:
        find: an item of an earlier response by its id.

    Raises:
        RequestError: the input is missing, empty, too long or no item, or a reference leads nowhere.
    """
    given = fields.data.get("input")
    path = fields.at("input")
    if given is None:
        raise bad_value(path, "is required")
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not isinstance(given, list):
        raise wrong_type(path, "a string or an array of items", given)
    if not 0 < len(given) <= limit:
        raise bad_value(path, f"must have 1 to {limit} items, got {len(given)}")
    return [_item(entry, f"{path}[{index}]", find) for index, entry in enumerate(given)]


def _item(entry: Any, path: str, find: Callable[[str], Item | None]) -> Item:
    fields = object_at(entry, path)
    kind = fields.string("type")
    item_id = fields.string("id")
    if kind == "item_reference" or (kind is None and "role" not in entry and item_id):
        found = find(item_id or "")
        if found is None:
            raise bad_value(fields.at("id"), f"{(item_id or '')[:100]!r} is no item of a stored response")
        return found
    if kind is None and "role" in entry:
        kind = "message"
    if not kind:
        raise bad_value(fields.at("type"), "is required")
    return {**entry, "type": kind, "id": item_id or new_id(_PREFIXES.get(kind, "item_"))}


def to_messages(items: Iterable[tuple[Item, str]], *, instructions: str | None = None) -> list[dict[str, Any]]:
    """Messages in the chat form.

    Args:
        items: of `read_items` and of stored responses, each with its path for errors.

    Raises:
        RequestError: naming the field, e.g. ``input[3].content[0].type``.
    """
    transcript = _Transcript()
    if instructions:
        transcript.messages.append({"role": "system", "content": instructions})
    for item, path in items:
        transcript.add(Fields(item, path))
    return transcript.messages


class _Transcript:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._words_last = False  # the last item was a message of the assistant

    def add(self, item: Fields) -> None:
        kind = item.string("type")
        words = False
        match kind:
            case "message":
                words = self._message(item)
            case "reasoning":
                self._reasoning(item)
            case "function_call":
                self._call(item, item.string("arguments") or "{}")
            case "custom_tool_call":
                text = item.string("input")
                self._call(item, json.dumps({INPUT: text or ""}, ensure_ascii=False))
            case "local_shell_call":
                action = json.dumps(item.object("action") or {}, ensure_ascii=False)
                self._call(Fields({**item.data, "name": "local_shell"}, item.path), action)
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._result(item)
            case "compaction" | "compaction_summary" | "context_compaction":
                if text := item.string("text") or item.string("summary"):
                    self.messages.append({"role": "user", "content": text})
            case _ if kind not in ITEM_IGNORED:
                raise unsupported(item.at("type"), f"items of the type {kind!r:.60} are not supported")
        self._words_last = words

    def _message(self, item: Fields) -> bool:
        role = item.string("role")
        if role not in _ROLES:
            raise bad_value(item.at("role"), f"must be one of {', '.join(_ROLES)}, got {role!r:.60}")
        text = _text(item, "content")
        if role != "assistant":
            if text is None:
                raise bad_value(item.at("content"), "is required")
            self.messages.append({"role": role, "content": text})
            return False
        message = self._assistant(fresh=self._words_last)
        before = message["content"]
        gap = "\n" if before and text and not (before[-1].isspace() or text[0].isspace()) else ""
        message["content"] = f"{before}{gap}{text or ''}"
        return True

    def _reasoning(self, item: Fields) -> None:
        text = _parts(item, "content", "reasoning_text") or _parts(item, "summary", "summary_text")
        if text:
            message = self._assistant()
            before = message.get("reasoning_content")
            message["reasoning_content"] = text if before is None else f"{before}\n{text}"

    def _call(self, item: Fields, arguments: str) -> None:
        name = item.string("name")
        if not name:
            raise bad_value(item.at("name"), "is required")
        function = {"name": known_as(name, item.string("namespace")), "arguments": arguments}
        call: dict[str, Any] = {"type": "function", "function": function}
        if (call_id := item.string("call_id")) is not None:
            call["id"] = call_id
        self._assistant().setdefault("tool_calls", []).append(call)

    def _result(self, item: Fields) -> None:
        message: dict[str, Any] = {"role": "tool", "content": _text(item, "output", other=_LEFT_OUT) or ""}
        if (call_id := item.string("call_id")) is not None:
            message["tool_call_id"] = call_id
        self.messages.append(message)

    def _assistant(self, *, fresh: bool = False) -> dict[str, Any]:
        """The message of the assistant's turn that is being read."""
        if fresh or not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _text(item: Fields, name: str, *, other: str | None = None) -> str | None:
    """Text of a string or of text parts, joined as they are.

    Args:
        other: stands for a part of another kind; without it such a part is refused.
    """
    value = item.data.get(name)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(item.at(name), "a string or an array of text parts", value)
    texts = []
    for part in item.objects(name):
        kind = part.string("type")
        key = "refusal" if kind == "refusal" else "text"
        if kind != "refusal" and kind not in _TEXTS:
            if other is not None and kind:
                texts.append(other.format(kind[:60]))
                continue
            raise unsupported(part.at("type"), f"only text is supported, got {kind!r:.60}")
        text = part.string(key)
        if text is None:
            raise bad_value(part.at(key), "is required")
        texts.append(text)
    return "".join(texts)


def _parts(item: Fields, name: str, kind: str) -> str:
    """Text of the parts of one kind, each on its own line."""
    parts = item.objects(name)
    return "\n".join(text for part in parts if part.string("type") == kind and (text := part.string("text")))
