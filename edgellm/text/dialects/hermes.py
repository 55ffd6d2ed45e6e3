"""Hermes, Qwen2.5 and Qwen3: ``<tool_call> {"name": …, "arguments": {…}} </tool_call>``, once per call.

* A call begins with ``<tool_call>``, white space, ``{``; the object follows the rules of `json_call`. It ends with the
  object: a missing ``</tool_call>`` is forgiven.
* Without ``<tool_call>`` an object is a call at the start of a line outside fenced code, or directly behind a call, but
  only if it is whole and ``</tool_call>`` follows; until then it is held back.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

from typing import Final

from edgellm.text.dialects.json_call import json_call
from edgellm.text.dialects.reading import Call, Cursor, Reading
from edgellm.text.dialects.tagged import Functions, Place, Syntax

_CALL: Final = "<tool_call>"
_END_CALL: Final = "</tool_call>"

MARKERS: Final = ("<think>", "</think>", _CALL, _END_CALL)


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    if opener == _CALL:
        yield from cursor.space()
        return (yield from json_call(cursor, call, declared))
    held = Call()
    whole = yield from json_call(cursor, held, declared, lead=opener)
    if not whole:
        return False
    yield from cursor.space()
    if not (yield from cursor.literal(_END_CALL)):
        return False
    call.begin(held.name)
    call.write(held.arguments())
    return True


SYNTAX: Final = Syntax({_CALL: Place.ANYWHERE, "{": Place.LINE_START}, (_END_CALL,), _call)
