"""Calls that are read but not yet made: their text is held back until it is known whether they count.

What must stay true: until then nothing of them comes out; a refused draft gives back its text unchanged; memory and
work are linear in the held text.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgellm.text.functions import Function
from edgellm.text.lexer import Kind, Lexeme
from edgellm.text.qwen3_coder import CLOSERS, CallReader, Step


class Draft:
    """A run of well-formed calls with white space and closing tags between them.

    Args:
        functions: the declared ones.
        in_reasoning: whether ``</think>`` refutes the draft; elsewhere it may be part of a value.

    Attributes:
        calls: name and arguments of the complete calls.
        complete: nothing of the run is open.
    """

    def __init__(self, functions: Mapping[str, Function], *, in_reasoning: bool) -> None:
        self.calls: list[tuple[str, str]] = []
        self.complete = False
        self._functions = functions
        self._in_reasoning = in_reasoning
        self._name = ""  # of the call being read
        self._reader: CallReader | None = None
        self._opened = False  # behind <tool_call>
        self._raw: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._raw)

    def take(self, lexeme: Lexeme) -> bool:
        """Whether the lexeme continues the run; the first one is ``<tool_call>`` or a declared function."""
        if self._in_reasoning and lexeme.kind is Kind.END_THINK:
            return False
        if not self._continues(lexeme):
            return False
        self._raw.append(lexeme.raw)
        return True

    def _continues(self, lexeme: Lexeme) -> bool:
        if self._reader is not None:
            match self._reader.take(lexeme):
                case Step.TAKEN:
                    return True
                case Step.REFUSED:
                    return False
                case Step.ENDED:
                    self._end(self._reader)
                    return True
                case Step.ENDED_BEFORE:
                    self._end(self._reader)
        if lexeme.blank:
            return True
        if lexeme.kind is Kind.FUNCTION and lexeme.name in self._functions:
            self._begin(lexeme.name)
            return True
        if lexeme.kind is Kind.CALL and not self._opened:
            self._opened, self.complete = True, False
            return True
        return self.complete and lexeme.kind in CLOSERS

    def _begin(self, name: str) -> None:
        self._name = name
        self._reader = CallReader(self._functions[name], self._functions, strict=True)
        self.complete = False

    def _end(self, reader: CallReader) -> None:
        self.calls.append((self._name, reader.arguments()))
        self._reader = None
        self.complete, self._opened = True, False
