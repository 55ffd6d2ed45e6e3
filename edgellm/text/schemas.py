"""JSON schemas as clients send them, made ready to be compiled: bounded, whole, and in JSON Schema's own words.

What must stay true: all work is linear in the schema; nothing that a schema says about values is lost, except a keyword
whose value is null and a type that JSON does not have, which say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from edgellm.errors import RequestError
from edgellm.text.values import TYPE_NAMES, Types, resolve, to_json

# A compiler goes down one level of its stack for each of these, along all definitions in the worst case: a thousand
# definitions that each lead to the next would end the process.
MAX_LEVELS: Final = 1200
MAX_PROPERTIES: Final = 1000  # of one object: the time to compile grows with the square
_DATA: Final = ("enum", "const", "default", "example", "examples")
_MAPS: Final = ("properties", "patternProperties", "dependentSchemas")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_ADDRESSES: Final = ("$schema", "$id", "$anchor", "$defs", "definitions")


def check_schema(schema: Any) -> int:
    """Refuse a schema that a compiler would not survive, or not in time; returns how many parts it has.

    Raises:
        RequestError: code ``invalid_grammar``, without the field.
    """
    levels = parts = 0
    seen = {id(schema)}
    pending = [schema]
    while pending:
        stack = [(pending.pop(), 1)]
        deepest = 0
        while stack:
            node, depth = stack.pop()
            deepest = max(deepest, depth)
            if isinstance(node, Mapping):
                parts += 1
                properties, reference = node.get("properties"), node.get("$ref")
                if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
                    raise _refused(f"has an object with {len(properties)} properties, at most {MAX_PROPERTIES}")
                target = resolve(reference, schema) if isinstance(reference, str) else None
                if target is not None and id(target) not in seen:
                    seen.add(id(target))
                    pending.append(target)
                stack += ((item, depth + 1) for key, item in node.items() if key not in ("$defs", "definitions"))
            elif isinstance(node, list):
                parts += len(node)
                stack += ((item, depth) for item in node)
        levels += deepest
        if levels > MAX_LEVELS:
            raise _refused(f"is nested too deeply: all its definitions together have more than {MAX_LEVELS} levels")
    return parts


def standalone(schema: Any, root: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """A copy of `schema`, a part of `root`, with all it refers to there, so that it can be compiled alone.

    Keywords whose value is null are left out, Python's names of types become JSON's; unknown types and what is no
    schema are left out too, unless `strict`.
    """
    copier = _Copier(root, strict=strict)
    copied = copier.copy(schema if isinstance(schema, Mapping) else {})
    definitions = copier.definitions()
    return {**copied, "$defs": definitions} if definitions else copied


def parameters_of(schema: Any) -> dict[str, Any]:
    """The schema of a tool's parameters as an object schema.

    A reference at its top is followed, `properties` is a mapping that has every required name, and `required` a list of
    names.
    """
    root = schema if isinstance(schema, Mapping) else {}
    top = followed(root, root)
    declared, required, extra = (top.get(key) for key in ("properties", "required", "additionalProperties"))
    properties = dict(declared) if isinstance(declared, Mapping) else {}
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in names:
        properties.setdefault(name, extra if isinstance(extra, Mapping) else {})
    return {**top, "type": "object", "properties": properties, "required": names}


def followed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema`, or what its reference leads to when it is one."""
    seen: set[str] = set()
    while isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        target = resolve(reference, root)
        if not isinstance(target, Mapping):
            break
        schema = target
    return schema


def listed(schema: Any, root: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema allows when it lists them, through unions and references; None when it does not."""
    found: list[Any] = []
    pending = [schema]
    seen: set[str] = set()
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            return None
        options, union = node.get("enum"), node.get("anyOf") or node.get("oneOf") or node.get("allOf")
        reference = node.get("$ref")
        if isinstance(options, list) and options:
            found += options
        elif "const" in node:
            found.append(node["const"])
        elif isinstance(reference, str):
            if reference not in seen:
                seen.add(reference)
                pending.append(resolve(reference, root))
        elif isinstance(union, list) and union and (len(union) == 1 or not node.get("allOf")):
            pending += reversed(union)
        elif node.get("type") == "null":
            found.append(None)
        else:
            return None
    return found


def texts(values: Sequence[Any], types: Types) -> Iterator[str]:
    """The texts that are read as one of `values` where a schema allows `types`."""
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        read = to_json(text, types)
        if read is not None and json.loads(read) == value:
            yield text


# What a schema may say of a value without ruling out any text, or that `listed` has taken in.
_FREE: Final = frozenset((
    "type", "nullable", "description", "title", "default", "example", "examples", "$comment", "deprecated", "readOnly",
    "writeOnly", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", *_ADDRESSES,
))  # fmt: skip
_OBJECT: Final = _FREE - {"anyOf", "oneOf", "allOf", "enum", "const"} | {
    *("properties", "required", "additionalProperties", "unevaluatedProperties", "strict"),
}


def beyond_text(schema: Any, root: Mapping[str, Any]) -> str | None:
    """What rules out some text where text is allowed: a keyword, a type that does not exist, a reference to nothing.

    Unions and references are followed. None: any text fits.
    """
    pending, seen = [schema], set[str]()
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        if unknown := [key for key, value in node.items() if key not in _FREE and value is not None]:
            return repr(unknown[0])
        if problem := _unknown_type(node):
            return problem
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            target = resolve(reference, root)
            if target is None:
                return f"the reference {reference[:60]!r}, which leads nowhere,"
            pending.append(target)
        for key in ("anyOf", "oneOf", "allOf"):
            options = node.get(key)
            pending += options if isinstance(options, list) else []
    return None


def beyond_properties(schema: Mapping[str, Any]) -> str | None:
    """What an object schema says beyond its properties, such as a union at its top; None: nothing."""
    if unknown := [key for key, value in schema.items() if key not in _OBJECT and value is not None]:
        return repr(unknown[0])
    return None


def _unknown_type(node: Mapping[str, Any]) -> str | None:
    given = node.get("type")
    for name in given if isinstance(given, list) else [given]:
        if name is not None and not (isinstance(name, str) and name in TYPE_NAMES):
            return f"the type {name!r:.60}"
    return None


class _Copier:
    """Copies schemas out of `root`, and remembers what they refer to."""

    def __init__(self, root: Mapping[str, Any], *, strict: bool) -> None:
        self._root = root
        self._strict = strict
        self._names: dict[int, str] = {}  # by the identity of what is named
        self._pending: list[Any] = []

    def copy(self, node: Any) -> Any:
        if not isinstance(node, Mapping):
            return node if self._strict or isinstance(node, bool) else {}
        copied: dict[str, Any] = {}
        for key, value in node.items():
            if key in _DATA:
                copied[key] = value
            elif value is not None and key not in _ADDRESSES:
                made = self._keyword(key, value)
                if made is not None:
                    copied[key] = made
        return copied

    def definitions(self) -> dict[str, Any]:
        """What the copies refer to, and what that refers to."""
        made: dict[str, Any] = {}
        while self._pending:
            target = self._pending.pop()
            made[self._names[id(target)]] = self.copy(target)
        return made

    def _keyword(self, key: str, value: Any) -> Any:
        if key == "$ref" and isinstance(value, str) and (target := resolve(value, self._root)) is not None:
            if id(target) not in self._names:
                self._names[id(target)] = f"d{len(self._names)}"
                self._pending.append(target)
            return f"#/$defs/{self._names[id(target)]}"
        if key == "type":
            return self._types(value)
        if key in _MAPS and isinstance(value, Mapping):
            return {name: self.copy(each) for name, each in value.items()}
        if key in _LISTS and isinstance(value, list):
            return [self.copy(each) for each in value]
        return self.copy(value) if isinstance(value, Mapping) else value

    def _types(self, value: Any) -> Any:
        if self._strict:
            return value
        given = value if isinstance(value, list) else [value]
        names = [TYPE_NAMES[name] for name in given if isinstance(name, str) and name in TYPE_NAMES]
        return list(dict.fromkeys(names)) or None


def _refused(problem: str) -> RequestError:
    return RequestError(f"the schema {problem}", code="invalid_grammar")
