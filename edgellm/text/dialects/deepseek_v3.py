"""DeepSeek V3, R1 and V3.1. A call is ``<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME``, a fence of JSON,
``<｜tool▁call▁end｜>``; from V3.1 on ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>``. All calls stand
between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``.

* What follows the separator tells the forms apart: ``{`` is the newer one. In the older one the fence may be missing.
* The name is that of a declared function, and the arguments follow the rules of `arguments`.
* The tags around all calls, and those that end a call, may be missing.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

from typing import Final

from edgellm.text.dialects.arguments import json_arguments
from edgellm.text.dialects.reading import NAME, Call, Cursor, Reading
from edgellm.text.dialects.tagged import Functions, Place, Syntax

_CALLS: Final = "<｜tool▁calls▁begin｜>"
_END_CALLS: Final = "<｜tool▁calls▁end｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_END_CALL: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"

MARKERS: Final = ("<think>", "</think>", _CALLS, _END_CALLS, _CALL, _END_CALL, _SEPARATOR)


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    yield from cursor.space()
    if opener == _CALLS:
        if not (yield from cursor.literal(_CALL)):
            return False
        yield from cursor.space()
    name = yield from cursor.word(NAME)
    yield from cursor.space()
    if not name or not (yield from cursor.literal(_SEPARATOR)):
        return False
    yield from cursor.space()
    fence = ""
    if cursor.char != "{" and name == "function":
        name = yield from cursor.word(NAME)
        yield from cursor.space()
        fence = yield from cursor.literal("```json", "```")
    if name not in declared or not (yield from json_arguments(cursor, call, name)):
        return False
    if fence:
        yield from cursor.space()
        yield from cursor.literal("```")
    return True


SYNTAX: Final = Syntax({_CALLS: Place.ANYWHERE, _CALL: Place.ANYWHERE}, (_END_CALL, _END_CALLS), _call)
