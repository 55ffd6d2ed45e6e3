"""GLM 4.5 and later: ``<tool_call>NAME``, for every argument ``<arg_key>KEY</arg_key> <arg_value>VALUE</arg_value>``,
and ``</tool_call>``, with or without line breaks between the parts.

* A call begins with ``<tool_call>``, the name of a declared function, and ``<arg_key>`` or ``</tool_call>``.
* A value is everything between its tags; the declared schema says how it becomes JSON, by the rules of `values`.
  ``</arg_value>`` ends it when, after white space, another tag of the form or the end of the turn follows. Elsewhere it
  is part of the value, as every other tag in a value is.
* A repeated key keeps its first value, which may already be on its way. An empty key is dropped with its value; one
  that the schema does not declare is kept.
* Anything else between the parts makes the call malformed: its arguments are closed, it gets no end.
* A missing ``</tool_call>`` is forgiven before ``<tool_call>`` and at the end of the turn; there an open value is
  closed.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

import json
import re
from typing import Final

from edgellm.text.dialects.reading import NAME, Call, Cursor, Reading
from edgellm.text.dialects.tagged import Functions, Place, Syntax
from edgellm.text.functions import Function
from edgellm.text.tags import Tags
from edgellm.text.values import ValueWriter

_CALL: Final = "<tool_call>"
_END_CALL: Final = "</tool_call>"
_KEY: Final = "<arg_key>"
_END_KEY: Final = "</arg_key>"
_VALUE: Final = "<arg_value>"
_END_VALUE: Final = "</arg_value>"

MARKERS: Final = ("<think>", "</think>", _CALL, _END_CALL, _KEY, _END_KEY, _VALUE, _END_VALUE)

_NEXT: Final = (_KEY, _END_CALL, _CALL)  # what may follow a part of the call
_KEY_TEXT: Final = re.compile(r"[^<\n]*")
_VALUE_ENDS: Final = Tags((_END_VALUE,))


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    yield from cursor.space()
    name = yield from cursor.word(NAME)
    yield from cursor.space()
    if name not in declared:
        return False
    tag = yield from cursor.literal(_KEY, _END_CALL)
    if not tag:
        return False
    call.begin(name)
    given: set[str] = set()
    while tag == _KEY:
        key = yield from cursor.word(_KEY_TEXT)
        if (yield from cursor.literal(_END_KEY)):
            yield from cursor.space()
            tag = yield from cursor.literal(_VALUE)
            if tag:
                tag = yield from _value(cursor, call, declared[name], key.strip(), given)
        else:
            tag = ""
    call.write("}" if given else "{}")
    if tag == _CALL:
        cursor.at -= len(tag)
    return bool(tag) or cursor.final


def _value(cursor: Cursor, call: Call, function: Function, key: str, given: set[str]) -> Reading[str]:
    """Reads a value from behind its tag, and the tag that follows; that is empty when there is none."""
    writer: ValueWriter | None = None
    if key and key not in given:
        lead = f"{', ' if given else '{'}{json.dumps(key, ensure_ascii=False)}: "
        writer = ValueWriter(lead, function.types(key), framed=False)
    follows = ""
    while True:
        end, tag = _VALUE_ENDS.search(cursor.text, cursor.at)
        if cursor.final and not tag:
            end = len(cursor.text)
        if writer is not None:
            call.write(writer.add(cursor.text[cursor.at : end]))
        cursor.at = end + len(tag)
        if tag:
            space = yield from cursor.space()
            follows = yield from cursor.literal(*_NEXT)
            if follows:
                break
            if not cursor.final and writer is not None:
                call.write(writer.add(tag + space))
        elif not cursor.final:
            yield
        if cursor.final:
            break
    rest = writer.end() if writer is not None else None
    if rest is not None:
        given.add(key)
        call.write(rest)
    return follows


SYNTAX: Final = Syntax({_CALL: Place.ANYWHERE}, (_END_CALL,), _call)
