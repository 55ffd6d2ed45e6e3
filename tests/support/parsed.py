"""An answer put back together from parser deltas, as a client does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from edgellm.text.deltas import (
    ContentDelta,
    ParsedDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from edgellm.text.dialects import make_parser


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool; a property is a JSON type name or a schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


def call(name: str, **parameters: str) -> str:
    """A call as the model writes it."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


# Ways to write calls; the first word is the dialect.
FORMS = (
    "qwen3_coder",
    "hermes",
    "nemotron_deci",
    "llama3_json",
    "mistral list",
    "mistral named",
    "pythonic",
    "deepseek_v3 fenced",
    "deepseek_v3 plain",
    "glm45",
    "harmony",
)


def calls(form: str, *made: tuple[str, dict[str, Any]]) -> str:
    """Calls of one turn as the model writes them."""
    inner, between, outer = _FORMS[form]
    return outer.replace("…", between.join(inner(name, arguments) for name, arguments in made))


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(name: str, arguments: dict[str, Any]) -> str:
    return f'{{"name": "{name}", "arguments": {as_json(arguments)}}}'


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def _glm(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


_DEEPSEEK = "<｜tool▁calls▁begin｜>…<｜tool▁calls▁end｜>"
_FORMS: dict[str, tuple[Callable[[str, dict[str, Any]], str], str, str]] = {
    "qwen3_coder": (lambda n, a: call(n, **{key: _text(value) for key, value in a.items()}), "\n", "…"),
    "hermes": (lambda n, a: f"<tool_call>\n{_object(n, a)}\n</tool_call>", "\n", "…"),
    "nemotron_deci": (_object, ", ", "<TOOLCALL>[…]</TOOLCALL>"),
    "llama3_json": (lambda n, a: f'{{"name": "{n}", "parameters": {as_json(a)}}}', "; ", "…"),
    "mistral list": (_object, ", ", "[TOOL_CALLS] […]"),
    "mistral named": (lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{as_json(a)}", "", "…"),
    "pythonic": (lambda n, a: f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})", ", ", "[…]"),
    "deepseek_v3 fenced": (
        lambda n, a: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{as_json(a)}\n```<｜tool▁call▁end｜>",
        "\n",
        _DEEPSEEK,
    ),
    "deepseek_v3 plain": (
        lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{as_json(a)}<｜tool▁call▁end｜>",
        "",
        _DEEPSEEK,
    ),
    "glm45": (_glm, "\n", "…"),
    "harmony": (
        lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{as_json(a)}<|call|>",
        "<|start|>assistant",
        "<|start|>assistant…",
    ),
}


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
    text: str,
    tools: Sequence[Any],
    *,
    dialect: str = "qwen3_coder",
    thinking: bool = False,
    finish: str = "stop",
    sizes: Sequence[int] = (),
) -> Answer:
    """Parse in pieces of the given sizes (the last one repeats); all at once without sizes."""
    parser = make_parser(dialect, tools, thinking_open=thinking, id_seed="t")
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
