"""One tool call in the qwen3_coder form, with a newline between its parts:
``<tool_call> <function=NAME> <parameter=ARG> VALUE </parameter> </function> </tool_call>``.

Rules of the body, from ``<function=NAME>`` on:
* One newline after a parameter's ``>`` and one before its end tag belong to the form, every other character to the
  value.
* ``</parameter>`` ends a value when, after white space, another tag of the form or the end follows. Elsewhere it is
  part of the value, as every other tag in a value is.
* A missing ``</parameter>`` is forgiven: before ``<parameter=ARG>`` at the start of a line for a declared parameter not
  yet given, and before the call's end tags when nothing but another call or the end follows them.
* A missing ``</function>`` is forgiven before ``</tool_call>``, another call, or the end.
* A parameter without a proper name (empty, unclosed, or undeclared with ``=``, a quote or a space) is dropped. Text
  between parameters is dropped. A repeated parameter keeps its first value, which may already be on its way.
* Parameters may come in any order; one that the schema does not declare is kept.

The arguments are one JSON object; strings go out as they arrive, other values when they are whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from edgellm.text.functions import Function
from edgellm.text.lexer import Kind, Lexeme
from edgellm.text.values import ValueWriter

_PLAIN_NAME: Final = re.compile(r"[^\s<>=\"']+")
CLOSERS: Final = (Kind.END_CALL, Kind.END_FUNCTION, Kind.END_PARAMETER)
_CALL_ENDS: Final = (Kind.END_FUNCTION, Kind.END_CALL)


class Step(Enum):
    """What `CallReader.take` made of a lexeme."""

    TAKEN = auto()
    ENDED = auto()  # taken, and the call is complete
    ENDED_BEFORE = auto()  # the call is complete, the lexeme is not part of it
    REFUSED = auto()  # not a well-formed call (only when strict)


class _State(Enum):
    BODY = auto()
    DROPPED = auto()  # inside a malformed parameter
    VALUE = auto()
    VALUE_END = auto()  # after </parameter>: what follows decides whether it ended the value
    CALL_END = auto()  # after </function> or </tool_call> in a value: likewise


class CallReader:
    """Reads one body, lexeme by lexeme.

    Args:
        function: the declared function that is called.
        declared: names whose ``<function=NAME>`` starts another call.
        strict: refuse what the rules would forgive.
    """

    def __init__(self, function: Function, declared: Iterable[str], *, strict: bool) -> None:
        self._function = function
        self._declared = frozenset(declared)
        self._strict = strict
        self._state = _State.BODY
        self._held: list[Lexeme] = []  # in VALUE_END and CALL_END
        self._given: set[str] = set()
        self._out: list[str] = []
        self._name = ""
        self._value: ValueWriter | None = None  # None: the parameter being read is dropped
        self._line_start = False  # the value's last character is a newline

    def take(self, lexeme: Lexeme) -> Step:
        match self._state:
            case _State.BODY:
                return self._body(lexeme)
            case _State.DROPPED:
                return self._dropped(lexeme)
            case _State.VALUE:
                return self._in_value(lexeme)
            case _State.VALUE_END:
                return self._value_end(lexeme)
            case _State.CALL_END:
                return self._call_end(lexeme)

    def arguments(self) -> str:
        """Fragment of the arguments' JSON since the last time."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def end(self) -> None:
        """The model ended its turn inside the call: close what is open."""
        if self._state in (_State.VALUE, _State.VALUE_END, _State.CALL_END):
            self._end_value()
        self._close()

    def _body(self, lexeme: Lexeme) -> Step:
        if lexeme.blank:
            return Step.TAKEN
        if lexeme.kind is Kind.PARAMETER:
            name = lexeme.name
            proper = self._function.declares(name) or _PLAIN_NAME.fullmatch(name) is not None
            self._begin_value(name, kept=proper and name not in self._given)
            return Step.TAKEN if proper or not self._strict else Step.REFUSED
        if lexeme.kind is Kind.END_FUNCTION:
            self._close()
            return Step.ENDED
        if lexeme.kind is Kind.END_CALL:
            self._close()
            return Step.ENDED_BEFORE
        if self._strict:
            return Step.REFUSED
        if self._starts_call(lexeme):
            self._close()
            return Step.ENDED_BEFORE
        if lexeme.kind is Kind.BAD_PARAMETER:
            self._state = _State.DROPPED
        return Step.TAKEN

    def _dropped(self, lexeme: Lexeme) -> Step:
        if lexeme.kind is Kind.END_PARAMETER:
            self._state = _State.BODY
            return Step.TAKEN
        if self._is_structure(lexeme):
            self._state = _State.BODY
            return self._body(lexeme)
        return Step.TAKEN

    def _in_value(self, lexeme: Lexeme) -> Step:
        if lexeme.kind is Kind.END_PARAMETER:
            self._state, self._held = _State.VALUE_END, [lexeme]
        elif lexeme.kind in _CALL_ENDS:
            self._state, self._held = _State.CALL_END, [lexeme]
        elif (
            lexeme.kind is Kind.PARAMETER
            and self._line_start
            and self._function.declares(lexeme.name)
            and lexeme.name not in self._given
        ):
            self._end_value()
            return self._body(lexeme)
        else:
            self._add(lexeme.raw)
        return Step.TAKEN

    def _value_end(self, lexeme: Lexeme) -> Step:
        if lexeme.blank:
            self._held.append(lexeme)
            return Step.TAKEN
        if self._is_structure(lexeme):
            self._end_value()
            return self._body(lexeme)
        return self._still_value(lexeme)

    def _call_end(self, lexeme: Lexeme) -> Step:
        if lexeme.blank or (lexeme.kind is Kind.END_CALL and all(h.kind is not Kind.END_CALL for h in self._held)):
            self._held.append(lexeme)
            return Step.TAKEN
        if lexeme.kind is Kind.CALL and not self._strict:
            self._end_value()
            self._close()
            return Step.ENDED_BEFORE
        return self._still_value(lexeme)

    def _still_value(self, lexeme: Lexeme) -> Step:
        """What looked like an end was part of the value."""
        for held in self._held:
            self._add(held.raw)
        self._state = _State.VALUE
        return self._in_value(lexeme)

    def _is_structure(self, lexeme: Lexeme) -> bool:
        """Whether the lexeme may follow a parameter."""
        kinds = (Kind.PARAMETER, Kind.BAD_PARAMETER, *_CALL_ENDS)
        return lexeme.kind in kinds or self._starts_call(lexeme)

    def _starts_call(self, lexeme: Lexeme) -> bool:
        return lexeme.kind is Kind.CALL or (lexeme.kind is Kind.FUNCTION and lexeme.name in self._declared)

    def _begin_value(self, name: str, *, kept: bool) -> None:
        self._state, self._name, self._line_start = _State.VALUE, name, False
        self._value = None
        if kept:
            lead = f"{', ' if self._given else '{'}{json.dumps(name, ensure_ascii=False)}: "
            self._value = ValueWriter(lead, self._function.types(name))
            self._given.add(name)

    def _add(self, raw: str) -> None:
        self._line_start = raw.endswith("\n")
        if self._value is not None:
            self._out.append(self._value.add(raw))

    def _end_value(self) -> None:
        if self._value is not None:
            rest = self._value.end()
            if rest is None:
                self._given.discard(self._name)
            else:
                self._out.append(rest)
        self._state, self._value = _State.BODY, None

    def _close(self) -> None:
        self._out.append("}" if self._given else "{}")
