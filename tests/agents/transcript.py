"""What a prompt says, read back from its tokens: the tools, who asked for what, calls and their results.

The inverse of the family's chat template. Turns are cut at control tokens, which no client's text can contain; calls
are looked for in answers only, results only where calls wait for some: a text that quotes the format is not mistaken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edgellm.text.tokenizer import Tokenizer

_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>(?=\n<tool_response>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the template prints it, with its result once there is one; values are text.

    `asked`: how many texts of users came before it.
    """

    asked: int
    name: str
    arguments: dict[str, str]
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """Attributes:
    tools: parameter schema of each declared tool.
    asked: what users said, in order.
    calls: in order.
    thinking_open: the answer starts inside a think block.
    """

    tools: dict[str, dict[str, Any]]
    asked: tuple[str, ...]
    calls: tuple[Call, ...]
    thinking_open: bool


def read_transcript(tokenizer: Tokenizer, prompt: Sequence[int]) -> Transcript:
    """`prompt`: tokens that the checkpoints' own chat template made, with the opening of an answer at the end."""
    turns = list(_turns(tokenizer, prompt))
    tools: dict[str, dict[str, Any]] = {}
    asked: list[str] = []
    calls: list[tuple[int, str, dict[str, str]]] = []
    results: list[str] = []
    for role, text in turns[:-1]:
        if role == "system" and text.startswith("# Tools") and (found := _TOOLS.search(text)):
            declared = [json.loads(line) for line in found[1].split("\n")]
            tools |= {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in declared}
        elif role == "assistant":
            calls += [(len(asked), name, dict(_PARAMETER.findall(body))) for name, body in _CALL.findall(text)]
        elif role == "user" and len(results) < len(calls) and (found_results := _RESULT.findall(text)):
            results += found_results[: len(calls) - len(results)]  # behind them may stand what the agent itself says
        elif role == "user":
            asked.append(text)
    padded: list[str | None] = [*results, *[None] * (len(calls) - len(results))]
    paired = [Call(*call, result) for call, result in zip(calls, padded, strict=False)]
    opening = turns[-1][1]
    return Transcript(tools, tuple(asked), tuple(paired), "<think>" in opening and "</think>" not in opening)


def _turns(tokenizer: Tokenizer, prompt: Sequence[int]) -> Iterator[tuple[str, str]]:
    """(role, text) of each turn; the last one is the open answer."""
    start, end = tokenizer.added["<|im_start|>"], tokenizer.added["<|im_end|>"]
    turn: list[int] = []
    for token in [*prompt, start]:
        if token == start and turn:
            role, _, text = tokenizer.decode(turn).partition("\n")
            yield role, text.removesuffix("\n")
            turn = []
        elif token not in (start, end):
            turn.append(token)
