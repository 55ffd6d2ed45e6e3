"""Streaming parser of calls in the qwen3_coder form, with a newline between its parts:
`<tool_call> <function=NAME> <parameter=ARG> VALUE </parameter> </function> </tool_call>`.

Rules:
* A call starts with `<tool_call>` followed, after white space, by `<function=NAME>` of a declared name; or with
  `<function=NAME>` of a declared name at the start of a line, when `<parameter=` or `</function>` follows (some turns
  leave the opening tag out). Anything else is text and flows on.
* One newline after `>` and one before `</parameter>` belong to the form; every other character is the value's.
* A parameter ends at `</parameter>` that is followed by white space and another tag of the form (or the end), so a
  value may contain the tag's text. A parameter whose name is empty or holds `=`, `<`, a quote or a space is dropped.
* A repeated parameter: the first value stays (it may have been streamed already).
* Arguments are one JSON object. String values stream as they come; others when they are whole.
* A call that the end of the output cuts: with finish reason "length" its arguments stay as they are; otherwise it is
  closed to valid JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgellm.text.deltas import ContentDelta, ParsedDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from edgellm.text.typing import OMIT, allowed_types, convert

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _PARAMETER, _END_PARAMETER, _END_FUNCTION = "<function=", "<parameter=", "</parameter>", "</function>"
_NAME = re.compile(r"[^\s<>=\"']{1,256}")
_MAX_HEAD = 512  # characters a tag with its name may take


@dataclass(slots=True)
class _Call:
    index: int
    schema: Mapping[str, Any]
    seen: set[str] = field(default_factory=set)
    parameter: str | None = None  # being read; "" when it is dropped
    streaming: bool = False  # its value is a string and is sent as it comes
    began: bool = False  # the newline after the tag has been taken
    value: list[str] = field(default_factory=list)


class Qwen3CoderParser:
    """Feed text after the reasoning; content, calls and arguments come out in order."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], new_id: Any) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._schemas = {f["name"]: f.get("parameters") or {} for f in functions if isinstance(f.get("name"), str)}
        self._new_id = new_id
        self._buffer = ""
        self._call: _Call | None = None
        self._wrapped = False  # inside <tool_call>
        self._line_start = True
        self._count = 0
        self._space = ""  # white space held back before a call or the end

    @property
    def in_call(self) -> bool:
        return self._call is not None

    @property
    def calls(self) -> int:
        return self._count

    def feed(self, text: str) -> list[ParsedDelta]:
        self._buffer += text
        out: list[ParsedDelta] = []
        while self._step(out, final=False):
            pass
        return out

    def finish(self, finish_reason: str) -> list[ParsedDelta]:
        out: list[ParsedDelta] = []
        while self._step(out, final=True):
            pass
        if self._call is not None:
            if finish_reason != "length":
                self._end_value(out, self._buffer) if self._call.parameter is not None else None
                self._close(out)
        elif self._buffer:
            self._text(out, self._buffer)
        self._buffer = ""
        if self._space and not self._count:
            out.append(ContentDelta(self._space))
        return out

    def _step(self, out: list[ParsedDelta], *, final: bool) -> bool:
        if not self._buffer:
            return False
        if self._call is None:
            return self._outside(out, final)
        if self._call.parameter is None:
            return self._between(out, final)
        return self._inside(out, final)

    def _outside(self, out: list[ParsedDelta], final: bool) -> bool:
        """Text until something that starts a call."""
        at = self._buffer.find("<")
        if at < 0:
            self._text(out, self._take(len(self._buffer)))
            return False
        if at:
            self._text(out, self._take(at))
        verdict = self._opening(final)
        if verdict is None:
            return False  # more is needed
        size, name, orphan = verdict
        if name is not None:
            self._take(size)
            self._space = ""
            out.append(ToolCallStart(self._count, self._new_id(self._count), name))
            self._call = _Call(self._count, self._schemas[name])
            self._count += 1
        elif orphan and self._count:
            self._take(size)
        else:
            self._text(out, self._take(size))
        return True

    def _opening(self, final: bool) -> tuple[int, str | None, bool] | None:
        """(characters, name of the call or None for text, is a closing tag without a call); None: wait for more."""
        buffer = self._buffer
        if buffer.startswith(CLOSE):
            return len(CLOSE), None, True
        wrapped = buffer.startswith(OPEN)
        rest = buffer[len(OPEN) :].lstrip() if wrapped else buffer
        lead = len(buffer) - len(rest)
        if rest.startswith(_FUNCTION) and (wrapped or self._line_start):
            end = rest.find(">")
            if end < 0:
                return (1, None, False) if final or len(rest) > _MAX_HEAD or "\n" in rest else None
            name = rest[len(_FUNCTION) : end].strip()
            if name not in self._schemas:
                return lead + len(_FUNCTION) if wrapped else 1, None, False
            after = rest[end + 1 :].lstrip()
            if not wrapped and not after.startswith((_PARAMETER, _END_FUNCTION)):
                waits = _begins(after, _PARAMETER) or _begins(after, _END_FUNCTION)
                return None if waits and not final else (1, None, False)
            self._wrapped = wrapped
            return lead + end + 1, name, False
        if final:
            return 1, None, False
        possible = [_FUNCTION] if wrapped else [OPEN, CLOSE, *([_FUNCTION] if self._line_start else [])]
        waiting = any(_begins(rest, tag) for tag in possible) and len(buffer) < _MAX_HEAD
        return None if waiting else (len(OPEN) if wrapped else 1, None, False)

    def _between(self, out: list[ParsedDelta], final: bool) -> bool:
        """Inside a function, outside its parameters: white space and tags; other text is dropped."""
        call = self._call
        assert call is not None
        at = self._buffer.find("<")
        if at < 0:
            self._take(len(self._buffer))
            return False
        self._take(at)
        for tag in (_END_FUNCTION, CLOSE):
            if self._buffer.startswith(tag):
                self._take(len(tag))
                self._close(out)
                return True
        if self._buffer.startswith((OPEN, _FUNCTION)):  # the next call begins: this one was never closed
            self._close(out)
            self._line_start = True
            return True
        if self._buffer.startswith(_PARAMETER):
            ends = [p for p in (self._buffer.find(">"), self._buffer.find("\n")) if p >= 0]
            if not ends:
                if final or len(self._buffer) > _MAX_HEAD:
                    self._take(1)
                    return True
                return False
            end = min(ends)
            name = self._buffer[len(_PARAMETER) : end].strip()
            good = self._buffer[end] == ">" and _NAME.fullmatch(name) and name not in call.seen
            self._take(end + (self._buffer[end] == ">"))
            self._begin_value(out, name if good else "")
            return True
        if not final and any(_begins(self._buffer, tag) for tag in (_END_FUNCTION, CLOSE, OPEN, _FUNCTION, _PARAMETER)):
            return False
        self._take(1)
        return True

    def _inside(self, out: list[ParsedDelta], final: bool) -> bool:
        """A parameter's value until its end tag."""
        call, buffer = self._call, self._buffer
        assert call is not None
        if not call.began:
            call.began = True
            if buffer.startswith("\n"):
                self._take(1)
                buffer = self._buffer
        at = buffer.find(_END_PARAMETER)
        while at >= 0:
            after = buffer[at + len(_END_PARAMETER) :].lstrip()
            tags = (_PARAMETER, _END_FUNCTION, CLOSE)
            if after.startswith(tags) or (final and not after):
                self._take(at + len(_END_PARAMETER))
                self._end_value(out, buffer[:at])
                return True
            if not final and any(_begins(after, tag) for tag in tags):
                self._stream(out, at)
                return False
            at = buffer.find(_END_PARAMETER, at + 1)
        end = buffer.find(_END_FUNCTION)
        if end >= 0 and buffer[end + len(_END_FUNCTION) :].lstrip().startswith(CLOSE):  # the end tag was left out
            self._take(end)
            self._end_value(out, buffer[:end])
            return True
        self._stream(out, len(buffer))
        return False

    def _stream(self, out: list[ParsedDelta], upto: int) -> None:
        """Send what is surely part of a string value: not a newline before, or a beginning of, an end tag."""
        call = self._call
        assert call is not None
        text = self._buffer[:upto]
        cut = text.rfind("<", max(0, upto - 64)) if upto == len(self._buffer) else upto
        safe = upto if cut < 0 else cut
        if (
            upto == len(self._buffer)
            and cut >= 0
            and not any(
                _begins(text[cut:], tag) or text[cut:].startswith(tag) for tag in (_END_PARAMETER, _END_FUNCTION)
            )
        ):
            safe = upto
        if safe and text[safe - 1] == "\n":
            safe -= 1
        if safe > 0:
            self._value(out, self._take(safe))

    def _begin_value(self, out: list[ParsedDelta], name: str) -> None:
        call = self._call
        assert call is not None
        call.parameter, call.began, call.value = name, False, []
        call.streaming = bool(name) and allowed_types(self._property(call, name), call.schema) == {"string"}
        if call.streaming:
            self._arguments(out, self._key(call, name) + '"')

    def _value(self, out: list[ParsedDelta], text: str) -> None:
        call = self._call
        assert call is not None
        if call.streaming:
            self._arguments(out, json.dumps(text, ensure_ascii=False)[1:-1])
        elif call.parameter:
            call.value.append(text)

    def _end_value(self, out: list[ParsedDelta], rest: str) -> None:
        call = self._call
        assert call is not None
        self._value(out, rest.removesuffix("\n"))
        name = call.parameter
        if call.streaming:
            self._arguments(out, '"')
        elif name:
            value = convert("".join(call.value), self._property(call, name), call.schema)
            if value is not OMIT:
                self._arguments(out, self._key(call, name) + json.dumps(value, ensure_ascii=False))
        call.parameter, call.streaming = None, False

    def _close(self, out: list[ParsedDelta]) -> None:
        call = self._call
        assert call is not None
        self._arguments(out, "}" if call.seen else "{}")
        out.append(ToolCallEnd(call.index))
        self._call = None
        self._line_start = True

    def _arguments(self, out: list[ParsedDelta], text: str) -> None:
        assert self._call is not None
        if text:
            out.append(ToolCallArguments(self._call.index, text))

    @staticmethod
    def _key(call: _Call, name: str) -> str:
        """Opening of a member; marks the name as used."""
        lead = ", " if call.seen else "{"
        call.seen.add(name)
        return f"{lead}{json.dumps(name, ensure_ascii=False)}: "

    @staticmethod
    def _property(call: _Call, name: str) -> Any:
        properties = call.schema.get("properties")
        return properties.get(name) if isinstance(properties, Mapping) else None

    def _text(self, out: list[ParsedDelta], text: str) -> None:
        """Content; trailing white space waits, since what stands before a call or the end is dropped with it."""
        full = self._space + text
        kept = full.rstrip()
        self._space = full[len(kept) :]
        self._line_start = not kept and self._line_start if not full.strip() else False
        if "\n" in self._space or (not kept and self._line_start):
            self._line_start = True
        if kept:
            out.append(ContentDelta(kept))

    def _take(self, size: int) -> str:
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        return text


def _begins(text: str, tag: str) -> bool:
    """Whether more text could make `text` start with `tag`."""
    return len(text) < len(tag) and tag.startswith(text)
