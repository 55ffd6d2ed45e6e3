"""The form that a request asks of its answer: `response_format`, `tool_choice`, and the names other servers use.

Rules that clients may rely on:
* The form holds for the answer, never for the reasoning in front of it.
* `tool_choice` "required" or a named function: nothing but calls. "none" leaves the tools out of the prompt: a model
  that does not see tools calls none. "allowed_tools" offers the tools that it lists and no others.
* `response_format` with tools and "auto": the answer is either such JSON or calls.
* A tool with ``strict: true`` holds every call of the request to its schema, also under "auto"; where the model's form
  of calls begins with no token of its own that has no effect.
* One form at a time: two fields that ask for one are an error, not a choice of ours. `response_format` alone may stand
  beside a `tool_choice` that forces calls: it is about answers that are none.
* A reasoning block is closed, as the template closes it, after `max_thinking_tokens`; up to three more complete a
  character. Other servers' names for it mean the same.
* A schema keyword that cannot be enforced is an error that names it. In tools that are not strict it has no effect.
* Schemas and grammars are bounded (`schemas`, `grammars`): a compiler must neither run long nor out of stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from edgellm.decode.params import SamplingParams
from edgellm.errors import RequestError
from edgellm.server.body import parse_object
from edgellm.server.fields import Fields, bad_value, unsupported, wrong_type
from edgellm.text.grammars import Grammar, choice_grammar, either, json_grammar, lark_grammar, regex_grammar
from edgellm.text.tool_grammars import ToolGrammars

MAX_CHOICES: Final = 1024
THINKING_BUDGETS: Final = ("max_thinking_tokens", "thinking_token_budget", "thinking_budget")
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """What was asked.

    Attributes:
        tools: those that the prompt shows.
        grammar: of the answer; None: free text.
        param: the field that asked for the grammar.
    """

    tools: list[Tool]
    grammar: Grammar | None
    param: str


def read_form(fields: Fields, tools: list[Tool], grammars: ToolGrammars) -> Form:
    """The form of a chat answer, given the tools of the request.

    Raises:
        RequestError: naming the field.
    """
    asked, param = read_grammar(fields, with_response_format=True)
    return shape(fields, tools, grammars, asked, param, about_words=fields.data.get("response_format") is not None)


def shape(
    fields: Fields, tools: list[Tool], grammars: ToolGrammars, asked: Grammar | None, param: str, *, about_words: bool
) -> Form:
    """The form by `tool_choice` and `parallel_tool_calls`, given what else is asked.

    Args:
        asked: grammar of the answer; `param`: the field that asks for it.
        about_words: it is about answers that are no calls, and may stand beside a choice that forces calls.

    Raises:
        RequestError: naming the field.
    """
    several = fields.boolean("parallel_tool_calls") is not False
    offered, forced = _chosen(fields, tools)
    if forced:
        if asked is not None and not about_words:
            raise bad_value(param, f"and {fields.at('tool_choice')} both ask for a form of the answer; one at a time")
        return Form(offered, grammars.forced(forced, several=several), fields.at("tool_choice"))
    if asked is None:
        strict = any(tool["function"].get("strict") is True for tool in offered)
        return Form(offered, grammars.free(offered) if strict else None, fields.at("tools"))
    if offered:
        asked = either(asked, grammars.forced(offered, several=several))
    return Form(offered, asked, param)


def read_grammar(fields: Fields, *, with_response_format: bool) -> tuple[Grammar | None, str]:
    """The grammar of the answer and the field that asks for it; (None, "") when none does."""
    found: list[tuple[Grammar, str]] = []
    if with_response_format and (asked := read_format(fields.fields("response_format"), flat=False)) is not None:
        found.append(asked)
    for name, read in _NAMES.items():
        if fields.data.get(name) is not None:
            found.append((read(fields, name), fields.at(name)))
    nested = fields.fields("structured_outputs")
    for name, read in _NESTED.items():
        if nested is not None and nested.data.get(name) not in (None, False):
            found.append((read(nested, name), nested.at(name)))
    if len(found) > 1:
        raise bad_value(found[1][1], f"and {found[0][1]} both ask for a form of the answer; one at a time")
    return found[0] if found else (None, "")


def check_end(fields: Fields, sampling: SamplingParams, grammar: Grammar | None, param: str) -> None:
    """Refuse to go on behind the end of a text that has a form."""
    if grammar is not None and sampling.ignore_eos:
        raise bad_value(fields.at("ignore_eos"), f"cannot go with {param}: behind the end of such an answer is nothing")


def read_format(asked: Fields | None, *, flat: bool) -> tuple[Grammar, str] | None:
    """The grammar that a `response_format` asks for, and the field.

    Args:
        flat: a schema stands beside the type, as `text.format` of the Responses API has it; else under `json_schema`.
    """
    if asked is None:
        return None
    match asked.string("type"):
        case None | "text":
            return None
        case "json_object":
            return json_grammar({"type": "object"}), asked.path
        case "json_schema":
            inner = asked if flat else asked.fields("json_schema")
            if inner is None:
                raise bad_value(asked.at("json_schema"), "is required")
            inner.boolean("strict")
            return _json(inner, "schema"), inner.at("schema")
        case other:
            raise unsupported(asked.at("type"), f"must be text, json_object or json_schema, got {other[:40]!r}")


def _json(fields: Fields, name: str) -> Grammar:
    """A schema, as an object or as text that holds one."""
    value = fields.data.get(name)
    if isinstance(value, str):
        try:
            value = parse_object(value.encode())
        except RequestError as error:
            raise bad_value(fields.at(name), f"holds no JSON schema: {error}") from None
    if not isinstance(value, dict):
        raise wrong_type(fields.at(name), "a JSON schema", value)
    return _made(fields.at(name), json_grammar, value)


def _any_json(fields: Fields, name: str) -> Grammar:
    if not fields.boolean(name):
        raise bad_value(fields.at(name), "must be true where it is given")
    return json_grammar({"type": "object"})


def _text(make: Callable[[str], Grammar]) -> Callable[[Fields, str], Grammar]:
    def read(fields: Fields, name: str) -> Grammar:
        value = fields.string(name)
        if not value:
            raise bad_value(fields.at(name), "must not be empty")
        return _made(fields.at(name), make, value)

    return read


def _made(path: str, make: Callable[[Any], Grammar], value: Any) -> Grammar:
    try:
        return make(value)
    except RequestError as error:
        raise RequestError(f"{path}: {error}", param=path, code=error.code) from None


def _choice(fields: Fields, name: str) -> Grammar:
    choices = fields.array(name) or []
    if not 0 < len(choices) <= MAX_CHOICES:
        raise bad_value(fields.at(name), f"must have 1 to {MAX_CHOICES} entries, got {len(choices)}")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise bad_value(f"{fields.at(name)}[{index}]", "must be a string that is not empty")
    return choice_grammar(choices)


_Reader = Callable[[Fields, str], Grammar]
_NAMES: Final[dict[str, _Reader]] = {
    "guided_json": _json,
    "guided_regex": _text(regex_grammar),
    "guided_choice": _choice,
    "guided_grammar": _text(lark_grammar),
    "json_schema": _json,
    "regex": _text(regex_grammar),
    "ebnf": _text(lark_grammar),
    "grammar": _text(lark_grammar),
}
_NESTED: Final[dict[str, _Reader]] = {
    "json": _json,
    "json_object": _any_json,
    "regex": _text(regex_grammar),
    "choice": _choice,
    "grammar": _text(lark_grammar),
}


def _chosen(fields: Fields, tools: list[Tool]) -> tuple[list[Tool], list[Tool]]:
    """The tools that the prompt shows, and those of which one has to be called."""
    path = fields.at("tool_choice")
    choice = fields.data.get("tool_choice")
    if choice is None or choice == "auto":
        return tools, []
    if choice == "none":
        return [], []
    if choice == "required":
        if not tools:
            raise bad_value(path, "is 'required', but there are no tools")
        return tools, tools
    if not isinstance(choice, dict):
        if isinstance(choice, str):
            raise bad_value(path, f"must be 'auto', 'none', 'required' or an object, got {choice[:40]!r}")
        raise wrong_type(path, "a string or an object", choice)
    asked = Fields(choice, path)
    match asked.string("type"):
        case "function":
            return tools, [_tool(_name(asked), tools, asked.at("function.name"))]
        case "allowed_tools":
            inner = asked.fields("allowed_tools") or asked
            entries = list(inner.objects("tools"))
            listed = [_tool(_name(entry), tools, entry.path) for entry in entries]
            mode = inner.string("mode")
            if mode not in ("auto", "required"):
                raise bad_value(inner.at("mode"), f"must be 'auto' or 'required', got {mode!r}")
            if not listed:
                raise bad_value(inner.at("tools"), "must have at least one entry")
            return listed, listed if mode == "required" else []
        case other:
            raise unsupported(asked.at("type"), f"only 'function' and 'allowed_tools' are supported, got {other!r}")


def _name(fields: Fields) -> str:
    """The function's name, in the OpenAI form or bare."""
    inner = fields.fields("function") or fields
    name = inner.string("name")
    if not name:
        raise bad_value(inner.at("name"), "is required")
    return name


def _tool(name: str, tools: list[Tool], path: str) -> Tool:
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    raise bad_value(path, f"{name[:100]!r} is not among the tools")
