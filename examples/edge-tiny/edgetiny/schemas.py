"""Random function schemas in the OpenAI form, with what phrases need to know about each parameter.

What must stay true: a parameter's name, description and `label` share their words, so that a user's phrase leads to the
parameter; in the held-out split every function and parameter name holds a held-out word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from edgetiny import lists, values
from edgetiny.everyday import everyday
from edgetiny.functions import ORDERS, Field, Function, Style, joined, some_order
from edgetiny.values import Value
from edgetiny.words import Lexicon, a, plural

_CITY_LABELS: Final = ("city", "city", "location", "destination", "origin", "place")
_DATE_LABELS: Final = ("date", "date", "start date", "end date", "day")
_TIME_LABELS: Final = ("time", "start time", "end time")
_TEXT_LABELS: Final = ("title", "query", "message", "note", "description", "topic", "subject", "comment", "text")
_INT_LABELS: Final = ("level", "index", "number", "position", "score", "limit", "quantity", "year", "port", "page")
_KINDS_OF_VALUE: Final = frozenset(
    (
        *_INT_LABELS,
        *_TEXT_LABELS,
        *lists.CHOICES,
        *lists.UNITS,
        "email",
        "address",
        "path",
        "code",
        "category",
        "port",
        "page",
    )
)
_EARLY: Final = ("count", "level", "word", "person", "city", "choice")
_LATE: Final = (
    "count", "count", "level", "measure", "measure", "flag", "flag", "choice", "choice", "word", "person", "city",
    "date", "time", "email", "path", "id", "url", "address", "phrase", "phrase", "strings", "integers", "object",
)  # fmt: skip


def make_value(f: Field, lex: Lexicon, rng: Random) -> Value:
    """A random value for `f`."""
    if f.role in values.TEXT:
        return values.same(values.TEXT[f.role](lex, rng))
    match f.role:
        case "count":
            return values.same(values.integer(rng, high=120))
        case "level":
            return values.same(rng.randint(1990, 2035) if f.label.endswith("year") else values.integer(rng, high=9999))
        case "measure":
            number = values.number(rng)
            return Value(number, f"{number} {f.unit}".rstrip())
        case "flag":
            return Value(rng.random() < 0.55, "")
        case "choice":
            return values.same(rng.choice(f.members))
        case "strings":
            kind = rng.choice(("word", "person", "word", "city"))
            items = list(dict.fromkeys(values.TEXT[kind](lex, rng) for _ in range(rng.randint(1, 4))))
            return Value(items, values.listed(items, rng))
        case "integers":
            numbers = [values.integer(rng) for _ in range(rng.randint(1, 5))]
            return Value(numbers, values.listed([str(n) for n in numbers], rng))
        case _:
            parts = {sub.name: make_value(sub, lex, rng) for sub in f.fields}
            said = values.listed([f"{sub.label} {parts[sub.name].said}" for sub in f.fields], rng)
            return Value({name: part.arg for name, part in parts.items()}, said)


class SchemaMaker:
    """Makes functions of one lexicon; `stage` (0 to 1) lets in more parameters and harder types."""

    def __init__(self, lex: Lexicon, rng: Random, stage: float) -> None:
        self.lex = lex
        self.rng = rng
        self.stage = stage

    def function(self, *, thing: str = "", verb: str = "", low: int = 1, roles: tuple[str, ...] = ()) -> Function:
        """A function, about `thing` and `verb` if given, with at least `low` parameters."""
        rng = self.rng
        if self.lex.split == "train" and not (thing or verb or low > 1 or roles) and rng.random() < 0.22:
            return everyday(rng)
        verb = verb or self.lex.verb(rng)
        thing = thing or self.lex.thing(rng)
        style: Style = rng.choices(("snake", "camel", "dotted"), (0.72, 0.16, 0.12))[0]
        high = max(low, 1 + round(self.stage * 4))
        low = 0 if low == 1 and rng.random() < 0.06 * self.stage else low
        count = min(rng.randint(low, high), rng.randint(low, high)) if rng.random() < 0.7 else rng.randint(low, high)
        fields: list[Field] = []
        while len(fields) < count:
            made = self.field(style, required=rng.random() < (0.6 if fields else 0.95), roles=roles)
            taken = {word for f in fields for word in (f.name, f.label)}
            if made.name not in taken and made.label not in taken:
                fields.append(made)
        order = Function.schema_order if rng.random() < 0.85 else ("description", *Function.schema_order)
        name, description = self._name(verb, thing, style), self._description(verb, thing)
        keys = some_order(rng) if self.lex.split == "train" else ORDERS[0]
        return Function(name, verb, thing, tuple(fields), description, style, (), tuple(dict.fromkeys(order)), keys)

    def field(self, style: Style, *, required: bool, roles: tuple[str, ...] = ()) -> Field:
        """A parameter."""
        late = self.rng.random() < 0.25 + self.stage
        role = self.rng.choice(roles or (_LATE if late else _EARLY))
        maker: Callable[[str], Field] = getattr(self, f"_{role}", self._text)
        made = maker(role)
        name = joined(made.name, style)
        schema = made.schema
        if not required and role in ("choice", "count", "level") and self.rng.random() < 0.15 * self.stage:
            schema = {**schema, "default": made.members[0] if made.members else self.rng.choice((1, 5, 10, 20, 100))}
        parts = tuple(replace(part, name=joined(part.name, "snake")) for part in made.fields)
        return replace(made, name=name, schema=schema, required=required, fields=parts)

    def _name(self, verb: str, thing: str, style: Style) -> str:
        if style == "dotted":
            return f"{joined(thing, 'snake')}.{joined(verb, 'snake')}"
        return joined(f"{verb} {thing}", style)

    def _description(self, verb: str, thing: str) -> str:
        form = self.rng.choice(("{V} {at}", "{V} {at}", "{V} the {t}", "{V} {ts}", "Function to {v} {at}", "{V} {t}."))
        return form.format(V=verb.capitalize(), v=verb, at=a(thing), t=thing, ts=plural(thing))

    def _describe(self, label: str, tail: str = "") -> str:
        if self.rng.random() < 0.06 * self.stage:
            tail += self.rng.choice((", optional", " of the request", " to use", " as given by the user"))
        form = self.rng.choice(("{L}", "{L}", "The {l}", "{L}."))
        return form.format(L=label[0].upper() + label[1:] + tail, l=label + tail)

    def _plain(self, role: str, kind: str, label: str, name: str = "", tail: str = "", **more: Any) -> Field:
        schema = {"type": kind, "description": self._describe(label, tail)}
        return Field(name or label, role, label, schema, **more)

    def _noun(self) -> str:
        """A noun that does not promise a kind of value, as ``email`` does."""
        while (noun := self.lex.noun(self.rng)) in _KINDS_OF_VALUE:
            pass
        return noun

    def _of(self, base: str) -> tuple[str, str]:
        """Name and label of a parameter `base`: alone (never when held out), or with a noun."""
        if self.lex.split == "train" and self.rng.random() < 0.45:
            return base, base
        noun = self._noun()
        return f"{noun} {base}", self.rng.choice((f"{noun} {base}", f"{noun} {base}", f"{base} of the {noun}"))

    def _count(self, role: str) -> Field:
        noun = self.lex.noun(self.rng)
        many = plural(noun)
        name, label = self.rng.choice(
            (
                (f"{noun} count", f"number of {many}"),
                (f"num {many}", f"number of {many}"),
                (many, f"number of {many}"),
                (f"max {many}", f"maximum number of {many}"),
                (f"min {many}", f"minimum number of {many}"),
            )
        )
        return self._plain(role, "integer", label, name, noun=many)

    def _level(self, role: str) -> Field:
        name, label = self._of(self.rng.choice(_INT_LABELS))
        return self._plain(role, "integer", label, name)

    def _measure(self, role: str) -> Field:
        base = self.rng.choice(tuple(lists.UNITS))
        unit = self.rng.choice(lists.UNITS[base])
        name, label = self._of(base)
        return self._plain(role, "number", label, name, f" in {unit}", unit=unit)

    def _flag(self, role: str) -> Field:
        if self.rng.random() < 0.65:
            many = plural(self.lex.noun(self.rng))
            verb = self.rng.choice(("include", "include", "allow", "show", "use", "enable"))
            schema = {"type": "boolean", "description": f"Whether to {verb} {many}"}
            return Field(f"{verb} {many}", role, verb, schema, noun=many)
        adjective = self.lex.adjective(self.rng)
        return Field(f"is {adjective}", role, "be", {"type": "boolean", "description": f"Whether it is {adjective}"},
                     noun=adjective)  # fmt: skip

    def _choice(self, role: str) -> Field:
        base = self.rng.choice(tuple(lists.CHOICES))
        pool = lists.CHOICES[base].split()
        if self.lex.split != "train" or self.rng.random() < 0.35:
            pool = [self.rng.choice((self.lex.adjective(self.rng), self.lex.invented(self.rng))) for _ in "1234"]
        members = tuple(dict.fromkeys(self.rng.sample(pool, min(len(pool), self.rng.randint(2, 4)))))
        name, label = self._of(base)
        made = self._plain(role, "string", label, name, members=members)
        return Field(made.name, role, label, {**made.schema, "enum": list(members)}, members=members)

    def _person(self, role: str) -> Field:
        noun = self._noun()
        name, label = self.rng.choice(((f"{noun} name", f"name of the {noun}"), (noun, noun), (f"{noun} name",) * 2))
        return self._plain(role, "string", label, name, noun=noun)

    def _strings(self, role: str) -> Field:
        noun = self.lex.noun(self.rng)
        many = plural(noun)
        name, label = self.rng.choice(((many, many), (f"{noun} names", f"names of the {many}"), (f"{noun} list", many)))
        tail = self.rng.choice(("", "", " as a list"))
        made = self._plain(role, "array", label, name, tail)
        return Field(name, role, label, {**made.schema, "items": {"type": "string"}})

    def _integers(self, role: str) -> Field:
        noun = self.lex.noun(self.rng)
        base = self.rng.choice(("ids", "numbers", "scores", "sizes"))
        made = self._plain(role, "array", f"{noun} {base}")
        return Field(made.name, role, made.label, {**made.schema, "items": {"type": "integer"}})

    def _object(self, role: str) -> Field:
        base = self.rng.choice(("options", "filter", "settings", "details", "range"))
        noun = self.lex.noun(self.rng)
        roles = self.rng.sample(("count", "level", "city", "choice", "word", "person", "date"), self.rng.randint(1, 3))
        parts = tuple({f.name: f for f in (getattr(self, f"_{r}", self._text)(r) for r in roles)}.values())
        made = self._plain(role, "object", f"{noun} {base}")
        properties = {joined(f.name, "snake"): {k: v for k, v in f.schema.items() if k != "description"} for f in parts}
        return Field(made.name, role, made.label, {**made.schema, "properties": properties}, fields=parts)

    def _text(self, role: str) -> Field:
        bases = {
            "city": _CITY_LABELS, "date": _DATE_LABELS, "time": _TIME_LABELS, "phrase": _TEXT_LABELS,
            "word": ("name", "kind", "code", "label", "brand", "keyword", "category"), "email": ("email", "address"),
            "path": ("path", "file path", "file"), "id": ("id", "id", "number", "code"), "url": ("url", "link"),
            "address": ("address",),
        }  # fmt: skip
        name, label = self._of(self.rng.choice(bases[role]))
        example = self.rng.random() < 0.1 * self.stage
        tail = f", e.g. {values.TEXT[role](self.lex, self.rng)}" if example else ""
        return self._plain(role, "string", label, name, tail)
