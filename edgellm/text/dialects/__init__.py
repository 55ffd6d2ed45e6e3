"""The registry of dialects: how the families of models write reasoning and tool calls, behind one interface.

What must stay true, in every dialect: how the text is cut into pieces changes nothing in the joined result; only calls
to declared functions come out as calls, each with its own index, one name and one JSON object of arguments; all other
text comes out as reasoning or content; nothing the model writes is ever evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from edgellm.errors import ConfigError
from edgellm.text.deltas import ParsedDelta
from edgellm.text.dialects import deepseek_v3, glm45, harmony, hermes, llama3_json, mistral, nemotron_deci, pythonic
from edgellm.text.dialects.detection import detect
from edgellm.text.dialects.harmony import HarmonyParser
from edgellm.text.dialects.tagged import Syntax, TaggedParser
from edgellm.text.parser import OutputParser

__all__ = ["ALIASES", "DIALECTS", "AnswerParser", "canonical", "detect", "make_parser", "visible_markers"]


class AnswerParser(Protocol):
    """Takes an answer apart. Feed decoded text in any pieces; deltas come out in order."""

    @property
    def tool_calls(self) -> int:
        """Calls that have come out so far, complete or not."""

    def feed(self, text: str) -> list[ParsedDelta]:
        """What `text` adds to the answer."""

    def finish(self, ended: bool) -> list[ParsedDelta]:
        """The end of the answer.

        Args:
            ended: whether the model ended its turn: an open call is then closed to valid JSON. When it was cut (length,
                deadline, stop string, …) an open call stays as it is and gets no `ToolCallEnd`.
        """


_TAGGED: Final[Mapping[str, Syntax]] = {
    "hermes": hermes.SYNTAX,
    "nemotron_deci": nemotron_deci.SYNTAX,
    "llama3_json": llama3_json.SYNTAX,
    "mistral": mistral.SYNTAX,
    "pythonic": pythonic.SYNTAX,
    "deepseek_v3": deepseek_v3.SYNTAX,
    "glm45": glm45.SYNTAX,
}
_MARKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen3_coder": ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    "hermes": hermes.MARKERS,
    "nemotron_deci": nemotron_deci.MARKERS,
    "llama3_json": llama3_json.MARKERS,
    "mistral": mistral.MARKERS,
    "pythonic": pythonic.MARKERS,
    "deepseek_v3": deepseek_v3.MARKERS,
    "glm45": glm45.MARKERS,
    "harmony": harmony.MARKERS,
}
DIALECTS: Final[tuple[str, ...]] = tuple(_MARKERS)
ALIASES: Final[Mapping[str, str]] = {"qwen3": "hermes"}


def make_parser(
    dialect: str,
    tools: Sequence[Mapping[str, Any]],
    *,
    thinking_open: bool,
    parse_tools: bool = True,
    id_seed: str = "",
) -> AnswerParser:
    """A parser of one answer.

    Args:
        dialect: one of `DIALECTS` or `ALIASES`.
        tools: the request's tools, in the OpenAI form.
        thinking_open: the prompt ended inside a reasoning block.
        parse_tools: without it tool syntax is text.
        id_seed: call ids are a function of it and the call's index; random when empty.

    Raises:
        ConfigError: there is no such dialect.
    """
    name = canonical(dialect)
    if name in _TAGGED:
        return TaggedParser(_TAGGED[name], tools, thinking_open=thinking_open, parse_tools=parse_tools, id_seed=id_seed)
    parser = HarmonyParser if name == "harmony" else OutputParser
    return parser(tools, thinking_open=thinking_open, parse_tools=parse_tools, id_seed=id_seed)


def visible_markers(dialect: str) -> frozenset[str]:
    """Texts of added tokens that a detokenizer must keep in the text for this dialect's parser.

    Raises:
        ConfigError: there is no such dialect.
    """
    return frozenset(_MARKERS[canonical(dialect)])


def canonical(dialect: str) -> str:
    """The name in `DIALECTS` of a dialect or alias.

    Raises:
        ConfigError: there is no such dialect.
    """
    name = ALIASES.get(dialect, dialect)
    if name not in _MARKERS:
        raise ConfigError(f"dialect: must be one of {', '.join((*DIALECTS, *ALIASES))}, got {dialect!r:.60}")
    return name
