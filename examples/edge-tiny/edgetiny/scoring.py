"""One held-out conversation through the runtime, and what its answer is worth.

A call is valid when the server would pass it on: it names a listed function, and its arguments are a JSON object with
every required parameter, no unknown one, and values of the declared types. It is exact when name and all arguments are
the expected ones, in order, and nothing else is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edgellm.decode.params import SamplingParams
from edgellm.runtime.llm import LLM
from edgellm.runtime.results import ChatResult
from edgetiny.conversations import conversation

KINDS: Final = ("single", "multiple", "typed", "parallel", "irrelevant", "multi_turn", "shell")
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True)
class Score:
    kind: str
    due: int  # calls expected
    called: bool
    valid: bool  # every call made is valid, and one was made
    exact: bool  # the calls are the expected ones
    verify_steps: int
    emitted: int  # tokens that those steps gave
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        return self.exact if self.due else not self.called


def evaluate(llm: LLM, seed: int, index: int, kind: str) -> Score:
    """Let the model write the last assistant turn of a held-out conversation of the last stage."""
    conv = conversation(seed, index, "held_out", 1.0, kind)
    sampling = SamplingParams(temperature=0.0, max_tokens=512)
    answer = llm.chat(conv["messages"][:-1], sampling, tools=conv["tools"], enable_thinking=False)
    calls = _calls(answer)
    expected = [(call["name"], call["arguments"]) for call in conv["expected"]]
    usage = answer.result.usage
    return Score(
        kind=kind,
        due=len(expected),
        called=bool(answer.tool_calls),
        valid=bool(calls) and all(valid_call(call, conv["tools"] or []) for call in calls),
        exact=calls == expected,
        verify_steps=usage.verify_steps,
        emitted=usage.verify_steps + usage.accepted_tokens,
        expected=json.dumps(conv["expected"]),
        answer=answer.result.text,
    )


def summarize(scores: Sequence[Score]) -> dict[str, float | int | None]:
    """The figures by which the model is judged. Turns due to be answered in words are not counted."""
    due = [score for score in scores if score.due]
    unfit = [score for score in scores if score.kind == "irrelevant"]
    steps = sum(score.verify_steps for score in due)
    return {
        "conversations": len(scores),
        "calls_due": len(due),
        "valid_call_rate": _share([score.valid for score in due]),
        "exact_call_rate": _share([score.exact for score in due]),
        "no_call_rate": _share([not score.called for score in unfit]),
        "mean_accepted_length": sum(score.emitted for score in due) / steps if steps else None,
    }


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def _calls(answer: ChatResult) -> list[tuple[str, Any]]:
    """(name, arguments) of each call; arguments that are not JSON stay text."""
    found: list[tuple[str, Any]] = []
    for call in answer.tool_calls:
        try:
            found.append((call.name, json.loads(call.arguments)))
        except ValueError:
            found.append((call.name, call.arguments))
    return found


def valid_call(call: tuple[str, Any], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a server could pass the call (name, arguments) on to the function it names."""
    name, arguments = call
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name not in functions or not isinstance(arguments, dict):
        return False
    schema = functions[name]
    properties = schema.get("properties", {})
    return (
        set(schema.get("required", ())) <= set(arguments)
        and set(arguments) <= set(properties)
        and all(_fits(value, properties[key]) for key, value in arguments.items())
    )


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "string")
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES[kind]) and value in schema.get("enum", [value])
