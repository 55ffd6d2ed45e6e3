"""Nemotron: ``<TOOLCALL>[{"name": …, "arguments": {…}}, …]</TOOLCALL>``.

* The first call begins with ``<TOOLCALL>``, ``[``, ``{`` with white space between, the next ones with a comma directly
  behind a call and ``{``; the objects follow the rules of `json_call`. The bracket may be missing.
* An element that is no call is text from the comma on; later elements of that list are text too.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

from typing import Final

from edgellm.text.dialects.json_call import json_call
from edgellm.text.dialects.reading import Call, Cursor, Reading
from edgellm.text.dialects.tagged import Functions, Place, Syntax

MARKERS: Final = ("<think>", "</think>", "<TOOLCALL>", "</TOOLCALL>")


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    yield from cursor.space()
    if opener == "<TOOLCALL>" and (yield from cursor.literal("[")):
        yield from cursor.space()
    return (yield from json_call(cursor, call, declared))


SYNTAX: Final = Syntax({"<TOOLCALL>": Place.ANYWHERE, ",": Place.BEHIND_CALL}, ("]", "</TOOLCALL>"), _call)
