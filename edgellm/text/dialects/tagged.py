"""The parser of dialects that mark calls by tags in the text; a `Syntax` says which, and how a call is read.

* Reasoning and white space follow the rules of `answer`.
* A call begins at an opener, where its `Place` allows it, and counts when the dialect's grammar accepts it. Otherwise
  the opener, and what was read behind it, is text and flows on: an undeclared function, malformed JSON, prose.
* A call comes out once it is certain to be one; from then on the arguments go out as they arrive. If it then turns
  out malformed, what is open is closed so that they are a JSON object, the call gets no end so that it does not run,
  and from the fault on it is text.
* Closers behind a call, and white space before and behind them, are dropped; elsewhere they are text.
* Calls in reasoning are drafts and stay reasoning. Only when the turn ends inside the block, and ends with well-formed
  calls, these are made; text from the first of them on is therefore held back until that is decided.
* At the end of the answer a begun call is closed and ended if the model ended its turn; one that was cut stays open.

What must stay true: how the text is cut into pieces changes nothing in the joined result; all text that is not part of
a tag or a call comes out; work and held-back memory are linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from edgellm.text.answer import AnswerWriter
from edgellm.text.deltas import ParsedDelta
from edgellm.text.dialects.calls import LiveCall
from edgellm.text.dialects.reading import Call, CallReader, Cursor, Reading, Step, pieces
from edgellm.text.functions import Function, functions
from edgellm.text.tags import Tags

Functions = Mapping[str, Function]


class Place(Enum):
    """Where an opener begins a call."""

    ANYWHERE = auto()
    BEHIND_CALL = auto()  # with nothing but white space and closers between
    LINE_START = auto()  # outside fenced code, or behind a call


@dataclass(frozen=True)
class Syntax:
    """How a dialect writes calls.

    Attributes:
        openers: what may begin a call, and where.
        closers: what may stand behind one.
        grammar: reads a call from behind its opener on.
        think: tags that open reasoning.
        end_think: tags that close it.
    """

    openers: Mapping[str, Place]
    closers: tuple[str, ...]
    grammar: Callable[[str, Cursor, Call, Functions], Reading[bool]]
    think: tuple[str, ...] = ("<think>",)
    end_think: tuple[str, ...] = ("</think>",)


@dataclass
class _Draft:
    """A run of calls in reasoning, with white space and closers between them.

    Attributes:
        raw: its text.
        calls: name and arguments of those that are complete.
        reader: of one that is not.
    """

    raw: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    reader: CallReader | None = None

    def take(self, reader: CallReader, text: str, at: int) -> int:
        end = reader.take(text, at)
        self.raw.append(text[at:end])
        if reader.step is Step.ENDED:
            self.calls.append((reader.call.name, reader.call.arguments()))
            self.reader = None
        return end


class TaggedParser:
    """Implements `AnswerParser`. Feed decoded text in any pieces; deltas come out in order.

    Args:
        syntax: the dialect.
        tools: the request's tools, in the OpenAI form.
        thinking_open: the prompt ended inside a reasoning block.
        parse_tools: without it tool syntax is text.
        id_seed: call ids are a function of it and the call's index; random when empty.
    """

    def __init__(
        self,
        syntax: Syntax,
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking_open: bool,
        parse_tools: bool = True,
        id_seed: str = "",
    ) -> None:
        self._syntax = syntax
        self._functions = functions(tools) if parse_tools else {}
        marks = (*syntax.openers, *syntax.closers) if self._functions else ()
        self._tags = Tags({*syntax.think, *syntax.end_think, *marks})
        self._end_think = Tags(syntax.end_think)
        self._answer = AnswerWriter(thinking_open=thinking_open, id_seed=id_seed)
        self._tail = ""  # not read yet
        self._call: LiveCall | None = None
        self._draft: _Draft | None = None

    @property
    def tool_calls(self) -> int:
        """Calls that have come out so far, complete or not."""
        return self._answer.calls

    def feed(self, text: str) -> list[ParsedDelta]:
        for piece in pieces(text):
            unread = self._tail + piece
            self._tail = unread[self._read(unread) :]
        return self._answer.flush()

    def finish(self, ended: bool) -> list[ParsedDelta]:
        """The end of the answer.

        Args:
            ended: whether the model ended its turn; otherwise it was cut (length, deadline, stop string, …).
        """
        if self._call is not None:
            self._call.finish(self._tail, ended=ended)
        else:
            self._say(self._tail)
            if ended:
                self._accept_draft()
            self._refuse_draft()
        self._answer.finish()
        return self._answer.flush()

    def _read(self, text: str) -> int:
        """Reads what can be read of `text`; returns the place behind it."""
        at = 0
        while True:
            if self._call is not None:
                at = self._call.take(text, at)
                if self._call.open:
                    return at
                self._call = None
            elif self._draft is not None and self._draft.reader is not None:
                end, tag = self._end_think.search(text, at)
                at = self._draft.take(self._draft.reader, text[:end], at)
                if self._draft.reader is None:
                    continue
                if self._draft.reader.step is Step.OPEN and not tag:
                    return at
                self._refuse_draft()
            else:
                start, tag = self._tags.search(text, at)
                self._say(text[at:start])
                at = start + len(tag)
                if not tag:
                    return at
                self._take_tag(tag)

    def _take_tag(self, tag: str) -> None:
        syntax = self._syntax
        if tag in syntax.think or tag in syntax.end_think:
            self._refuse_draft()
            if not (self._answer.open_thinking() if tag in syntax.think else self._answer.close_thinking()):
                self._answer.text(tag)
        elif self._may_open(tag):
            self._open(tag)
        elif tag in syntax.closers and self._behind_call:
            if self._draft is not None:
                self._draft.raw.append(tag)
            else:
                self._answer.drop_space()
        else:
            self._say(tag)

    @property
    def _behind_call(self) -> bool:
        return self._draft is not None or self._answer.behind_call

    def _may_open(self, tag: str) -> bool:
        match self._syntax.openers.get(tag):
            case Place.ANYWHERE:
                return True
            case Place.BEHIND_CALL:
                return self._behind_call
            case Place.LINE_START:
                return self._behind_call or self._answer.lines.plain_start
        return False

    def _open(self, tag: str) -> None:
        def grammar(cursor: Cursor, call: Call) -> Reading[bool]:
            return self._syntax.grammar(tag, cursor, call, self._functions)

        if self._answer.reasoning:
            self._draft = self._draft or _Draft()
            self._draft.raw.append(tag)
            self._draft.reader = CallReader(grammar)
        else:
            self._call = LiveCall(self._answer, grammar, tag)

    def _say(self, text: str) -> None:
        """Text outside calls and tags; in a draft only white space may come."""
        if self._draft is not None and (not text or text.isspace()):
            self._draft.raw.append(text)
            return
        self._refuse_draft()
        self._answer.text(text)

    def _accept_draft(self) -> None:
        if self._draft is None or self._draft.reader is not None:
            return
        self._answer.whole_calls(self._draft.calls)
        self._draft = None

    def _refuse_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._answer.text("".join(draft.raw))
