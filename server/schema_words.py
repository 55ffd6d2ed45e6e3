"""The words of which JSON schemas (draft 2020-12) are made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}


def nullable(*names: str, **more: Any) -> Schema:
    """A field of these types, or null."""
    return {"type": [*names, "null"], **more}


def between(low: float, high: float) -> Schema:
    """A number of a range, or null."""
    return nullable("number", minimum=low, maximum=high)


def array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def record(properties: Mapping[str, Schema], required: tuple[str, ...] | None = None) -> Schema:
    """An object. Every property is there, unless `required` names those that are."""
    needed = properties if required is None else required
    return {"type": "object", "properties": dict(properties), "required": list(needed)}


def reference(name: str) -> Schema:
    """To a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


BOOLEAN = nullable("boolean")
STRING = nullable("string")
OPEN = nullable("object")
