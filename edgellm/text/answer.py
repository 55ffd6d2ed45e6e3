"""Where the text of an answer goes: reasoning, content or between calls. The one owner of the reasoning split, of white
space next to tags and calls, and of call indices and ids; every dialect's parser writes through it.

Reasoning:
* It is the first block only, opened by the prompt or by an opening tag at the start of the answer, closed by the first
  closing tag. Another opener at the start of an open block is dropped; a later one is text.
* A closing tag before the first word of content is dropped, elsewhere in content it is text.
* A block that is never closed is reasoning to the end.
* A dialect that has several blocks calls `enter` itself; text of a kind that came before then begins on a new line.

White space next to a closing tag and before or behind a call is not part of reasoning or content; between words before
and words behind calls it is kept.

What must stay true: how the text is cut into pieces changes nothing in the joined result; all words given come out;
indices are 0, 1, … in the order of the calls; an id is a function of the seed and the index.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from edgellm.text.deltas import (
    ContentDelta,
    ParsedDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    merged,
)
from edgellm.text.lines import LineTracker


class AnswerWriter:
    """Args:
        thinking_open: the prompt ended inside a reasoning block.
        id_seed: call ids are a function of it and the call's index; random when empty.

    Attributes:
        reasoning: text goes to reasoning.
        behind_call: nothing but white space since a call.
        calls: calls begun so far.
        lines: where the text stands in its lines since the last tag of reasoning or call.
    """

    def __init__(self, *, thinking_open: bool, id_seed: str) -> None:
        self.reasoning = thinking_open
        self.behind_call = False
        self.calls = 0
        self.lines = LineTracker()
        self._id_seed = id_seed or secrets.token_hex(16)
        self._opening = not thinking_open  # nothing but white space so far: reasoning may begin
        self._lead = thinking_open  # white space is dropped until other text comes
        self._space: list[str] = []  # white space whose place is not decided
        self._break = ""  # goes before the next words
        self._spoken: set[bool] = set()  # kinds of text that have come out, by `reasoning`
        self._out: list[ParsedDelta] = []

    def open_thinking(self) -> bool:
        """At an opening tag of reasoning: whether it is one here; otherwise it is text."""
        if self._opening:
            self.enter(reasoning=True)
            return True
        return self.reasoning and self._lead

    def close_thinking(self) -> bool:
        """At a closing tag of reasoning: whether it is one here, or dropped; otherwise it is text."""
        if self._opening or self.reasoning:
            self.enter(reasoning=False)
            return True
        return self._lead

    def enter(self, *, reasoning: bool) -> None:
        """Behind a tag of reasoning: white space at both of its sides is dropped."""
        self.reasoning, self._opening, self._lead = reasoning, False, True
        self._break = "\n" if reasoning in self._spoken else ""
        self._space.clear()
        self.lines = LineTracker()

    def text(self, text: str) -> None:
        """Reasoning or content; white space at its end waits for what follows."""
        self.lines.feed(text)
        if self._lead:
            text = text.lstrip()
            self._lead = not text
        words = text.rstrip()
        if not words:
            self._space.append(text)
            return
        self.behind_call = self._opening = False
        self._emit(self._break + "".join(self._space) + words)
        self._spoken.add(self.reasoning)
        self._space = [text[len(words) :]]
        self._break = ""

    def start_call(self, name: str) -> None:
        """A call to a declared function. Its arguments and its end follow before anything else."""
        self._space.clear()
        self._break = ""
        self._out.append(ToolCallStart(self.calls, self._call_id(self.calls), name))
        self.calls += 1
        self.reasoning = self._opening = False

    def arguments(self, fragment: str) -> None:
        """More of the JSON object of the call that was begun last."""
        self._out.append(ToolCallArguments(self.calls - 1, fragment))

    def end_call(self, *, whole: bool = True) -> None:
        """Behind a call.

        Args:
            whole: it may be executed; one that turned out malformed gets no `ToolCallEnd`.
        """
        if whole:
            self._out.append(ToolCallEnd(self.calls - 1))
        self.behind_call = True
        self._lead = False not in self._spoken
        self.lines = LineTracker()

    def whole_calls(self, calls: Iterable[tuple[str, str]]) -> None:
        """Calls that are complete already: name and arguments of each."""
        for name, arguments in calls:
            self.start_call(name)
            self.arguments(arguments)
            self.end_call()

    def drop_space(self) -> None:
        """Behind a stray closing tag next to a call."""
        self._space.clear()

    def finish(self) -> None:
        """At the end of the answer."""
        if not self.behind_call:
            self._emit("".join(self._space))

    def flush(self) -> list[ParsedDelta]:
        """What came since the last time."""
        out, self._out = merged(self._out), []
        return out

    def _emit(self, text: str) -> None:
        self._out.append(ReasoningDelta(text) if self.reasoning else ContentDelta(text))

    def _call_id(self, index: int) -> str:
        return "call_" + hashlib.sha256(f"{self._id_seed}:{index}".encode()).hexdigest()[:24]
