"""What users say: a request for one function, in many forms.

What must stay true: a value is said once, verbatim; a parameter is told apart from the others by its label, its name, a
unit or what kind of thing it is; parameters that are not said are not in the call.
"""

from __future__ import annotations

from random import Random
from typing import Final

from edgetiny.functions import Field, Function
from edgetiny.lists import words
from edgetiny.topics import fill, needs
from edgetiny.values import Value
from edgetiny.words import a, plural

Said = list[tuple[Field, Value]]

_OPENERS: Final = (
    "{V} {o}{s}.", "{V} {o}{s}.", "{V} {o}{s}", "Please {v} {o}{s}.", "Can you {v} {o}{s}?", "Could you {v} {o}{s}?",
    "I need to {v} {o}{s}.", "I want to {v} {o}{s}.", "I'd like to {v} {o}{s}.", "Help me {v} {o}{s}.",
    "Could you please {v} {o}{s}?", "Let's {v} {o}{s}.", "I want you to {v} {o}{s}.", "{v} {o}{s}",
    "We have to {v} {o}{s}.",
    "Hi, please {v} {o}{s}. Thanks!", "Hello! Can you {v} {o}{s}?", "My boss asked me to {v} {o}{s}.",
    "It is time to {v} {o}{s}.",
)  # fmt: skip
ASKING: Final = frozenset(
    words("calculate check compute count estimate evaluate fetch find get locate measure predict query retrieve search")
)
_QUESTIONS: Final = (
    "What is the {t}{s}?", "Show me the {t}{s}.", "I'd like to know the {t}{s}.", "Tell me the {t}{s}.",
    "Do you know the {t}{s}?", "What's the {t}{s}?", "I need the {t}{s}.",
)  # fmt: skip
_BY_NAME: Final = ("Use {f} with {p}.", "Call {f}: {p}", "Run {f} with {p}", "{f}({p})", "Please call {f} with {p}.")
_IN_PLACE: Final = {
    "city": ("in {x}", "in {x}", "at {x}"),
    "person": ("for {x}", "for {x}", "with {x}"),
    "date": ("on {x}", "on {x}", "for {x}"),
    "time": ("at {x}",),
    "email": ("to {x}", "for {x}"),
    "path": ("in {x}", "from the file {x}", "in the file {x}", "using {x}"),
    "url": ("from {x}", "at {x}"),
    "address": ("at {x}",),
    "measure": ("of {x}", "with {x}"),
    "phrase": ('about "{x}"', 'saying "{x}"', "'{x}'", '"{x}"'),
    "word": ("called {x}", "named {x}", '"{x}"'),
    "id": ("with {b} {x}", "with the {b} {x}", "({x})"),
}
_PLACES: Final = {"origin": ("from {x}",), "destination": ("to {x}",), "start": ("from {x}",), "end": ("until {x}",)}
_LABELLED: Final = ("with {l} {x}", "with {l} {x}", "with {al} of {x}", "with the {l} {x}", "using {x} as the {l}",
                    "with {l}: {x}", "with {x} as {l}", "where the {l} is {x}")  # fmt: skip
_SENTENCES: Final = ("Set the {l} to {x}.", "The {l} is {x}.", "The {l} should be {x}.", "Use {x} as the {l}.",
                     "{L}: {x}.", "{L} = {x}.", "Make the {l} {x}.", "The {l} must be {x}.")  # fmt: skip
_QUOTED: Final = frozenset(("phrase", "word", "path", "address"))


def request(function: Function, said: Said, rng: Random) -> tuple[str, Said]:
    """A user's message that asks for `function` with the values in `said`, and these in the order of the message."""
    said = rng.sample(said, len(said))
    chance = rng.random()
    given = {_label(f) for f, _ in said}
    if chance > 0.07 and (wordings := [wording for wording in function.requests if needs(wording) <= given]):
        return _worded(rng.choice(wordings), said, rng)
    if chance < 0.07:
        pairs = (", " if rng.random() < 0.8 else "\n").join(_pair(f, v, rng.choice(("=", ": "))) for f, v in said)
        return rng.choice(_BY_NAME).format(f=function.name, p=pairs) if pairs else f"Call {function.name}.", said
    if chance < 0.2 and said:
        return f"{_opening(function, '', rng)}\n{_lines(said, rng)}", said
    inside = [(f, v) for f, v in said if _fits(v) and rng.random() < 0.7]
    outside = [pair for pair in said if pair not in inside]
    parts = [attachment(f, v, rng, alone=_alone(f, said)) for f, v in inside]
    first = _opening(function, _chained(parts, rng), rng)
    return _continued(first, [sentence(f, v, rng) for f, v in outside]), [*inside, *outside]


def attachment(f: Field, value: Value, rng: Random, *, alone: bool) -> str:
    """Words to append to a request, such as ``with 5 guests``.

    Args:
        alone: no other parameter is of the same kind, so that the kind of thing tells which one is meant.
    """
    match f.role:
        case "flag" if f.label == "be":
            return rng.choice(
                ("and make it {n}", "and it is {n}") if value.arg else ("and it is not {n}", "but not {n}")
            ).format(n=f.noun)
        case "flag":
            forms = _flag_forms(f.label, bool(value.arg))
            return rng.choice(forms).format(n=f.noun, v=f.label)
        case "count" if rng.random() < 0.7:
            least = {"maximum": "at most ", "minimum": "at least "}.get(f.label.split()[0], "")
            return f"{rng.choice(('for', 'with'))} {least}{value.said} {f.noun}"
        case "choice" if rng.random() < 0.35:
            return f"with {rng.choice(('the ', ''))}{value.said} {f.label.split(' of ')[0]}"
        case "strings" | "integers" if rng.random() < 0.5:
            return f"{rng.choice(('with', 'for', 'using'))} the {f.label} {value.said}"
        case "person" if rng.random() < 0.5:
            return f"for the {f.noun} {_quoted(f, value, rng, 0.1)}"
    base = f.label.split()[0] if f.label.split()[0] in _PLACES else f.label.split()[-1]
    if alone and f.role in _IN_PLACE and rng.random() < 0.65:
        return rng.choice(_PLACES.get(base, _IN_PLACE[f.role])).format(x=value.said, b=base)
    if base in _PLACES and rng.random() < 0.3:
        return rng.choice(_PLACES[base]).format(x=value.said)
    x = _quoted(f, value, rng, 0.85 if f.role == "phrase" else 0.3)
    one = f.label if f.role in ("strings", "integers", "object") else a(f.label)
    return rng.choice(_LABELLED).format(l=f.label, al=one, x=x)


def sentence(f: Field, value: Value, rng: Random) -> str:
    """A sentence that gives one value."""
    if f.role == "flag":
        if f.label == "be":
            forms = ("It is", "It should be", "It must be") if value.arg else ("It is not", "It should not be")
            return f"{rng.choice(forms)} {f.noun}."
        return f"{f.label.capitalize()} {f.noun}." if value.arg else f"Do not {f.label} {f.noun}."
    x = _quoted(f, value, rng, 0.7 if f.role == "phrase" else 0.2)
    return rng.choice(_SENTENCES).format(l=f.label, L=_capital(f.label), x=x)


def _label(f: Field) -> str:
    return f.noun if f.role == "flag" else f.label


def _worded(wording: str, said: Said, rng: Random) -> tuple[str, Said]:
    given = {_label(f): (f, value) for f, value in said}
    text, used = fill(wording, {label: value.said for label, (_, value) in given.items()})
    rest = [pair for label, pair in given.items() if label not in used]
    if rng.random() < 0.15:
        text = rng.choice(("Hi! {t}", "Hello! {t}", "Please help: {t}", "Quick one: {t}")).format(t=text)
    return _continued(text, [sentence(f, v, rng) for f, v in rest]), [given[label] for label in used] + rest


def _continued(first: str, sentences: list[str]) -> str:
    if sentences and not first.endswith((".", "?", "!")):
        first += "."
    return " ".join([first, *sentences])


def ask(verb: str, thing: str) -> str:
    """The bare wish, as in ``book a hotel room``."""
    return f"{verb} {a(thing)}"


def _opening(function: Function, tail: str, rng: Random) -> str:
    verb, thing = function.verb, function.thing
    chance = rng.random()
    if verb in ASKING and chance < 0.45:
        return rng.choice(_QUESTIONS).format(t=thing, s=tail)
    one = a(thing) if chance < 0.7 else plural(thing) if chance < 0.8 else f"the {thing}"
    return rng.choice(_OPENERS).format(v=verb, V=verb.capitalize(), o=one, s=tail)


def _chained(parts: list[str], rng: Random) -> str:
    if len(parts) > 1 and rng.random() < 0.4:
        parts = [*parts[:-1], f"and {parts[-1]}" if not parts[-1].startswith(("and ", "but ")) else parts[-1]]
    glue = rng.choice((" ", ", ")) if len(parts) < 3 else ", "
    return "".join(f" {part}" if n == 0 else f"{glue}{part}" for n, part in enumerate(parts))


def _lines(said: Said, rng: Random) -> str:
    bullet, by_name, mark = rng.choice(("- ", "", "* ")), rng.random() < 0.4, rng.choice((": ", ": ", " = "))
    rows = []
    for f, value in said:
        label = f.name if by_name else _capital(f.label)
        if f.role == "flag":
            rows.append(f"{bullet}{f.name}{mark}{_switch(value, rng)}" if by_name else bullet + sentence(f, value, rng))
        else:
            rows.append(f"{bullet}{label}{mark}{value.said}")
    return "\n".join(rows)


def _pair(f: Field, value: Value, mark: str) -> str:
    if f.role == "flag":
        return f"{f.name}{mark}{str(value.arg).lower()}"
    return f'{f.name}{mark}"{value.said}"' if isinstance(value.arg, str) else f"{f.name}{mark}{value.said}"


def _switch(value: Value, rng: Random) -> str:
    return rng.choice(("true", "yes", "on") if value.arg else ("false", "no", "off"))


def _flag_forms(verb: str, on: bool) -> tuple[str, ...]:
    if on:
        return ("and {v} {n}", "with {n}", "with {n}") if verb in ("include", "show") else ("and {v} {n}",)
    return ("without {n}", "but do not {v} {n}", "but don't {v} {n}", "without {n}")


def _quoted(f: Field, value: Value, rng: Random, chance: float) -> str:
    if f.role in _QUOTED and value.arg is not None and rng.random() < chance:
        mark = rng.choice(("'", '"', '"', "`"))
        return f"{mark}{value.said}{mark}"
    return value.said


def _fits(value: Value) -> bool:
    return len(value.said) < 50


def _alone(f: Field, said: Said) -> bool:
    place = ("city", "address", "path", "url")
    kind = place if f.role in place else (f.role,)
    return sum(other.role in kind for other, _ in said) == 1


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
