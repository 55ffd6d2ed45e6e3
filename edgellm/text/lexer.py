"""Cuts a model's text into tags of the answer format and the text between them, as it arrives.

What must stay true: the raw parts joined are the input; only text that may still become a tag is held back, at most
`MAX_NAME` characters and a few; how the input is cut into pieces changes only where text lexemes are cut; linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

MAX_NAME: Final = 256


class Kind(Enum):
    TEXT = auto()
    THINK = auto()  # <think>
    END_THINK = auto()
    CALL = auto()  # <tool_call>
    END_CALL = auto()
    FUNCTION = auto()  # <function=NAME>
    END_FUNCTION = auto()
    PARAMETER = auto()  # <parameter=NAME>
    BAD_PARAMETER = auto()  # <parameter= without name and > on the same line; only what was read of it
    END_PARAMETER = auto()


class Lexeme(NamedTuple):
    kind: Kind
    raw: str
    name: str = ""  # of FUNCTION and PARAMETER, without white space around it

    @property
    def blank(self) -> bool:
        """White space only."""
        return self.kind is Kind.TEXT and self.raw.isspace()


_FIXED: Final = {
    "<think>": Kind.THINK,
    "</think>": Kind.END_THINK,
    "<tool_call>": Kind.CALL,
    "</tool_call>": Kind.END_CALL,
    "</function>": Kind.END_FUNCTION,
    "</parameter>": Kind.END_PARAMETER,
}
_NAMED: Final = {"<function=": Kind.FUNCTION, "<parameter=": Kind.PARAMETER}
_THINKING: Final = ("<think>", "</think>")
_NAME: Final = re.compile(rf"[^<>\n]{{0,{MAX_NAME}}}")


class Lexer:
    """Args:
    tools: whether the tags of tool calls are tags; without it only those of reasoning are.
    """

    def __init__(self, *, tools: bool) -> None:
        self._fixed = _FIXED if tools else {tag: _FIXED[tag] for tag in _THINKING}
        self._named = _NAMED if tools else {}
        self._beginnings = frozenset(tag[:n] for tag in (*self._fixed, *self._named) for n in range(1, len(tag)))
        self._longest = max(map(len, (*self._fixed, *self._named)))
        self._tail = ""

    def feed(self, text: str) -> list[Lexeme]:
        return list(self._scan(self._tail + text, final=False))

    def finish(self) -> list[Lexeme]:
        """The rest: an unfinished tag is text."""
        return list(self._scan(self._tail, final=True))

    def _scan(self, text: str, *, final: bool) -> Iterator[Lexeme]:
        self._tail = ""
        begin = position = 0  # text[begin:position] is ordinary
        while (at := text.find("<", position)) >= 0:
            if not final and len(text) - at < self._longest and text[at:] in self._beginnings:
                break
            found = self._tag(text, at, final)
            if found is None:
                break
            if found.kind is Kind.TEXT:
                position = at + len(found.raw)
                continue
            if at > begin:
                yield Lexeme(Kind.TEXT, text[begin:at])
            yield found
            begin = position = at + len(found.raw)
        end = len(text) if at < 0 else at
        self._tail = text[end:]
        if end > begin:
            yield Lexeme(Kind.TEXT, text[begin:end])

    def _tag(self, text: str, at: int, final: bool) -> Lexeme | None:
        """The lexeme at ``text[at] == "<"``; None when more text is needed to tell."""
        for tag, kind in self._fixed.items():
            if text.startswith(tag, at):
                return Lexeme(kind, tag)
        for tag, kind in self._named.items():
            if not text.startswith(tag, at):
                continue
            start = at + len(tag)
            match = _NAME.match(text, start)
            end = match.end() if match else start
            if end == len(text) and end - start < MAX_NAME and not final:
                return None
            if text.startswith(">", end):
                return Lexeme(kind, text[at : end + 1], text[start:end].strip())
            return Lexeme(Kind.BAD_PARAMETER if kind is Kind.PARAMETER else Kind.TEXT, text[at:end])
        return Lexeme(Kind.TEXT, "<")
