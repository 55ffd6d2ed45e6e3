"""`tools` and `tool_choice` in Anthropic's form, brought to the chat form.

Tools of Anthropic's own types (``web_search_…``, ``bash_…``, ``computer_…`` and every other that is not ``custom``)
have no schema here and are left out of the prompt; to choose one is an error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from edgellm.server.fields import Fields, bad_value, unsupported
from edgellm.server.messages import read_tool_name


class ReadTools(NamedTuple):
    functions: list[dict[str, Any]]  # in the chat form
    left_out: frozenset[str]  # names of those that the prompt does not show


class Choice(NamedTuple):
    value: Any  # `tool_choice` in the chat form
    one_call: bool


def read_tools(fields: Fields, *, limit: int) -> ReadTools:
    """The `tools`, at most `limit`.

    Raises:
        RequestError: naming the field, e.g. ``tools[2].input_schema``.
    """
    given = fields.array("tools") or ()
    if len(given) > limit:
        raise bad_value(fields.at("tools"), f"must have at most {limit} entries, got {len(given)}")
    functions, left_out = [], set()
    for tool in fields.objects("tools"):
        if tool.string("type") in (None, "custom"):
            functions.append(_function(tool))
        else:
            left_out.add(tool.string("name") or "")
    return ReadTools(functions, frozenset(left_out))


def read_choice(fields: Fields, tools: ReadTools) -> Choice:
    """The `tool_choice`.

    Raises:
        RequestError: naming the field, e.g. ``tool_choice.name``.
    """
    asked = fields.fields("tool_choice")
    if asked is None:
        return Choice(None, one_call=False)
    one_call = asked.boolean("disable_parallel_tool_use") or False
    match asked.string("type"):
        case "auto" | "none" as kind:
            return Choice(kind, one_call)
        case "any":
            if not tools.functions:
                raise bad_value(asked.path, "is 'any', but there are no tools")
            return Choice("required", one_call)
        case "tool":
            return Choice({"type": "function", "function": {"name": _chosen(asked, tools)}}, one_call)
        case other:
            raise bad_value(asked.at("type"), f"must be auto, any, tool or none, got {other!r:.60}")


def _chosen(asked: Fields, tools: ReadTools) -> str:
    name = asked.string("name")
    if not name:
        raise bad_value(asked.at("name"), "is required")
    if any(tool["function"]["name"] == name for tool in tools.functions):
        return name
    if name in tools.left_out:
        raise unsupported(asked.at("name"), f"{name[:100]!r} is a tool of Anthropic's own; this server has none")
    raise bad_value(asked.at("name"), f"{name[:100]!r} is not among the tools")


def _function(tool: Fields) -> dict[str, Any]:
    schema = tool.object("input_schema")
    if schema is None:
        raise bad_value(tool.at("input_schema"), "is required")
    function: dict[str, Any] = {"name": read_tool_name(tool)}
    if (description := tool.string("description")) is not None:
        function["description"] = description
    function["parameters"] = schema
    if (strict := tool.boolean("strict")) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}
