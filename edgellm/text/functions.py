"""The functions a request declares: their names, and the JSON types of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edgellm.text.schemas import followed
from edgellm.text.values import Types, allowed_types


class Function:
    """A declared function: its name, and the types of its parameters."""

    def __init__(self, name: str, parameters: Any) -> None:
        self.name = name
        self._root: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}
        top = followed(self._root, self._root)
        properties = top.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._others = top.get("additionalProperties")
        self._types: dict[str, Types] = {}

    def declares(self, parameter: str) -> bool:
        return parameter in self._properties

    def types(self, parameter: str) -> Types:
        if parameter not in self._types:
            schema = self._properties.get(parameter, self._others)
            self._types[parameter] = allowed_types(schema, self._root)
        return self._types[parameter]


def functions(tools: Iterable[Mapping[str, Any]]) -> dict[str, Function]:
    """Declared functions by name, from tools in the OpenAI form or their bare ``function`` objects."""
    found: dict[str, Function] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            found[name] = Function(name, function.get("parameters"))
    return found
