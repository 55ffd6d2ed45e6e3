"""Tools of the Responses API as the tools of a chat, and back.

* A function becomes the chat's function. One that leaves `strict` out is strict where its schema can be kept, as in
  the official API; the response tells.
* A custom tool becomes a function with one string parameter, `input`. A grammar of its format holds that text in every
  call, where the model writes strings as they are; a model that writes arguments as JSON only reads it.
* A tool in a namespace is called NAMESPACE__NAME; its first one tells what the namespace is for.
* Tools that a server would have to run are refused by name: a model that is told of them would call them in vain.

What must stay true: the name under which the model knows a tool follows from its namespace and name alone, so that
calls in the history are rendered as the model wrote them, whatever tools the request has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from edgellm.errors import RequestError
from edgellm.server.fields import Fields, bad_value, unsupported
from edgellm.server.messages import read_tool_name
from edgellm.server.responses.parameters import TOOL_REFUSED
from edgellm.text.grammars import Grammar, lark_grammar, regex_grammar

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

INPUT: Final = "input"  # the parameter of a custom tool
_SEPARATOR: Final = "__"
_INPUT_SCHEMA: Final = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}


def known_as(name: str, namespace: str | None) -> str:
    """What the model calls a tool."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(_SEPARATOR) else _SEPARATOR}{name}"


@dataclass(frozen=True, slots=True)
class Tool:
    """Attributes:
    chat: its declaration in the chat form.
    text: what a custom tool's input is held to: a grammar, or the pattern of a regular expression.
    """

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None
    chat: dict[str, Any]
    text: Grammar | str | None = None


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request.

    Attributes:
        tools: by the name under which the model knows them.
        declared: as the response repeats them.
    """

    tools: Mapping[str, Tool] = field(default_factory=dict)
    declared: list[dict[str, Any]] = field(default_factory=list)

    @property
    def chat(self) -> list[dict[str, Any]]:
        return [tool.chat for tool in self.tools.values()]

    @property
    def texts(self) -> dict[str, Grammar | str]:
        return {name: tool.text for name, tool in self.tools.items() if tool.text is not None}

    def choice(self, fields: Fields) -> Any:
        """`tool_choice` in the chat form.

        Raises:
            RequestError: it names no function or custom tool of these.
        """
        choice = fields.data.get("tool_choice")
        if not isinstance(choice, dict):
            return choice
        asked = Fields(choice, fields.at("tool_choice"))
        if asked.string("type") != "allowed_tools":
            return self._function(asked)
        return {**choice, "tools": [self._function(entry) for entry in asked.objects("tools")]}

    def _function(self, asked: Fields) -> dict[str, Any]:
        kind = asked.string("type")
        if kind not in ("function", "custom"):
            reason = TOOL_REFUSED.get(kind or "", "must be function, custom or allowed_tools")
            raise unsupported(asked.at("type"), f"{kind!r:.60}: {reason}")
        name = read_tool_name(asked)
        known = known_as(name, asked.string("namespace"))
        if known not in self.tools or self.tools[known].kind != kind:
            raise bad_value(asked.at("name"), f"{name[:100]!r} is not among the {kind} tools")
        return {"type": "function", "function": {"name": known}}


def read_tools(fields: Fields, llm: LLM, *, limit: int) -> Toolbox:
    """The tools of a request, at most `limit`.

    Raises:
        RequestError: naming the field, e.g. ``tools[2].format.definition``.
    """
    found: dict[str, Tool] = {}
    declared = []
    for entry in fields.objects("tools"):
        kind = entry.string("type")
        if kind == "namespace":
            tools = _namespace(entry, llm)
            declared.append(dict(entry.data))
        else:
            tools = [_tool(entry, None, llm)]
            strict = {"strict": tools[0].chat["function"].get("strict", False)} if kind == "function" else {}
            declared.append({"parameters": None, **entry.data, **strict} if strict else dict(entry.data))
        for tool in tools:
            known = tool.chat["function"]["name"]
            if known in found:
                raise bad_value(entry.path, f"declares {known[:100]!r} a second time")
            found[known] = tool
        if len(found) > limit:
            raise bad_value(fields.at("tools"), f"must have at most {limit} entries")
    return Toolbox(found, declared)


def _namespace(entry: Fields, llm: LLM) -> list[Tool]:
    namespace = read_tool_name(entry)
    tools = [_tool(inner, namespace, llm) for inner in entry.objects("tools")]
    if tools and (purpose := entry.string("description")):
        first = tools[0].chat["function"]
        description = "\n\n".join(filter(None, (purpose, first.get("description"))))
        tools[0] = replace(tools[0], chat={"type": "function", "function": {**first, "description": description}})
    return tools


def _tool(entry: Fields, namespace: str | None, llm: LLM) -> Tool:
    kind = entry.string("type")
    if kind == "function":
        return _function(entry, namespace, llm)
    if kind == "custom":
        return _custom(entry, namespace, llm)
    reason = TOOL_REFUSED.get(kind or "")
    if reason is None:
        raise unsupported(entry.at("type"), f"must be function, custom or namespace, got {kind!r:.60}")
    raise unsupported(entry.at("type"), f"{kind!r}: {reason}")


def _function(entry: Fields, namespace: str | None, llm: LLM) -> Tool:
    name = read_tool_name(entry)
    function: dict[str, Any] = {"name": known_as(name, namespace)}
    if description := entry.string("description"):
        function["description"] = description
    if (parameters := entry.object("parameters")) is not None:
        function["parameters"] = parameters
    strict = entry.boolean("strict")
    if strict or (strict is None and _can_be_strict(function, llm)):
        function["strict"] = True
    return Tool("function", name, namespace, {"type": "function", "function": function})


def _can_be_strict(function: dict[str, Any], llm: LLM) -> bool:
    """Whether every call can be held to the schema. The compiled grammar is kept by the compiler."""
    tool = {"type": "function", "function": {**function, "strict": True}}
    try:
        grammar = llm.tool_grammars.free([tool])
        llm.constraints.make(grammar, param="tools", thinking_open=False)
    except RequestError:
        return False
    return grammar is not None


def _custom(entry: Fields, namespace: str | None, llm: LLM) -> Tool:
    name = read_tool_name(entry)
    description = entry.string("description") or ""
    text = None
    form = entry.fields("format")
    kind = None if form is None else form.string("type")
    if form is not None and kind == "grammar":
        text, told = _format(form, llm)
        description = f"{description}\n\n{told}".lstrip()
    elif kind not in (None, "text"):
        raise unsupported(entry.at("format.type"), f"must be text or grammar, got {kind!r:.60}")
    function: dict[str, Any] = {"name": known_as(name, namespace)}
    if description:
        function["description"] = description
    function["parameters"] = _INPUT_SCHEMA
    if text is not None:
        function["strict"] = True
    return Tool("custom", name, namespace, {"type": "function", "function": function}, text)


def _format(form: Fields, llm: LLM) -> tuple[Grammar | str, str]:
    """The grammar of a custom tool's input, and how the model is told of it."""
    path = form.at("definition")
    definition = form.string("definition")
    if not definition:
        raise bad_value(path, "is required")
    syntax = form.string("syntax")
    if syntax not in ("lark", "regex"):
        raise unsupported(form.at("syntax"), f"must be lark or regex, got {syntax!r:.60}")
    try:
        grammar = lark_grammar(definition) if syntax == "lark" else regex_grammar(definition)
    except RequestError as error:
        raise RequestError(f"{path}: {error}", param=path, code=error.code) from None
    llm.constraints.make(grammar, param=path, thinking_open=False)  # refuses what cannot be compiled, by its name
    if syntax == "regex":
        return definition, f"The parameter {INPUT} matches the regular expression {definition}"
    return grammar, f"The parameter {INPUT} follows this Lark grammar:\n{definition}"
