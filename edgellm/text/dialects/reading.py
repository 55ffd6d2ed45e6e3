"""How a dialect reads one call: a grammar written as a generator, which yields where it needs more text.

A grammar reads from a `Cursor`, names the call by `Call.begin` once nothing but a call to a declared function is
possible, writes the arguments' JSON piece by piece, and returns whether the call is well-formed. At the end of the turn
it is resumed a last time with `Cursor.final` set, and closes what it has begun.

What must stay true: where a grammar stops, and what it gives, do not depend on how the text is cut; it leaves only a
short piece of text unread when it yields, so that the work is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from enum import Enum, auto
from typing import Final, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

MAX_NAME: Final = 256
NAME: Final = re.compile(r"[^\s<>()\[\]{},;=\"'`]*")  # of a function, where the text is no JSON
_SPACE: Final = re.compile(r"\s*")
_PIECE: Final = 4096


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces so small that copying what is left of one may be repeated."""
    for at in range(0, len(text), _PIECE):
        yield text[at : at + _PIECE]


class Step(Enum):
    OPEN = auto()  # needs more text
    ENDED = auto()
    REFUSED = auto()


class Cursor:
    """Attributes:
    text: what there is to read.
    at: behind what was read of it.
    final: no more text comes, the turn has ended.
    """

    def __init__(self, text: str = "", at: int = 0, *, final: bool = False) -> None:
        self.text = text
        self.at = at
        self.final = final

    @property
    def char(self) -> str:
        """The next character; empty at the end of the text."""
        return self.text[self.at : self.at + 1]

    def space(self) -> Reading[str]:
        """Reads white space up to another character, or to the end of the turn."""
        read: list[str] = []
        while True:
            end = self._match(_SPACE)
            read.append(self.text[self.at : end])
            self.at = end
            if end < len(self.text) or self.final:
                return "".join(read)
            yield

    def word(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Reads the longest beginning that matches, at most `MAX_NAME` characters.

        Whatever begins with a match of `pattern` and is no match must have no longer match either.
        """
        while True:
            end = min(self._match(pattern), self.at + MAX_NAME)
            if end < len(self.text) or end == self.at + MAX_NAME or self.final:
                start, self.at = self.at, end
                return self.text[start:end]
            yield

    def literal(self, *options: str) -> Reading[str]:
        """Reads that of `options` which comes next; empty when none does. Longer ones stand before their beginnings."""
        while True:
            for option in options:
                if self.text.startswith(option, self.at):
                    self.at += len(option)
                    return option
                if not self.final and option.startswith(self.text[self.at : self.at + len(option)]):
                    break
            else:
                return ""
            yield

    def _match(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        return found.end() if found else self.at


class Call:
    """What was read of a call.

    Attributes:
        name: empty until it is certain to be a call.
    """

    def __init__(self) -> None:
        self.name = ""
        self._out: list[str] = []

    def begin(self, name: str) -> None:
        self.name = name

    def write(self, fragment: str) -> None:
        """More of the arguments' JSON."""
        self._out.append(fragment)

    def arguments(self) -> str:
        """What was written since the last time."""
        text = "".join(self._out)
        self._out.clear()
        return text


Grammar = Callable[[Cursor, Call], Reading[bool]]


class CallReader:
    """Runs a grammar over text that arrives in pieces.

    Attributes:
        step: ENDED behind a well-formed call, REFUSED behind what is none.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.step = Step.OPEN
        self.call = Call()
        self._cursor = Cursor()
        self._reading = grammar(self._cursor, self.call)

    def take(self, text: str, at: int) -> int:
        """Reads `text` from `at` on; returns the place behind what was read. What is left comes again, with more."""
        self._cursor.text, self._cursor.at = text, at
        self._resume()
        return self._cursor.at

    def end(self, text: str) -> None:
        """The turn ended with `text` left unread."""
        self._cursor.text, self._cursor.at, self._cursor.final = text, 0, True
        self._resume()

    def _resume(self) -> None:
        try:
            next(self._reading)
        except StopIteration as stop:
            self.step = Step.ENDED if stop.value else Step.REFUSED
