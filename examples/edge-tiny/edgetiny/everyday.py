"""Functions made from the lines of `topics`."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from edgetiny.functions import Field, Function, Style, joined, some_order
from edgetiny.topics import TOPICS

_TYPES: Final = {"num": "number", "count": "integer", "level": "integer", "flag": "boolean"}
_ROLES: Final = {"enum": "choice", "from": "choice", "num": "measure", "count": "level"}


def everyday(rng: Random) -> Function:
    """A function that people know, with requests in their words."""
    topic = rng.choice(TOPICS)
    style: Style = rng.choices(("snake", "camel"), (0.8, 0.2))[0]
    fields = tuple(_field(style, rng, *parameter) for parameter in topic.parameters)
    verb, _, thing = topic.names[0].partition(" ")
    name = joined(rng.choice(topic.names), style)
    return Function(name, verb, thing or verb, fields, topic.description, style, topic.requests, order=some_order(rng))


def _field(style: Style, rng: Random, label: str, role: str, choices: tuple[str, ...], optional: bool) -> Field:
    about = rng.choice((label[0].upper() + label[1:], label[0].upper() + label[1:], f"The {label}"))
    schema: dict[str, Any] = {"type": _TYPES.get(role, "string"), "description": about}
    name = joined(label, style)
    match role:
        case "flag":
            schema |= {"description": f"Whether to use {label}"}
            return Field(name, role, "use", schema, not optional, noun=label)
        case "strings" | "integers":
            schema |= {"type": "array", "items": {"type": role.removesuffix("s")}}
        case "enum":
            schema |= {"enum": list(choices)}
    noun = label.removesuffix(" name")
    return Field(name, _ROLES.get(role, role), label, schema, not optional, noun=noun, members=choices)
