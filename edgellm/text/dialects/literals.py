"""Reads one value, written as JSON or as a Python literal, while its text arrives.

* JSON is JSON, but for raw control characters in strings. Python adds its quotes and constants, tuples and a comma
  behind the last item. ``NaN``, ``Infinity``, names, calls and operators are no values in either.
* Numbers keep their text and have at most `MAX_NUMBER` characters; containers nest at most `MAX_DEPTH` deep. More than
  that would not be read by the parsers that clients use.

What must stay true: nothing is ever evaluated; the events are those of a value that JSON can write, whatever the text;
where reading stops does not depend on how the text is cut; the work is linear in the text, and what is left unread
until more comes is at most a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from edgellm.text.dialects.reading import Step
from edgellm.text.dialects.strings import JSON_STRINGS, PYTHON_STRINGS, End, Part, Strings

MAX_DEPTH: Final = 128
MAX_NUMBER: Final = 4000
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR: Final = re.compile(rf"[-+.\w]{{1,{MAX_NUMBER + 1}}}", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class Kind(Enum):
    OBJECT = auto()
    ARRAY = auto()
    END = auto()  # of an object or array
    KEY = auto()  # the whole key, as a JSON string
    STRING = auto()  # a string begins
    TEXT = auto()  # more of it, as the inside of a JSON string
    STRING_END = auto()
    SCALAR = auto()  # a number or constant, as JSON


class Event(NamedTuple):
    kind: Kind
    depth: int  # how many containers are around the value; for a key, around its value
    text: str = ""


@dataclass(frozen=True)
class Notation:
    strings: Strings
    constants: Mapping[str, str]
    brackets: Mapping[str, str]
    last_comma: bool  # a comma may stand behind the last item


_CONSTANTS: Final = {"true": "true", "false": "false", "null": "null"}
JSON: Final = Notation(JSON_STRINGS, _CONSTANTS, {"{": "}", "[": "]"}, last_comma=False)
PYTHON: Final = Notation(
    PYTHON_STRINGS,
    {**_CONSTANTS, "True": "true", "False": "false", "None": "null"},
    {"{": "}", "[": "]", "(": ")"},
    last_comma=True,
)


class _Expect(Enum):
    VALUE = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()  # a comma or the end of the container


@dataclass
class _Container:
    closer: str
    commas: int = 0
    empty: bool = True


class LiteralReader:
    """Args:
        notation: how the value is written.
        depth: of the value in the events.

    Attributes:
        step: ENDED behind the value, REFUSED where the text cannot be one.
        at: behind what was read of the text given last.
    """

    def __init__(self, notation: Notation, depth: int = 0) -> None:
        self.step = Step.OPEN
        self.at = 0
        self._notation = notation
        self._depth = depth
        self._open: list[_Container] = []
        self._expect = _Expect.VALUE
        self._quote = ""  # of the string being read
        self._key: list[str] | None = None  # parts of the key being read

    def read(self, text: str, at: int, *, final: bool = False) -> Iterator[Event]:
        """What `text` holds from `at` on. The caller may stop at any event, but then reads no more."""
        self.at = at
        while self.step is Step.OPEN:
            if self._quote:
                part = self._notation.strings.part(text, self.at, self._quote)
                self.at = part.at
                yield from self._string(part)
                if part.end is End.MORE:
                    return
            else:
                event = self._token(text, final)
                if event is not None:
                    yield event
                elif not self._quote:
                    return

    def _string(self, part: Part) -> Iterator[Event]:
        depth = self._depth + len(self._open)
        if self._key is not None:
            self._key.append(part.json)
        elif part.json:
            yield Event(Kind.TEXT, depth, part.json)
        if part.end is End.BROKEN:
            self.step = Step.REFUSED
        if part.end is not End.CLOSED:
            return
        self._quote = ""
        if self._key is not None:
            key, self._key = '"' + "".join(self._key) + '"', None
            self._expect = _Expect.COLON
            yield Event(Kind.KEY, depth, key)
        else:
            self._end_value()
            yield Event(Kind.STRING_END, depth)

    def _token(self, text: str, final: bool) -> Event | None:
        """The next event outside strings; None when a key begins, more text is needed, or no value can follow."""
        while True:
            space = _SPACE.match(text, self.at)
            self.at = space.end() if space else self.at
            if self.at == len(text):
                return None
            char = text[self.at]
            inner = self._open[-1] if self._open else None
            if inner is not None and char == inner.closer and self._may_close(inner):
                self._open.pop()
                self.at += 1
                self._end_value()
                return Event(Kind.END, self._depth + len(self._open))
            if self._expect is _Expect.VALUE:
                return self._value(text, char, final)
            if self._expect is _Expect.KEY:
                self._begin_key(text, final)
                return None
            if self._expect is _Expect.COLON and char == ":":
                self._expect = _Expect.VALUE
            elif self._expect is _Expect.NEXT and char == "," and inner is not None:
                inner.commas += 1
                self._expect = _Expect.KEY if inner.closer == "}" else _Expect.VALUE
            else:
                self.step = Step.REFUSED
                return None
            self.at += 1

    def _may_close(self, inner: _Container) -> bool:
        if self._expect is _Expect.NEXT:
            return inner.closer != ")" or inner.commas > 0  # one item in parentheses is no tuple
        begins = self._expect is (_Expect.KEY if inner.closer == "}" else _Expect.VALUE)
        return begins and (inner.empty or self._notation.last_comma)

    def _begin_key(self, text: str, final: bool) -> None:
        quote = self._notation.strings.opening(text, self.at, final=final)
        if quote == "":
            self.step = Step.REFUSED
        elif quote is not None:
            self._fill()
            self._quote, self._key = quote, []
            self.at += len(quote)

    def _value(self, text: str, char: str, final: bool) -> Event | None:
        depth = self._depth + len(self._open)
        quote = self._notation.strings.opening(text, self.at, final=final)
        if quote is None:
            return None
        if quote:
            self._fill()
            self._quote = quote
            self.at += len(quote)
            return Event(Kind.STRING, depth)
        if char in self._notation.brackets:
            if len(self._open) == MAX_DEPTH:
                self.step = Step.REFUSED
                return None
            self._fill()
            self._open.append(_Container(self._notation.brackets[char]))
            self._expect = _Expect.KEY if char == "{" else _Expect.VALUE
            self.at += 1
            return Event(Kind.OBJECT if char == "{" else Kind.ARRAY, depth)
        return self._scalar(text, depth, final)

    def _scalar(self, text: str, depth: int, final: bool) -> Event | None:
        found = _SCALAR.match(text, self.at)
        word = found[0] if found else ""
        if found and found.end() == len(text) and len(word) <= MAX_NUMBER and not final:
            return None
        written = self._notation.constants.get(word) or (_NUMBER.fullmatch(word) and word)
        if not written or len(word) > MAX_NUMBER:
            self.step = Step.REFUSED
            return None
        self._fill()
        self.at += len(word)
        self._end_value()
        return Event(Kind.SCALAR, depth, written)

    def _fill(self) -> None:
        if self._open:
            self._open[-1].empty = False

    def _end_value(self) -> None:
        self._expect = _Expect.NEXT
        if not self._open:
            self.step = Step.ENDED
