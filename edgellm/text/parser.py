"""The structure of an answer in the qwen3_coder form: reasoning first, then content and tool calls.

Reasoning and white space follow the rules of `answer`.

Tool calls (the body's rules are in `qwen3_coder`):
* A call starts with ``<tool_call>``, white space, ``<function=NAME>`` of a declared name. Anything else that begins
  like a call is text and flows on. An undeclared function is text: nobody could run it.
* Without ``<tool_call>`` a call starts with ``<function=NAME>`` of a declared name at the start of a line, outside
  fenced code, and counts only if a complete, well-formed body follows; until then it is held back.
* Tool syntax in reasoning stays reasoning: drafts must not run. Only when the turn ends inside the block, and ends with
  well-formed calls, these are made; text from the first of them on is therefore held back until that is decided.
* Stray closing tags behind a call are dropped, elsewhere they are text.

What must stay true: how the text is cut into pieces changes nothing in the joined result; all text that is not part of
a tag or a call comes out; work and held-back memory are linear in the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgellm.text.answer import AnswerWriter
from edgellm.text.deltas import ParsedDelta
from edgellm.text.draft import Draft
from edgellm.text.functions import functions
from edgellm.text.lexer import Kind, Lexeme, Lexer
from edgellm.text.qwen3_coder import CLOSERS, CallReader, Step


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
        self._answer = AnswerWriter(thinking_open=thinking_open, id_seed=id_seed)
        self._opener: list[str] = []  # in content: <tool_call> and the white space behind it; a function must follow
        self._reader: CallReader | None = None
        self._draft: Draft | None = None

    @property
    def tool_calls(self) -> int:
        """Calls that have come out so far, complete or not."""
        return self._answer.calls

    def feed(self, text: str) -> list[ParsedDelta]:
        for lexeme in self._lexer.feed(text):
            self._take(lexeme)
        return self._answer.flush()

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
                self._accept_draft(self._draft)
            else:
                self._refuse_draft(self._draft)
        if self._reader is not None and ended:
            self._reader.end()
            self._end_call(self._reader)
        self._refuse_opener()
        self._answer.finish()
        return self._answer.flush()

    def _take(self, lexeme: Lexeme) -> None:
        if self._draft is not None:
            if self._draft.take(lexeme):
                if self._draft.complete and not self._answer.reasoning:
                    self._accept_draft(self._draft)
                return
            self._refuse_draft(self._draft)
        if self._reader is not None:
            self._take_call(self._reader, lexeme)
        elif self._opener:
            self._take_opener(lexeme)
        elif self._answer.reasoning:
            self._take_reasoning(lexeme)
        else:
            self._take_content(lexeme)

    def _take_reasoning(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.CALL or self._is_bare_call(lexeme):
            self._begin_draft(lexeme)
        else:
            self._take_text(lexeme)

    def _take_content(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.CALL:
            self._opener = [lexeme.raw]
        elif self._is_bare_call(lexeme):
            self._begin_draft(lexeme)
        elif self._answer.behind_call and lexeme.kind in CLOSERS:
            self._answer.drop_space()
        else:
            self._take_text(lexeme)

    def _take_text(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.THINK and self._answer.open_thinking():
            return
        if lexeme.kind is Kind.END_THINK and self._answer.close_thinking():
            return
        self._answer.text(lexeme.raw)

    def _take_opener(self, lexeme: Lexeme) -> None:
        if lexeme.blank:
            self._opener.append(lexeme.raw)
        elif lexeme.kind is Kind.FUNCTION and lexeme.name in self._functions:
            self._opener.clear()
            self._answer.start_call(lexeme.name)
            self._reader = CallReader(self._functions[lexeme.name], self._functions, strict=False)
        else:
            self._refuse_opener()
            self._take(lexeme)

    def _take_call(self, reader: CallReader, lexeme: Lexeme) -> None:
        step = reader.take(lexeme)
        self._answer.arguments(reader.arguments())
        if step is not Step.TAKEN:
            self._end_call(reader)
        if step is Step.ENDED_BEFORE:
            self._take(lexeme)

    def _refuse_opener(self) -> None:
        if self._opener:
            self._answer.text("".join(self._opener))
            self._opener.clear()

    def _end_call(self, reader: CallReader) -> None:
        self._answer.arguments(reader.arguments())
        self._answer.end_call()
        self._reader = None

    def _is_bare_call(self, lexeme: Lexeme) -> bool:
        """A declared function without ``<tool_call>`` where one may stand."""
        if lexeme.kind is not Kind.FUNCTION or lexeme.name not in self._functions:
            return False
        return self._answer.behind_call or self._answer.lines.plain_start

    def _begin_draft(self, lexeme: Lexeme) -> None:
        self._draft = Draft(self._functions, in_reasoning=self._answer.reasoning)
        self._draft.take(lexeme)

    def _accept_draft(self, draft: Draft) -> None:
        self._answer.whole_calls(draft.calls)
        self._draft = None

    def _refuse_draft(self, draft: Draft) -> None:
        self._draft = None
        self._answer.text(draft.text)
