"""Mistral, in both forms: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`` and
``[TOOL_CALLS]NAME[ARGS]{…}``, the latter also with ``[CALL_ID]ID`` before ``[ARGS]``, or without ``[ARGS]``.

* The list and its objects follow the rules of `nemotron_deci` and `json_call`. In the other form every call begins with
  ``[TOOL_CALLS]``; the name is that of a declared function, and the arguments follow the rules of `arguments`.
* The model's own call ids are read over: ids are made as everywhere.
* Reasoning stands between ``[THINK]`` and ``[/THINK]``, in older models between ``<think>`` and ``</think>``.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

from typing import Final

from edgellm.text.dialects.arguments import json_arguments
from edgellm.text.dialects.json_call import json_call
from edgellm.text.dialects.reading import NAME, Call, Cursor, Reading
from edgellm.text.dialects.tagged import Functions, Place, Syntax

MARKERS: Final = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<think>", "</think>")


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    yield from cursor.space()
    if opener == "," or cursor.char == "{":
        return (yield from json_call(cursor, call, declared))
    if (yield from cursor.literal("[")):
        yield from cursor.space()
        return (yield from json_call(cursor, call, declared))
    name = yield from cursor.word(NAME)
    if name not in declared:
        return False
    yield from cursor.space()
    if (yield from cursor.literal("[CALL_ID]")):
        yield from cursor.word(NAME)
        yield from cursor.space()
    yield from cursor.literal("[ARGS]")
    return (yield from json_arguments(cursor, call, name))


SYNTAX: Final = Syntax(
    {"[TOOL_CALLS]": Place.ANYWHERE, ",": Place.BEHIND_CALL},
    ("]",),
    _call,
    think=("[THINK]", "<think>"),
    end_think=("[/THINK]", "</think>"),
)
