"""The inside of strings in JSON's and in Python's notation, as the inside of a JSON string.

JSON: escapes stay as they are written. Python: escapes are decoded; a backslash that begins none stands for itself.
Both: a raw line break or other control character is written as its escape, half a surrogate pair as U+FFFD.

What must stay true: nothing is ever evaluated; no part ends inside an escape or a surrogate pair; how the text is cut
into pieces changes nothing in the joined parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple


class End(Enum):
    """Why a part ends."""

    MORE = auto()  # more text is needed
    CLOSED = auto()  # the closing quote was read
    BROKEN = auto()  # what follows cannot stand in a string


class Part(NamedTuple):
    json: str
    at: int  # behind what was read
    end: End


@dataclass(frozen=True)
class Strings:
    """How a notation writes strings.

    Attributes:
        quotes: characters that open one.
        tripled: three of a quote open one too.
        plain: text that is neither quote nor escape.
        escape: an escape.
        unfinished: the beginning of one at the end of the text.
        meaning: of an escape, as the inside of a JSON string; None when it has none.
    """

    quotes: str
    tripled: bool
    plain: re.Pattern[str]
    escape: re.Pattern[str]
    unfinished: re.Pattern[str]
    meaning: Callable[[str], str | None]

    def opening(self, text: str, at: int, *, final: bool) -> str | None:
        """The quote that opens a string at `at`; empty when none does, None when more text is needed to tell."""
        char, start = text[at], text[at : at + 3]
        if char not in self.quotes:
            return ""
        if not self.tripled or start != char * len(start):
            return char
        if len(start) == 3:
            return start
        return char if final else None

    def part(self, text: str, at: int, quote: str) -> Part:
        """The string's text from `at` on, as far as it is there."""
        parts: list[str] = []
        end = End.MORE
        while at < len(text) and end is End.MORE:
            if plain := self.plain.match(text, at):
                parts.append(_inside(plain[0]))
                at = plain.end()
            elif text.startswith(quote, at):
                at, end = at + len(quote), End.CLOSED
            elif text[at] != "\\":
                if quote.startswith(text[at:]):
                    break
                parts.append(_inside(text[at]))
                at += 1
            elif len(text) - at < _LONGEST and self.unfinished.match(text, at):
                break
            elif (escape := self.escape.match(text, at)) and (meaning := self.meaning(escape[0])) is not None:
                parts.append(meaning)
                at = escape.end()
            else:
                end = End.BROKEN
        return Part("".join(parts), at, end)


_REPLACEMENT: Final = "\ufffd"
_PAIR: Final = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_UNFINISHED: Final = r"u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)"
_LONGEST: Final = 12  # characters of an escape
_PYTHON: Final = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
}


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_escape(escape: str) -> str:
    return _REPLACEMENT if _HALF.fullmatch(escape) else escape


def _python_escape(escape: str) -> str | None:
    kind = escape[1]
    if kind in _PYTHON:
        return _inside(_PYTHON[kind])
    if kind in "uxU01234567":
        if len(escape) == _LONGEST:
            return str(json.loads(f'"{escape}"'))
        code = int(escape[2:], 16) if kind in "uxU" else int(escape[1:], 8)
        if 0xD800 <= code <= 0xDFFF:
            return _REPLACEMENT
        return _inside(chr(code)) if code <= 0x10FFFF else None
    return _inside(escape)


JSON_STRINGS: Final = Strings(
    quotes='"',
    tripled=False,
    plain=re.compile(r'[^"\\]+'),
    escape=re.compile(rf'\\(?:["\\/bfnrt]|{_PAIR}|u[0-9a-fA-F]{{4}})'),
    unfinished=re.compile(rf"\\(?:{_UNFINISHED})?\Z"),
    meaning=_json_escape,
)
PYTHON_STRINGS: Final = Strings(
    quotes="'\"",
    tripled=True,
    plain=re.compile(r"[^'\"\\]+"),
    escape=re.compile(
        rf"\\(?:{_PAIR}|u[0-9a-fA-F]{{4}}|U[0-9a-fA-F]{{8}}|x[0-9a-fA-F]{{2}}|[0-7]{{1,3}}|[^xuUN])", re.DOTALL
    ),
    unfinished=re.compile(rf"\\(?:{_UNFINISHED}|U[0-9a-fA-F]{{0,7}}|x[0-9a-fA-F]?|[0-7]{{1,2}})?\Z"),
    meaning=_python_escape,
)
