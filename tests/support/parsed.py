"""An answer put back together from parser deltas, as a client does."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from edgellm.text.parser import (
    ContentDelta,
    OutputParser,
    ParsedDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool; a property is a JSON type name or a schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


def call(name: str, **parameters: str) -> str:
    """A call as the model writes it."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


class Answer:
    """content, reasoning and calls [(name, arguments text)]; asserts the rules of streams on the way."""

    def __init__(self) -> None:
        self.content, self.reasoning = "", ""
        self.calls: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.ended: list[int] = []

    def add(self, deltas: Sequence[ParsedDelta]) -> None:
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    assert text
                    self.content += text
                case ReasoningDelta(text):
                    assert text
                    self.reasoning += text
                case ToolCallStart(index, call_id, name):
                    assert index == len(self.calls)
                    self.calls.append((name, ""))
                    self.ids.append(call_id)
                case ToolCallArguments(index, fragment):
                    assert index == len(self.calls) - 1
                    assert fragment
                    self.calls[index] = (self.calls[index][0], self.calls[index][1] + fragment)
                case ToolCallEnd(index):
                    assert index == len(self.calls) - 1
                    self.ended.append(index)

    def arguments(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(text)) for name, text in self.calls]

    def key(self) -> tuple[Any, ...]:
        return self.content, self.reasoning, tuple(self.calls), tuple(self.ended)


def parse(
    text: str, tools: Sequence[Any], *, thinking: bool = False, finish: str = "stop", sizes: Sequence[int] = ()
) -> Answer:
    """Parse in pieces of the given sizes (the last one repeats); all at once without sizes."""
    parser = OutputParser(tools, thinking_open=thinking, parse_tools=True, id_seed="t")
    answer, position, turn = Answer(), 0, 0
    while position < len(text):
        size = sizes[min(turn, len(sizes) - 1)] if sizes else len(text)
        answer.add(parser.feed(text[position : position + size]))
        position, turn = position + size, turn + 1
    answer.add(parser.finish(finish == "stop"))
    return answer


def parse_all_ways(text: str, tools: Sequence[Any], **options: Any) -> Answer:
    """Parse whole, by single characters and in random pieces; all must agree."""
    whole = parse(text, tools, **options)
    rng = random.Random(0)
    ways = [[1], [2], [3], [5], [8], [13]] + [[rng.randint(1, 9) for _ in range(40)] for _ in range(12)]
    for sizes in ways:
        assert parse(text, tools, sizes=sizes, **options).key() == whole.key(), sizes
    return whole
