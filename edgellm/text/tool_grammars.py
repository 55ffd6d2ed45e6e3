"""Grammars of answers that have to be tool calls, or may hold some; one form for each dialect.

What must stay true: whatever the grammar lets through is read by the dialect's parser as calls of the given functions,
with arguments that fit their schemas. Parameters come in the order of the schema: a grammar for any order would grow
with the factorial of their number.

Limits: keywords of a schema that llguidance does not know are ignored here (many tools carry some), unless the tool
says ``strict: true``. In a tag dialect only the parameters under ``properties`` and ``required`` are written; a string
parameter is free text whatever its ``pattern`` or length (with ``strict: true`` such a keyword is refused), except that
it cannot hold what the parser would take for its end; a JSON value whose strings hold that is cut there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from edgellm.errors import RequestError
from edgellm.text.grammars import HEADER, Grammar, json_schema, quoted, slashed
from edgellm.text.schemas import (
    beyond_properties,
    beyond_text,
    check_schema,
    followed,
    listed,
    parameters_of,
    standalone,
    texts,
)
from edgellm.text.values import allowed_types

_PARAMETER_NAME: Final = re.compile(r"[^<>\s](?:[^<>\n]{0,253}[^<>\s])?")  # what a tag can carry
_BLANK: Final = r"[\s\x1c-\x1f]*"
_MAX_CHARS: Final = 1 << 20  # of all rules: what several parameters refer to is written for each
_MAX_WORK: Final = 2_000_000  # parts of schemas that are looked at: all parts of a tool's, for each of its parameters
Tools = Sequence[Mapping[str, Any]]
# Name of a function whose string parameters hold such text: a Lark grammar, or the pattern of a regular expression.
# Where strings are written as JSON it has no effect.
Texts = Mapping[str, Grammar | str]


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
    """Calls with a tag for each parameter; ``{}`` is a name.

    Attributes:
        close: behind a value.
        ends: regular expression of what ends a value although `close` does not follow; `ends_at_once`: at its start.
        bare: what begins a call where no token of its own does; a name follows.
    """

    head: str
    tail: str
    parameter: str
    close: str
    ends: str
    ends_at_once: str = ""
    bare: str = ""
    begin: str = ""
    separator: str = "\n"
    end: str = ""


_Form = _Json | _Tags


_FORMS: Final[Mapping[str, _Form]] = {
    "qwen3_coder": _Tags(
        "<tool_call>\n<function={}>\n",
        "</function>\n</tool_call>",
        "<parameter={}>\n",
        "\n</parameter>\n",
        ends=rf"</parameter>{_BLANK}<|\n<parameter=|</(?:function|tool_call)>{_BLANK}<tool_call>",
        ends_at_once="<parameter=",
        bare="<function=",
    ),
    "glm45": _Tags(
        "<tool_call>{}\n",
        "</tool_call>",
        "<arg_key>{}</arg_key>\n<arg_value>",
        "</arg_value>\n",
        ends=rf"</arg_value>{_BLANK}<",
    ),
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
        texts: what the string parameters of some functions hold.
    """

    def __init__(
        self,
        dialect: str,
        split: Callable[[str], list[str]],
        added: Mapping[str, int],
        texts: Texts = MappingProxyType({}),
    ) -> None:
        self._dialect = dialect
        self._split = split
        self._added = added
        self._texts = texts

    def with_texts(self, texts: Texts) -> ToolGrammars:
        """The same, with other `texts`."""
        return ToolGrammars(self._dialect, self._split, self._added, texts)

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
        writer = _Writer(form, self._split, self._added, self._texts)
        more = f" ({writer.literal(form.separator)} call)*" if several else ""
        return writer.grammar(tools, f"{writer.literal(form.begin)} call{more} {writer.literal(form.end)}")

    def free(self, tools: Tools) -> Grammar | None:
        """Text in which every call is one of `tools` with arguments that fit; None where no token begins a call."""
        form = _FORMS.get(self._dialect)
        if form is None:
            return None
        before, token, *_ = [*self._split(form.begin + form.head), ""]
        if before or not token:
            return None
        writer = _Writer(form, self._split, self._added, self._texts)
        openers = [re.escape(token)]
        if isinstance(form, _Tags) and form.bare:
            names = "|".join(re.escape(tool.get("function", tool)["name"]) for tool in tools)
            openers.append(rf"{form.bare}\s*(?:{names})\s*>")
        text = writer.text_without("|".join(openers))
        more = f"({writer.literal(form.separator)} call)*"
        return writer.grammar(
            tools, f"{text} ({writer.literal(form.begin)} call {more} {writer.literal(form.end)} {text})*"
        )


class _Writer:
    """The rules of one grammar."""

    def __init__(self, form: _Form, split: Callable[[str], list[str]], added: Mapping[str, int], texts: Texts) -> None:
        self._form = form
        self._split = split
        self._added = added
        self._texts = texts
        self._parts: dict[str, Grammar] = {}
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._chars = 0
        self._work = 0

    def grammar(self, tools: Tools, start: str) -> Grammar:
        calls = []
        for tool in tools:
            function = tool.get("function", tool)
            calls.append(
                self._call(function["name"], function.get("parameters"), strict=function.get("strict") is True)
            )
        rules = "\n".join([f"start: {start}", f"call: {' | '.join(calls)}", *self._rules])
        return {"lark_grammar": HEADER + rules, "parts": self._parts}

    def _call(self, name: str, parameters: Any, *, strict: bool) -> str:
        form = self._form
        root = parameters if isinstance(parameters, Mapping) else {}
        try:
            parts = check_schema(root)
        except RequestError as error:
            raise RequestError(f"tools: {name}: {error}", param="tools", code=error.code) from None
        schema = parameters_of(root)
        self._work += parts * len(schema["properties"])
        if self._work > _MAX_WORK:
            raise _too_large("parts for all parameters", _MAX_WORK)
        if isinstance(form, _Json):
            name = json.dumps(name, ensure_ascii=False)[1:-1] if '"{}"' in form.head else name
            arguments = self._json({"additionalProperties": False, **schema}, root, strict=strict)
        else:
            arguments = " ".join(self._parameters(form, schema, root, name, strict=strict))
        return self._rule(f"{self.literal(form.head.format(name))} {arguments} {self.literal(form.tail)}")

    def _parameters(
        self, form: _Tags, schema: Mapping[str, Any], root: Mapping[str, Any], function: str, *, strict: bool
    ) -> list[str]:
        found = []
        if strict and (problem := beyond_properties(followed(root, root))) is not None:
            raise _not_kept(function, "the parameters", problem)
        for name, own in schema["properties"].items():
            needed = name in schema["required"]
            if strict and (problem := self._not_kept(own, root)) is not None:
                raise _not_kept(function, f"the parameter {name[:40]!r}", problem)
            if own is False or not _PARAMETER_NAME.fullmatch(name):
                if needed:
                    problem = f"tools: {function}: the required parameter {name[:40]!r} cannot be written in a call"
                    raise RequestError(problem, param="tools", code="invalid_grammar")
                continue
            rule = self._rule(
                f"{self.literal(form.parameter.format(name))} {self._value(form, own, root, function, strict=strict)}"
            )
            found.append(rule if needed else f"{rule}?")
        return found

    def _not_kept(self, own: Any, root: Mapping[str, Any]) -> str | None:
        """What a tag dialect cannot hold a strict parameter to."""
        types = allowed_types(own, root)
        written_as_json = types and "string" not in types
        return None if written_as_json or listed(own, root) is not None else beyond_text(own, root)

    def _value(self, form: _Tags, own: Any, root: Mapping[str, Any], function: str, *, strict: bool) -> str:
        """A value and the tag behind it: text where the schema allows any, else JSON or one of the texts listed."""
        types = allowed_types(own, root)
        if types and "string" not in types:
            return f"{self._json(own, root, strict=strict)} {self.literal(form.close)}"
        ends = re.compile(rf"{form.ends}|^{form.ends_at_once}" if form.ends_at_once else form.ends)
        options = [text for text in texts(listed(own, root) or (), types) if not ends.search(text)]
        if options:
            return f"({' | '.join(map(quoted, options))}) {self.literal(form.close)}"
        held = self._texts.get(function)
        if held is not None and not isinstance(held, str):
            name = f"text{len(self._parts)}"
            self._parts[name] = held
            return f"@{name} {self.literal(form.close)}"
        text = f"{self.text_without(form.ends, form.ends_at_once, held)} {self.literal(form.close)}"
        if self._split(form.close)[0] == "":  # it begins with a token, which no text can hold
            return text
        return self._rule(text, "[lazy]")

    def text_without(self, pattern: str, beginning: str = "", whole: str | None = None) -> str:
        """A terminal: any text in which `pattern` is not found, and that does not begin with `beginning`.

        Args:
            whole: a pattern that the text fits.
        """
        found = rf"(?s:.*)(?:{pattern})" + (f"|{beginning}" if beginning else "")
        body = f"/{'(?s:.*)' if whole is None else slashed(whole)}/ & ~/(?:{slashed(found)})(?s:.*)/"
        if body not in self._terminals:
            self._terminals[body] = f"TEXT{len(self._terminals)}"
            self._rules.append(f"{self._terminals[body]}: {body}")
        return self._terminals[body]

    def _json(self, schema: Any, root: Mapping[str, Any], *, strict: bool) -> str:
        whole = json_schema(standalone(schema, root, strict=strict), lenient=not strict)
        return self._rule(f"%json {json.dumps(whole, ensure_ascii=False)}")

    def _rule(self, body: str, options: str = "") -> str:
        self._chars += len(body)
        if self._chars > _MAX_CHARS:
            raise _too_large("characters", _MAX_CHARS)
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


def _not_kept(function: str, what: str, problem: str) -> RequestError:
    message = f"tools: {function}: {what}: {problem} cannot be enforced, and the tool is strict"
    return RequestError(message, param="tools", code="invalid_grammar")


def _too_large(unit: str, limit: int) -> RequestError:
    message = f"tools: their schemas are too large for a grammar: over {limit} {unit}"
    return RequestError(message, param="tools", code="invalid_grammar")
