"""A function as the data sees it: its schema, and the words that ask for it.

What must stay true: a parameter's name, description and `label` share their words, so that a user's phrase leads to the
parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal

Style = Literal["snake", "camel", "dotted"]
# How programs order the keys of an object schema, the usual way first.
ORDERS: Final = (
    ("type", "properties", "required"),
    ("type", "required", "properties"),
    ("properties", "required", "type"),
    ("required", "type", "properties"),
)


@dataclass(frozen=True)
class Field:
    """One parameter.

    Attributes:
        role: what kind of thing it is; phrases and values go by it.
        label: what a person calls it.
        noun: the thing that it counts, switches or lists.
        members: of an enum.
        unit: of a measure.
        fields: of a nested object.
    """

    name: str
    role: str
    label: str
    schema: dict[str, Any]
    required: bool = True
    noun: str = ""
    members: tuple[str, ...] = ()
    unit: str = ""
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function; `verb` and `thing` are the words that ask for it."""

    name: str
    verb: str
    thing: str
    fields: tuple[Field, ...]
    description: str
    style: Style = "snake"
    requests: tuple[str, ...] = ()  # how people ask for it, besides the general ways; see `topics`
    schema_order: tuple[str, ...] = field(default=("type", "description", "enum", "items", "properties", "default"))
    order: tuple[str, ...] = ORDERS[0]  # of the keys of `parameters`

    def tool(self) -> dict[str, Any]:
        """The function in the OpenAI form."""
        properties = {f.name: {k: f.schema[k] for k in self.schema_order if k in f.schema} for f in self.fields}
        required = [f.name for f in self.fields if f.required]
        parts = {"type": "object", "properties": properties, "required": required}
        parameters = {key: parts[key] for key in self.order if parts[key] or key != "required"}
        body = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": body}


def some_order(rng: Random) -> tuple[str, ...]:
    """An order of the keys of `parameters`, mostly the usual one."""
    return ORDERS[0] if rng.random() < 0.75 else rng.choice(ORDERS[1:])


def joined(words: str, style: Style) -> str:
    """An identifier made of `words`."""
    first, *rest = words.replace("-", " ").split()
    if style == "camel":
        return first.lower() + "".join(word.capitalize() for word in rest)
    return "_".join([first, *rest]).lower()
