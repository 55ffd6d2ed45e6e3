"""The input of a custom tool's call, out of the JSON arguments that the parser gives.

A custom tool is shown to the model as a function with the parameter `input`, so a call's arguments are
``{"input": "…"}``, and the text comes out as it arrives. What must stay true: pieces joined are the whole input,
however the arguments are cut; arguments of any other shape (a model may write what it likes) become the input as they
are, at the end of the call.
"""

from __future__ import annotations

import json
import re
from typing import Final

from edgellm.server.responses.tools import INPUT

_HEAD: Final = re.compile(rf'\s{{0,9}}\{{\s{{0,9}}"{INPUT}"\s{{0,9}}:\s{{0,9}}"')
_LONGEST_HEAD: Final = 48
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_HIGH, _LOW, _END = 0xD800, 0xDC00, 0xE000  # halves of a character beyond 16 bits


class RawInput:
    """Reads the arguments of one call."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._waiting = ""  # arguments not decoded yet
        self._inside = False  # in the string
        self._over = False  # behind it
        self._given = False

    def add(self, fragment: str) -> str:
        """Take a piece of the arguments; returns what it adds to the input."""
        self._arguments.append(fragment)
        if self._over:
            return ""
        self._waiting += fragment
        if not self._inside:
            head = _HEAD.match(self._waiting)
            if head is None:
                self._over = len(self._waiting) > _LONGEST_HEAD
                return ""
            self._inside = self._given = True
            self._waiting = self._waiting[head.end() :]
        return self._decode()

    def end(self) -> str:
        """The rest of the input."""
        if self._given:
            return ""
        arguments = "".join(self._arguments)
        try:
            value = json.loads(arguments)
        except ValueError:
            return arguments
        if isinstance(value, dict):
            if isinstance(text := value.get(INPUT), str):
                return text
            if not value:
                return ""
        return arguments

    def _decode(self) -> str:
        text, at, out = self._waiting, 0, []
        while at < len(text):
            stop = _special(text, at)
            out.append(text[at:stop])
            at = stop
            if at == len(text):
                break
            if text[at] == '"':
                self._over = True
                at = len(text)
                break
            taken = _escape(text, at)
            if taken is None:
                break
            char, at = taken
            out.append(char)
        self._waiting = text[at:]
        return "".join(out)


def _special(text: str, at: int) -> int:
    """The next quote or backslash."""
    found = [place for char in '"\\' if (place := text.find(char, at)) >= 0]
    return min(found, default=len(text))


def _escape(text: str, at: int) -> tuple[str, int] | None:
    """The character that an escape stands for and the place behind it; None while it is not whole."""
    if len(text) < at + 2:
        return None
    if text[at + 1] != "u":
        return _ESCAPES.get(text[at + 1], text[at + 1]), at + 2
    code = _code(text, at)
    if code is None:
        return None
    if code < 0:
        return "\\u", at + 2
    if not _HIGH <= code < _END:
        return chr(code), at + 6
    low = _code(text, at + 6) if code < _LOW else -1
    if low is None:
        return None
    if not _LOW <= low < _END:
        return "\ufffd", at + 6
    return chr(0x10000 + ((code - _HIGH) << 10) + (low - _LOW)), at + 12


def _code(text: str, at: int) -> int | None:
    """The number of an escape with ``\\u``: None while it is not whole, -1 when it is none."""
    escape = text[at : at + 6]
    if not "\\u".startswith(escape[:2]):
        return -1
    digits = escape[2:]
    if _HEX.fullmatch(digits) is None:
        return -1
    return int(digits, 16) if len(digits) == 4 else None
