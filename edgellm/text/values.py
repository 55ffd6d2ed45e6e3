"""The JSON value of a tool-call parameter: text from the model, directed by the declared JSON schema.

Rules, in order:
* A parameter that may only be a string is taken verbatim.
* Nothing but white space: the empty string where a string is allowed, otherwise the parameter was not given.
* ``null`` and ``None``: null where the schema allows it; otherwise text where a string is allowed, else not given.
* Numbers, booleans (in any case), objects and arrays are recognised when the schema allows their type. A number for an
  integer counts when it is whole. Where a string is allowed too, a number must be written as JSON prints it, so that
  version 3.10 does not become 3.1.
* Objects and arrays may hold raw line breaks in strings, and may be written with Python's quotes and constants.
* Without a declared type only objects and arrays are recognised.
* Whatever does not fit stays the text itself: the caller sees what the model wrote. Nothing is ever evaluated.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

Schema = Mapping[str, Any]
Types = frozenset[str]  # JSON type names; empty: anything

STRING: Final[Types] = frozenset(("string",))
TYPE_NAMES: Final = {
    **dict.fromkeys(("string", "str", "text"), "string"),
    **dict.fromkeys(("integer", "int", "long"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("object", "dict"), "object"),
    **dict.fromkeys(("array", "list", "tuple"), "array"),
    "null": "null",
}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_LITERAL: Final = 20_000  # characters of a Python-style value that are looked at


def allowed_types(schema: Any, root: Schema) -> Types:
    """JSON types that `schema` allows; empty when it does not say, or says only names that JSON does not have.

    Follows ``$ref`` inside `root`, unions, ``enum``, ``const`` and ``nullable``. Every reference is followed once, so
    cycles end and the work is linear in the schema.
    """
    found: set[str] = set()
    followed: set[str] = set()
    pending = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            pending.append(resolve(reference, root))
        found |= _own_types(node)
        if node.get("nullable") is True:
            found.add("null")
        for key in ("anyOf", "oneOf", "allOf"):
            options = node.get(key)
            pending.extend(options if isinstance(options, (list, tuple)) else ())
    return frozenset(found) if found != {"null"} else frozenset()


def to_json(text: str, types: Types) -> str | None:
    """The value of a parameter as JSON text, by the rules of this module; None when it was not given."""
    verbatim = json.dumps(text, ensure_ascii=False)
    bare = text.strip()
    text_allowed = not types or "string" in types
    if types == STRING:
        return verbatim
    if not bare:
        return verbatim if text_allowed else None
    if bare in ("null", "None"):
        return "null" if "null" in types else verbatim if text_allowed else None
    if bare[0] in "[{":
        found = _container(bare, types)
    elif bare.lower() in ("true", "false"):
        found = bare.lower() if "boolean" in types else None
    else:
        found = _number(bare, types)
    return verbatim if found is None else found


def _own_types(node: Schema) -> set[str]:
    """Types that a schema names itself, or shows by ``enum``, ``const``, ``properties`` or ``items``."""
    names = node.get("type")
    if names is not None:
        return {
            TYPE_NAMES[name]
            for name in (names if isinstance(names, list) else [names])
            if isinstance(name, str) and name in TYPE_NAMES
        }
    options = node.get("enum")
    values = [*(options if isinstance(options, (list, tuple)) else ()), *([node["const"]] if "const" in node else ())]
    if values:
        return {_type_of(value) for value in values}
    return {"object"} if "properties" in node else {"array"} if "items" in node else set()


class ValueWriter:
    """JSON of one parameter as its text arrives.

    Strings are written at once, whatever needs the whole text at the end. Without a declared type the first character
    that is not white space decides.

    Args:
        lead: JSON in front of the value, written with its first character.
        types: what the schema allows.
        framed: one newline at each end of the text belongs to the form, not to the value.
    """

    def __init__(self, lead: str, types: Types, *, framed: bool = True) -> None:
        self._lead = lead
        self._types = types
        self._framed = framed
        self._streams = types == STRING
        self._undecided = not types
        self._whole: list[str] = []
        self._newline = ""  # held: perhaps the one before the end tag
        self._begun = False

    def add(self, raw: str) -> str:
        """Take text between the tags; returns what can be written."""
        if not self._framed:
            return self._write(raw)
        if not self._begun and raw:
            self._begun = True
            raw = raw.removeprefix("\n")
        text = self._newline + raw
        self._newline = "\n" if text.endswith("\n") else ""
        return self._write(text.removesuffix("\n"))

    def end(self) -> str | None:
        """The rest of the JSON; None when the parameter was not given (then nothing was written before)."""
        if self._streams:
            return self._string("") + '"'
        value = to_json("".join(self._whole), self._types)
        return None if value is None else self._take_lead() + value

    def _write(self, text: str) -> str:
        if self._streams:
            return self._string(text)
        self._whole.append(text)
        if self._undecided and (start := text.lstrip()):
            self._undecided = False
            if start[0] not in "[{":
                self._streams = True
                return self._string("".join(self._whole))
        return ""

    def _string(self, text: str) -> str:
        opening = self._take_lead()
        return (opening and opening + '"') + json.dumps(text, ensure_ascii=False)[1:-1]

    def _take_lead(self) -> str:
        lead, self._lead = self._lead, ""
        return lead


def _number(text: str, types: Types) -> str | None:
    match = _NUMBER.fullmatch(text)
    if match is None or types.isdisjoint(("integer", "number")):
        return None
    if match[1] is None and match[2] is None:
        return text
    value = float(text)
    if not math.isfinite(value) or ("string" in types and json.dumps(value) != text):
        return None
    if "number" in types:
        return text
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else None


def _container(text: str, types: Types) -> str | None:
    """An object or array as JSON text: as it stands when it is JSON, else written anew."""
    value: Any
    try:
        value, as_is = json.loads(text, parse_constant=_refuse), text
    except (ValueError, RecursionError):
        try:
            value, as_is = json.loads(text, strict=False, parse_constant=_refuse), ""
        except (ValueError, RecursionError):
            value, as_is = _python_literal(text), ""
    if not isinstance(value, (dict, list)) or (types and _type_of(value) not in types):
        return None
    if as_is:
        return as_is
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _python_literal(text: str) -> Any:
    """A literal in Python's notation; a name, a call or anything else that would need evaluation gives None."""
    if len(text) > _MAX_LITERAL:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def resolve(reference: str, root: Schema) -> Any:
    """The part of `root` that a local JSON pointer names, or None."""
    if not reference.startswith("#"):
        return None
    node: Any = root
    for part in reference[1:].strip("/").split("/") if reference.strip("#/") else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node
