"""Llama 3: ``{"name": …, "parameters": {…}}``, alone or behind ``<|python_tag|>``, several with ``;`` between.

* A call begins with ``{`` at the start of a line outside fenced code, directly behind another call or a semicolon
  behind one, or behind ``<|python_tag|>`` and white space; the object follows the rules of `json_call`. Any other
  object is text.
* Python code behind ``<|python_tag|>`` is text, the tag with it.
* Everything else follows the rules of `tagged`.
"""

from __future__ import annotations

from typing import Final

from edgellm.text.dialects.json_call import json_call
from edgellm.text.dialects.reading import Call, Cursor, Reading
from edgellm.text.dialects.tagged import Functions, Place, Syntax

MARKERS: Final = ("<think>", "</think>", "<|python_tag|>")


def _call(opener: str, cursor: Cursor, call: Call, declared: Functions) -> Reading[bool]:
    if opener == "{":
        return (yield from json_call(cursor, call, declared, lead=opener))
    yield from cursor.space()
    return (yield from json_call(cursor, call, declared))


SYNTAX: Final = Syntax({"<|python_tag|>": Place.ANYWHERE, "{": Place.LINE_START, ";": Place.BEHIND_CALL}, (), _call)
