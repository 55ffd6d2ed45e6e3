"""Cuts a model's text into tags of the answer format and the text between them, as it arrives.

What must stay true: the raw parts joined are the input; only text that may still become a tag is held back, at most
`MAX_NAME` characters and a few; how the input is cut into pieces changes only where text lexemes are cut; linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from edgellm.text.tags import Tags

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
        self._tags = Tags((*_FIXED, *_NAMED) if tools else _THINKING)
        self._tail = ""

    def feed(self, text: str) -> list[Lexeme]:
        return list(self._scan(self._tail + text, final=False))

    def finish(self) -> list[Lexeme]:
        """The rest: an unfinished tag is text."""
        return list(self._scan(self._tail, final=True))

    def _scan(self, text: str, *, final: bool) -> Iterator[Lexeme]:
        self._tail = ""
        begin = position = 0  # text[begin:position] is ordinary
        while True:
            at, tag = self._tags.search(text, position)
            found = self._lexeme(text, at, tag, final) if tag else None
            if found is None:
                break
            if found.kind is Kind.TEXT:
                position = at + len(found.raw)
                continue
            if at > begin:
                yield Lexeme(Kind.TEXT, text[begin:at])
            yield found
            begin = position = at + len(found.raw)
        end = len(text) if final else at
        self._tail = text[end:]
        if end > begin:
            yield Lexeme(Kind.TEXT, text[begin:end])

    def _lexeme(self, text: str, at: int, tag: str, final: bool) -> Lexeme | None:
        """What begins with `tag` at `at`; None when more text is needed to tell."""
        if tag in _FIXED:
            return Lexeme(_FIXED[tag], tag)
        kind, start = _NAMED[tag], at + len(tag)
        match = _NAME.match(text, start)
        end = match.end() if match else start
        if end == len(text) and end - start < MAX_NAME and not final:
            return None
        if text.startswith(">", end):
            return Lexeme(kind, text[at : end + 1], text[start:end].strip())
        return Lexeme(Kind.BAD_PARAMETER if kind is Kind.PARAMETER else Kind.TEXT, text[at:end])
