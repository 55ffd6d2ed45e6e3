"""Grammars of answers that have to be tool calls, or may hold some; one form for each dialect.

What must stay true: whatever the grammar lets through is read by the dialect's parser as calls of the given functions,
with arguments that fit their schemas. Parameters come in the order of the schema: a grammar for any order would grow
with the factorial of their number.

Limits: keywords of a schema that llguidance does not know are ignored here (many tools carry some), unless the tool
says ``strict: true``; a string parameter of a tag dialect is free text whatever its ``pattern`` or length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edgellm.errors import RequestError
from edgellm.text.grammars import HEADER, Grammar, json_schema, quoted
from edgellm.text.values import allowed_types

_TEXT: Final = "/(?s:.*)/"
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Json:
    """Calls whose arguments are one JSON object; ``{}`` in `head` is the function's name."""

    head: str
    tail: str
    begin: str = ""
    separator: str = "\n"
    end: str = ""


@dataclass(frozen=True, slots=True)
class _Tags:
    """Calls with a tag for each parameter; ``{}`` is a name."""

    head: str
    tail: str
    parameter: str
    close: str  # behind a value
    begin: str = ""
    separator: str = "\n"
    end: str = ""


_Form = _Json | _Tags


_FORMS: Final[Mapping[str, _Form]] = {
    "qwen3_coder": _Tags(
        "<tool_call>\n<function={}>\n", "</function>\n</tool_call>", "<parameter={}>\n", "\n</parameter>\n"
    ),
    "glm45": _Tags("<tool_call>{}\n", "</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n"),
    "hermes": _Json('<tool_call>\n{{"name": "{}", "arguments": ', "}\n</tool_call>"),
    "nemotron_deci": _Json('{{"name": "{}", "arguments": ', "}", "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "llama3_json": _Json('{{"name": "{}", "parameters": ', "}", separator="; "),
    "mistral": _Json('{{"name": "{}", "arguments": ', "}", "[TOOL_CALLS][", ", ", "]"),
    "deepseek_v3": _Json(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
}


class ToolGrammars:
    """Makes the grammars of one model's calls.

    Args:
        dialect: how the model writes calls.
        split: `Tokenizer.split`.
        added: `Tokenizer.added`: their texts are tokens, which text never matches.
    """

    def __init__(self, dialect: str, split: Callable[[str], list[str]], added: Mapping[str, int]) -> None:
        self._dialect = dialect
        self._split = split
        self._added = added

    def forced(self, tools: Tools, *, several: bool) -> Grammar:
        """One call of one of `tools` (in the OpenAI form) or, with `several`, one or more, and nothing else.

        Raises:
            RequestError: calls of this dialect cannot be forced.
        """
        form = _FORMS.get(self._dialect)
        if form is None:
            known = ", ".join(_FORMS)
            message = f"calls cannot be forced in the {self._dialect} form; they can in: {known}"
            raise RequestError(f"tool_choice: {message}", param="tool_choice")
        writer = _Writer(form, self._split, self._added)
        more = f" ({writer.literal(form.separator)} call)*" if several else ""
        return writer.grammar(tools, f"{writer.literal(form.begin)} call{more} {writer.literal(form.end)}")

    def free(self, tools: Tools) -> Grammar | None:
        """Text in which every call is one of `tools` with arguments that fit; None where no token begins a call."""
        form = _FORMS.get(self._dialect)
        if form is None or self._split(form.begin + form.head)[0]:
            return None
        writer = _Writer(form, self._split, self._added)
        more = f"({writer.literal(form.separator)} call)*"
        return writer.grammar(
            tools, f"{_TEXT} ({writer.literal(form.begin)} call {more} {writer.literal(form.end)} {_TEXT})*"
        )


class _Writer:
    """The rules of one grammar."""

    def __init__(self, form: _Form, split: Callable[[str], list[str]], added: Mapping[str, int]) -> None:
        self._form = form
        self._split = split
        self._added = added
        self._rules: list[str] = []

    def grammar(self, tools: Tools, start: str) -> Grammar:
        calls = []
        for tool in tools:
            function = tool.get("function", tool)
            calls.append(
                self._call(function["name"], function.get("parameters"), strict=function.get("strict") is True)
            )
        return {"lark_grammar": HEADER + "\n".join([f"start: {start}", f"call: {' | '.join(calls)}", *self._rules])}

    def _call(self, name: str, parameters: Any, *, strict: bool) -> str:
        form = self._form
        schema = parameters if isinstance(parameters, Mapping) else {}
        if isinstance(form, _Json):
            arguments = self._json({"additionalProperties": False, **schema, "type": "object"}, strict=strict)
        else:
            arguments = " ".join(self._parameters(form, schema, strict=strict))
        return self._rule(f"{self.literal(form.head.format(name))} {arguments} {self.literal(form.tail)}")

    def _parameters(self, form: _Tags, schema: Mapping[str, Any], *, strict: bool) -> list[str]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return []
        required = schema.get("required") or ()
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        found = []
        for name, own in properties.items():
            value = self._value(form, own, schema, definitions, strict=strict)
            rule = self._rule(f"{self.literal(form.parameter.format(name))} {value}")
            found.append(rule if name in required else f"{rule}?")
        return found

    def _value(
        self, form: _Tags, own: Any, root: Mapping[str, Any], definitions: Mapping[str, Any], *, strict: bool
    ) -> str:
        """A value and the tag behind it: text where the schema allows any, else JSON or one of the texts listed."""
        types = allowed_types(own, root)
        options = own.get("enum") if isinstance(own, Mapping) else None
        if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
            texts = " | ".join(quoted(option) for option in options)
            return f"({texts}) {self.literal(form.close)}"
        if types and "string" not in types:
            return f"{self._json({**definitions, **own}, strict=strict)} {self.literal(form.close)}"
        if self._split(form.close)[0] == "":  # it begins with a token, which no text can hold
            return f"{_TEXT} {self.literal(form.close)}"
        return self._rule(_TEXT, f"[suffix={quoted(form.close)}]")

    def _json(self, schema: Mapping[str, Any], *, strict: bool) -> str:
        return self._rule(f"%json {json.dumps(json_schema(schema, lenient=not strict), ensure_ascii=False)}")

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def literal(self, text: str) -> str:
        """A Lark expression for `text`, in which tokens of the tokenizer are tokens."""
        parts = [
            f"<[{self._added[part]}]>" if place % 2 else quoted(part)
            for place, part in enumerate(self._split(text))
            if part
        ]
        return " ".join(parts)
