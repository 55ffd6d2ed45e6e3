"""Calls as a list in Python's notation: ``[NAME(key=value, …), …]``, in Llama 4 also between ``<|python_start|>`` and
``<|python_end|>``.

* The first call begins with ``[`` at the start of a line outside fenced code, or behind ``<|python_start|>`` or
  ``<|python_tag|>``; the next ones with a comma directly behind a call. ``NAME(`` of a declared function must follow.
* Arguments are named, and their values literals, as `literals` says: nothing is evaluated. A positional argument, a
  variable or an operator makes it no call; when part of the arguments is out by then, they are closed and the call
  stays without an end. A call without arguments counts when a comma or the end of the list follows.
* A list item that is no call is text from the comma on; later items of that list are text too.
* When the turn ends inside the arguments, what is open is closed.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

import json
import re
from typing import Final

from edgellm.text.dialects.literals import PYTHON, Event, Kind, LiteralReader
from edgellm.text.dialects.objects import ObjectWriter
from edgellm.text.dialects.reading import NAME, Call, Cursor, Reading, Step
from edgellm.text.dialects.tagged import Functions, Place, Syntax

MARKERS: Final = ("<think>", "</think>", "<|python_start|>", "<|python_end|>", "<|python_tag|>")
_KEY: Final = re.compile(r"\w*")


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    yield from cursor.space()
    if opener.startswith("<"):
        if not (yield from cursor.literal("[")):
            return False
        yield from cursor.space()
    name = yield from cursor.word(NAME)
    yield from cursor.space()
    if name not in declared or not (yield from cursor.literal("(")):
        return False
    yield from cursor.space()
    if (yield from cursor.literal(")")):
        yield from cursor.space()
        if cursor.char not in (",", "]"):
            return False
        call.begin(name)
        call.write("{}")
        return True
    writer = ObjectWriter()
    writer.take(Event(Kind.OBJECT, 0))
    whole = yield from _members(cursor, call, writer, name)
    if call.name:
        writer.close()
        call.write(writer.text())
    return whole or (cursor.final and bool(call.name))


def _members(cursor: Cursor, call: Call, writer: ObjectWriter, name: str) -> Reading[bool]:
    """``key=value, …)``: whether they are well-formed. The call is begun with the first value."""
    while True:
        key = yield from cursor.word(_KEY)
        yield from cursor.space()
        if not key or not (yield from cursor.literal("=")):
            return False
        writer.take(Event(Kind.KEY, 1, json.dumps(key, ensure_ascii=False)))
        reader = LiteralReader(PYTHON, depth=1)
        while True:
            for event in reader.read(cursor.text, cursor.at, final=cursor.final):
                writer.take(event)
                call.begin(name)
            cursor.at = reader.at
            if call.name:
                call.write(writer.text())
            if reader.step is not Step.OPEN or cursor.final:
                break
            yield
        if reader.step is not Step.ENDED:
            return False
        yield from cursor.space()
        if (yield from cursor.literal(",")):
            yield from cursor.space()
        elif cursor.char != ")":
            return False
        if (yield from cursor.literal(")")):
            return True


SYNTAX: Final = Syntax(
    {
        "[": Place.LINE_START,
        "<|python_start|>": Place.ANYWHERE,
        "<|python_tag|>": Place.ANYWHERE,
        ",": Place.BEHIND_CALL,
    },
    ("]", "<|python_end|>"),
    _call,
)
