"""Chat messages as clients send them, brought to the form that templates expect.

Rules:
* `developer` is `system`. Missing or null content is empty. Text parts are joined as they are; other parts are refused
  by name.
* `reasoning` is an alias of `reasoning_content`.
* A call's arguments may be a JSON string; an empty one means none. Text that is not a JSON object is kept whole as the
  one parameter ``arguments``: a call that was cut in an earlier turn must not end the session, and the model sees what
  it wrote. Lone surrogates inside become U+FFFD for the same reason; anywhere else they are refused.
* Results of parallel calls are put into the order of their calls, by id: the template prints neither, and the model
  takes the first for the first call's. Results whose ids do not all name a different call stay as they come.
* Where the template takes system messages only at the front, several leading ones are joined by a blank line, and a
  later one is rendered in place between <system> tags: as a tool's response inside a tool loop, else as a user turn.
  Moving it to the front would change every earlier token, and a user turn inside a loop would drop earlier reasoning.
* Control tokens in any text of the client are ordinary text. In tool results so are the format's own tags, such as
  ``</tool_response>``: a tool cannot end its own block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edgellm.errors import RequestError
from edgellm.text.marks import Protector
from edgellm.text.tokenizer import Tokenizer

Message = dict[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_HANDLED: Final = frozenset(("role", "content", "reasoning_content", "reasoning", "tool_calls"))


class Normalizer:
    """Args:
    tokenizer: says which texts are control tokens and tags.
    late_system: whether the template takes a system message anywhere.
    """

    def __init__(self, tokenizer: Tokenizer, *, late_system: bool) -> None:
        control = {text for text, token_id in tokenizer.added.items() if token_id in tokenizer.special_ids}
        self._late_system = late_system
        self._text = Protector(control)
        self._tool_text = Protector(tokenizer.added)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages for the template; nothing of the input is changed.

        Raises:
            RequestError: naming the message and field.
        """
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        result: list[Message] = []
        for index, message in enumerate(messages):
            self._add(result, message, f"messages[{index}]")
        _order_results(result)
        return result

    def values(self, value: Any, where: str) -> Any:
        """Tools or template arguments with control tokens in their strings protected."""
        return self._text.protect_all(value, where)

    def _add(self, result: list[Message], message: Any, where: str) -> None:
        if not isinstance(message, Mapping):
            raise _wrong(where, "must be an object")
        role = message.get("role")
        if role not in ROLES:
            raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}, got {role!r:.60}")
        text = self._content(message.get("content"), f"{where}.content", self._tool_text if role == "tool" else None)
        if role in ("system", "developer"):
            self._add_system(result, text)
            return
        made: Message = {"role": role, "content": text}
        for key, value in message.items():
            if key not in _HANDLED and value is not None:
                made[key] = self.values(value, f"{where}.{key}")
        if role == "assistant":
            made |= self._assistant(message, where)
        result.append(made)

    def _add_system(self, result: list[Message], text: str) -> None:
        if not result or self._late_system:
            result.append({"role": "system", "content": text})
        elif all(message["role"] == "system" for message in result):
            result[-1]["content"] = f"{result[-1]['content']}\n\n{text}"
        else:
            in_loop = result[-1]["role"] == "tool" or result[-1].get("tool_calls")
            result.append({"role": "tool" if in_loop else "user", "content": f"<system>\n{text}\n</system>"})

    def _assistant(self, message: Mapping[str, Any], where: str) -> Message:
        made: Message = {}
        for key in ("reasoning_content", "reasoning"):
            if message.get(key) is not None and "reasoning_content" not in made:
                made["reasoning_content"] = self._content(message[key], f"{where}.{key}")
        calls = message.get("tool_calls")
        if calls:
            if not isinstance(calls, (list, tuple)):
                raise _wrong(f"{where}.tool_calls", "must be an array")
            made["tool_calls"] = [self._call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
        return made

    def _content(self, value: Any, where: str, protector: Protector | None = None) -> str:
        protector = protector or self._text
        if value is None:
            return ""
        if isinstance(value, str):
            return protector.protect(value, where)
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, "must be a string or an array of text parts")
        return protector.protect("".join(_part(part, f"{where}[{n}]") for n, part in enumerate(value)), where)

    def _call(self, call: Any, where: str) -> Message:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise _wrong(f"{where}.function.name", "is required")
        arguments = self.values(
            _arguments(function.get("arguments"), f"{where}.function.arguments"), f"{where}.function.arguments"
        )
        made = {"name": self._text.protect(name, f"{where}.function.name"), "arguments": arguments}
        call_id = call.get("id")
        known = {"id": self._text.protect(call_id, f"{where}.id")} if isinstance(call_id, str) else {}
        return {**known, "type": "function", "function": made}


def _order_results(messages: list[Message]) -> None:
    """Sort each run of tool messages by the calls that it answers."""
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not calls or len(calls) < 2:
            continue
        end = start = index + 1
        while end < len(messages) and "tool_call_id" in messages[end]:
            end += 1
        places = {call["id"]: place for place, call in enumerate(calls) if "id" in call}
        ids = [result["tool_call_id"] for result in messages[start:end]]
        if not all(isinstance(each, str) for each in ids):
            continue
        if len(places) == len(calls) and len(set(ids)) == len(ids) and places.keys() >= set(ids):
            messages[start:end] = sorted(messages[start:end], key=lambda result: places[result["tool_call_id"]])


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise RequestError(f"{where}: only text parts are supported, got {kind!r:.60}", param=where)
    return text


def _arguments(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, str):
        raise _wrong(where, "must be an object or a string that holds one")
    if not value.strip():
        return {}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    return _whole(parsed) if isinstance(parsed, dict) else {"arguments": _SURROGATES.sub("\ufffd", value)}


def _whole(value: Any) -> Any:
    """`value` with lone surrogates replaced."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _wrong(where: str, what: str) -> RequestError:
    return RequestError(f"{where} {what}", param=where)
