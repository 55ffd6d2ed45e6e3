"""The one owner of an answer's structure: reasoning first, then content and tool calls.

Reasoning:
* It is the first block only, opened by the prompt or by ``<think>`` at the start of the answer, closed by the first
  ``</think>``. Another opener at the start of an open block is dropped; later ``<think>`` is text.
* A closing tag before the first word of content is dropped, elsewhere in content it is text.
* A block that is never closed is reasoning to the end.

Tool calls (the body's rules are in `qwen3_coder`):
* A call starts with ``<tool_call>``, white space, ``<function=NAME>`` of a declared name. Anything else that begins
  like a call is text and flows on. An undeclared function is text: nobody could run it.
* Without ``<tool_call>`` a call starts with ``<function=NAME>`` of a declared name at the start of a line, outside
  fenced code, and counts only if a complete, well-formed body follows; until then it is held back.
* Tool syntax in reasoning stays reasoning: drafts must not run. Only when the turn ends inside the block, and ends with
  well-formed calls, these are made; text from the first of them on is therefore held back until that is decided.
* Stray closing tags behind a call are dropped, elsewhere they are text.

White space next to ``</think>`` and before or behind a call is not part of reasoning or content; between words before
and words behind calls it is kept.

What must stay true: how the text is cut into pieces changes nothing in the joined result; all text that is not part of
a tag or a call comes out; work and held-back memory are linear in the text.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from edgellm.text.deltas import (
    ContentDelta,
    ParsedDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    merged,
)
from edgellm.text.draft import Draft
from edgellm.text.functions import functions
from edgellm.text.lexer import Kind, Lexeme, Lexer
from edgellm.text.lines import LineTracker
from edgellm.text.qwen3_coder import CLOSERS, CallReader, Step

__all__ = [
    "ContentDelta",
    "OutputParser",
    "ParsedDelta",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
]


class _Place(Enum):
    """Where the answer is."""

    OPENING = auto()  # nothing but white space so far: reasoning may begin
    REASONING = auto()
    CONTENT = auto()
    OPENER = auto()  # in content, behind <tool_call>: a function must follow
    CALL = auto()


class OutputParser:
    """Feed decoded text in any pieces; deltas come out in order.

    Args:
        tools: the request's tools, in the OpenAI form.
        thinking_open: the prompt ended inside a reasoning block.
        parse_tools: without it tool syntax is text.
        id_seed: call ids are a function of it and the call's index; random when empty.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], *, thinking_open: bool, parse_tools: bool = True, id_seed: str = ""
    ) -> None:
        self._functions = functions(tools) if parse_tools else {}
        self._lexer = Lexer(tools=bool(self._functions))
        self._id_seed = id_seed or secrets.token_hex(16)
        self._place = _Place.REASONING if thinking_open else _Place.OPENING
        self._lead = thinking_open  # white space is dropped until other text comes
        self._space: list[str] = []  # white space whose place is not decided
        self._lines = LineTracker()
        self._out: list[ParsedDelta] = []
        self._said = False  # content has come out
        self._opener: list[str] = []  # <tool_call> and the white space behind it
        self._behind_call = False  # nothing but white space since a call
        self._reader: CallReader | None = None
        self._draft: Draft | None = None
        self._calls = 0

    @property
    def tool_calls(self) -> int:
        """Calls that have come out so far, complete or not."""
        return self._calls

    def feed(self, text: str) -> list[ParsedDelta]:
        for lexeme in self._lexer.feed(text):
            self._take(lexeme)
        return self._flush()

    def finish(self, ended: bool) -> list[ParsedDelta]:
        """The end of the answer.

        Args:
            ended: whether the model ended its turn: an open call is then closed to valid JSON. When it was cut (length,
                deadline, stop string, …) an open call stays as it is and gets no `ToolCallEnd`.
        """
        for lexeme in self._lexer.finish():
            self._take(lexeme)
        if self._draft is not None:
            if ended and self._draft.complete:
                self._accept_draft()
            else:
                self._refuse_draft()
        if self._reader is not None and ended:
            self._reader.end()
            self._end_call()
        if self._place is _Place.OPENER:
            self._refuse_opener()
        if not self._behind_call:
            self._emit("".join(self._space))
        return self._flush()

    def _take(self, lexeme: Lexeme) -> None:
        if self._draft is not None:
            if self._draft.take(lexeme):
                if self._draft.complete and self._place is _Place.CONTENT:
                    self._accept_draft()
                return
            self._refuse_draft()
        match self._place:
            case _Place.OPENING:
                self._take_opening(lexeme)
            case _Place.REASONING:
                self._take_reasoning(lexeme)
            case _Place.CONTENT:
                self._take_content(lexeme)
            case _Place.OPENER:
                self._take_opener(lexeme)
            case _Place.CALL:
                self._take_call(lexeme)

    def _take_opening(self, lexeme: Lexeme) -> None:
        if lexeme.blank:
            self._text(lexeme.raw)
        elif lexeme.kind is Kind.THINK:
            self._enter(_Place.REASONING)
        elif lexeme.kind is Kind.END_THINK:
            self._enter(_Place.CONTENT)
        else:
            self._place = _Place.CONTENT
            self._take(lexeme)

    def _take_reasoning(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.END_THINK:
            self._enter(_Place.CONTENT)
        elif lexeme.kind is Kind.THINK and self._lead:
            pass
        elif lexeme.kind is Kind.CALL or self._is_bare_call(lexeme):
            self._begin_draft(lexeme)
        else:
            self._text(lexeme.raw)

    def _enter(self, place: _Place) -> None:
        """Behind a tag of reasoning: white space at both of its sides is dropped."""
        self._place, self._lead = place, True
        self._space.clear()
        self._lines = LineTracker()

    def _take_content(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.CALL:
            self._place, self._opener = _Place.OPENER, [lexeme.raw]
        elif self._is_bare_call(lexeme):
            self._begin_draft(lexeme)
        elif self._behind_call and lexeme.kind in CLOSERS:
            self._space.clear()
        elif self._lead and lexeme.kind is Kind.END_THINK:
            pass
        else:
            self._text(lexeme.raw)

    def _take_opener(self, lexeme: Lexeme) -> None:
        if lexeme.blank:
            self._opener.append(lexeme.raw)
        elif lexeme.kind is Kind.FUNCTION and lexeme.name in self._functions:
            self._opener.clear()
            self._space.clear()
            self._out.append(ToolCallStart(self._calls, self._call_id(self._calls), lexeme.name))
            self._reader = CallReader(self._functions[lexeme.name], self._functions, strict=False)
            self._calls += 1
            self._place = _Place.CALL
        else:
            self._refuse_opener()
            self._take(lexeme)

    def _take_call(self, lexeme: Lexeme) -> None:
        assert self._reader is not None
        step = self._reader.take(lexeme)
        self._out.append(ToolCallArguments(self._calls - 1, self._reader.arguments()))
        if step is not Step.TAKEN:
            self._end_call()
        if step is Step.ENDED_BEFORE:
            self._take(lexeme)

    def _refuse_opener(self) -> None:
        self._place = _Place.CONTENT
        self._text("".join(self._opener))
        self._opener.clear()

    def _end_call(self) -> None:
        assert self._reader is not None
        index = self._calls - 1
        self._out += [ToolCallArguments(index, self._reader.arguments()), ToolCallEnd(index)]
        self._reader = None
        self._after_calls()

    def _is_bare_call(self, lexeme: Lexeme) -> bool:
        """A declared function without ``<tool_call>`` where one may stand."""
        if lexeme.kind is not Kind.FUNCTION or lexeme.name not in self._functions:
            return False
        return self._behind_call or (self._lines.at_start and not self._lines.in_fence)

    def _begin_draft(self, lexeme: Lexeme) -> None:
        in_reasoning = self._place is _Place.REASONING
        self._draft = Draft(self._functions, self._calls, self._call_id, in_reasoning=in_reasoning)
        self._draft.take(lexeme)

    def _accept_draft(self) -> None:
        assert self._draft is not None
        self._space.clear()
        self._out += self._draft.deltas
        self._calls += self._draft.calls
        self._draft = None
        self._after_calls()

    def _refuse_draft(self) -> None:
        assert self._draft is not None
        text = self._draft.text
        self._draft = None
        self._text(text)

    def _after_calls(self) -> None:
        self._place = _Place.CONTENT
        self._behind_call = True
        self._lead = not self._said
        self._lines = LineTracker()

    def _text(self, text: str) -> None:
        """Reasoning or content; white space at its end waits for what follows."""
        self._lines.feed(text)
        if self._lead:
            text = text.lstrip()
            self._lead = not text
        words = text.rstrip()
        if not words:
            self._space.append(text)
            return
        self._behind_call = False
        self._emit("".join(self._space) + words)
        self._space = [text[len(words) :]]

    def _emit(self, text: str) -> None:
        if self._place is _Place.REASONING:
            self._out.append(ReasoningDelta(text))
        else:
            self._out.append(ContentDelta(text))
            self._said = self._said or bool(text)

    def _flush(self) -> list[ParsedDelta]:
        out, self._out = merged(self._out), []
        return out

    def _call_id(self, index: int) -> str:
        return "call_" + hashlib.sha256(f"{self._id_seed}:{index}".encode()).hexdigest()[:24]
