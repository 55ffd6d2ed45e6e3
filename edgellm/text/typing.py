"""Typed values for tool-call parameters: text from the model, directed by the declared JSON schema.

Rules: a string parameter is taken verbatim. Other types are parsed as JSON when the text is JSON of an allowed type;
`True`, `False` and `None` (as templates print them) count as JSON. What does not fit its schema stays the text itself,
so that the caller sees what the model wrote. NaN and infinities are not JSON and stay text. Nothing is evaluated.
An empty value of a non-string parameter is left out. Without a type, objects, arrays, numbers, booleans and null are
recognised, everything else is text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
_PYTHON = {"True": True, "False": False, "None": None}
_MAX_DEPTH = 16
OMIT = object()


def allowed_types(schema: Any, root: Schema, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema allows; empty when it does not say. Cycles of $ref end at a fixed depth."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return allowed_types(_resolve(reference, root), root, depth + 1)
    found: set[str] = set()
    kind = schema.get("type")
    if isinstance(kind, str):
        found.add(kind)
    elif isinstance(kind, list):
        found.update(item for item in kind if isinstance(item, str))
    for key in ("anyOf", "oneOf", "allOf"):
        for option in schema.get(key) or ():
            found |= allowed_types(option, root, depth + 1)
    if not found:
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        found.update(_type_of(value) for value in values)
    if schema.get("nullable") is True:
        found.add("null")
    return frozenset(found)


def convert(text: str, schema: Any, root: Schema) -> Any:
    """The value of a parameter (see the module's rules); `OMIT` when it should be left out."""
    types = allowed_types(schema, root)
    if types == {"string"}:
        return text
    if not text.strip():
        return text if not types or "string" in types else OMIT
    try:
        value = _PYTHON[text.strip()] if text.strip() in _PYTHON else json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    kind = _type_of(value)
    if not types:
        return text if kind == "string" else value
    if kind in types or (kind == "integer" and "number" in types):
        return value
    if isinstance(value, float) and "integer" in types and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return text


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _resolve(reference: str, root: Schema) -> Any:
    if not reference.startswith("#"):
        return None
    value: Any = root
    for part in reference[1:].strip("/").split("/") if reference != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
