"""The one owner of an answer's structure: reasoning first, then content and tool calls.

The reasoning block ends at the first `</think>`. Tool syntax inside it stays reasoning (a draft must not run), except
when the turn ends without `</think>`: then complete calls at its end are recovered. White space around the block's
tags is not part of either side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from edgellm.text.deltas import (
    ContentDelta,
    ParsedDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from edgellm.text.qwen3_coder import OPEN, Qwen3CoderParser

__all__ = [
    "ContentDelta",
    "OutputParser",
    "ParsedDelta",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
]

_START, _END = "<think>", "</think>"


class OutputParser:
    """Feed decoded text in any pieces; the joined deltas do not depend on the pieces.

    Args:
        tools: the request's tools.
        thinking_open: the prompt ended inside a think block.
        parse_tools: without it tool syntax is content.
        id_seed: call ids are a function of it and the index.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], *, thinking_open: bool, parse_tools: bool = True, id_seed: str = ""
    ) -> None:
        self._id_seed = id_seed or hashlib.sha256(repr(id(self)).encode()).hexdigest()
        self._tools = Qwen3CoderParser(tools if parse_tools else [], self._call_id)
        self._tool_list = tools if parse_tools else []
        self._thinking = thinking_open
        self._undecided = not thinking_open  # an answer may open its own block first thing
        self._held = ""
        self._reasoned = False
        self._lead = False  # white space after </think> is not content
        self._reasoning = ""  # kept only from the last tool-call opener on

    @property
    def tool_calls(self) -> int:
        """Calls started so far."""
        return self._tools.calls

    def feed(self, text: str) -> list[ParsedDelta]:
        out: list[ParsedDelta] = []
        self._held += text
        if self._undecided:
            stripped = self._held.lstrip()
            if len(stripped) < len(_START) and _START.startswith(stripped):
                return out
            self._undecided = False
            if stripped.startswith(_START):
                self._thinking, self._held = True, stripped[len(_START) :]
        if self._thinking:
            at = self._held.find(_END)
            if at < 0:
                self._reason(out, self._safe())
                return out
            self._reason(out, self._held[:at].rstrip())
            self._held, self._thinking, self._lead = self._held[at + len(_END) :], False, True
            self._reasoning = ""
        self._content(out)
        return out

    def finish(self, finish_reason: str) -> list[ParsedDelta]:
        """The end of the answer: `finish_reason` as the engine gives it."""
        out: list[ParsedDelta] = []
        if self._thinking:
            self._reason(out, self._held.rstrip() if finish_reason != "length" else self._held)
            self._held = ""
            if finish_reason == "stop":
                out += self._recover()
            return out
        self._undecided = False
        self._content(out)
        return out + self._tools.finish(finish_reason)

    def _content(self, out: list[ParsedDelta]) -> None:
        text, self._held = self._held, ""
        if self._lead:
            text = text.lstrip()
            self._lead = not text
        if text:
            out += self._tools.feed(text)

    def _safe(self) -> int:
        """Length of held reasoning that cannot be part of the end tag or of white space before it."""
        text = self._held
        for size in range(min(len(_END) - 1, len(text)), 0, -1):
            if _END.startswith(text[-size:]):
                return len(text[:-size].rstrip())
        return len(text.rstrip())

    def _reason(self, out: list[ParsedDelta], part: int | str) -> None:
        """Emit reasoning: the first `part` held characters, or `part` itself."""
        if isinstance(part, int):
            text, self._held = self._held[:part], self._held[part:]
        else:
            text = part
        if not self._reasoned:
            text = text.lstrip()
        if not text:
            return
        self._reasoned = True
        self._reasoning = (self._reasoning + text)[-100_000:]
        out.append(ReasoningDelta(text))

    def _recover(self) -> list[ParsedDelta]:
        """Calls at the end of a block that was never closed."""
        at = self._reasoning.rfind(OPEN)
        if at < 0 or not self._reasoning.rstrip().endswith(("</tool_call>", "</function>")):
            return []
        while (earlier := self._reasoning.rfind(OPEN, 0, at)) >= 0 and self._reasoning[earlier:at].rstrip().endswith(
            "</tool_call>"
        ):
            at = earlier
        found = self._tools.feed(self._reasoning[at:]) + self._tools.finish("stop")
        return [delta for delta in found if not isinstance(delta, ContentDelta)]

    def _call_id(self, index: int) -> str:
        return "call_" + hashlib.sha256(f"{self._id_seed}:{index}".encode()).hexdigest()[:24]
