"""Conversations of one request: a call, several, or a refusal.

What must stay true: the function that fits is named by the request's verb and thing; a distractor differs from it in at
least one of them, and when nothing fits no tool has both. A refusal has one wording: with several, each of them is less
likely than a call even where refusing is the likelier choice, and greedy decoding then calls.
"""

from __future__ import annotations

from typing import Any, Final

from edgetiny.functions import Function
from edgetiny.phrases import ASKING, Said, ask, request
from edgetiny.schemas import SchemaMaker, make_value
from edgetiny.turns import Call, Message, assistant, made, user
from edgetiny.values import Value

TYPED: Final = ("count", "measure", "measure", "flag", "flag", "choice", "strings", "integers", "object", "phrase",
                 "date", "level", "path", "id", "email", "url")  # fmt: skip
_LINKS: Final = ("{0} Also, {1}", "{0} Then {1}", "{0} After that, {1}", "{0} {2}", "{0}\n{2}")


def values_for(function: Function, maker: SchemaMaker, *, all_of: bool = False) -> Said:
    """Values for the required parameters of `function` and for some of the optional ones."""
    rng = maker.rng
    chosen = [f for f in function.fields if f.required or all_of or rng.random() < 0.55]
    return [(f, make_value(f, maker.lex, rng)) for f in chosen]


def call_of(function: Function, said: Said) -> Call:
    """The call that `said` asks for, with its arguments in that order."""
    return function.name, {f.name: value.arg for f, value in said}


def single(maker: SchemaMaker) -> dict[str, Any]:
    """One tool, one call."""
    return _one(maker, [], maker.function())


def typed(maker: SchemaMaker) -> dict[str, Any]:
    """One tool with several parameters of hard types."""
    return _one(maker, [], maker.function(low=2 + round(maker.stage), roles=TYPED))


def multiple(maker: SchemaMaker) -> dict[str, Any]:
    """Several tools, of which one fits."""
    function = maker.function()
    return _one(maker, distractors(maker, function, maker.rng.randint(1, 1 + round(4 * maker.stage))), function)


def parallel(maker: SchemaMaker) -> dict[str, Any]:
    """Two or three calls in one turn: of one function, or of several."""
    rng = maker.rng
    if rng.random() < 0.3:
        return _same_but_one(maker)
    while not (function := maker.function()).fields:
        pass  # two calls without arguments would be one wish said twice
    others = distractors(maker, function, rng.randint(0, 1 + round(maker.stage)))
    count = 3 if rng.random() < 0.25 * maker.stage else 2
    functions = [function, *([function] * count if rng.random() < 0.5 or not others else others)][:count]
    thought = f"The user wants {len(functions)} calls: {', '.join(f.name for f in functions)}."
    return made(several(maker, functions), _shuffled(maker, {f.name: f for f in (*functions, *others)}), thought)


def several(maker: SchemaMaker, functions: list[Function]) -> list[Message]:
    """A request for each of `functions` in one message, and the calls in one turn."""
    text, calls = "", []
    for function in functions:
        wish, said = request(function, values_for(function, maker), maker.rng)
        text = _linked(text, wish, maker) if text else wish
        calls.append(call_of(function, said))
    return [user(text), assistant(calls=calls)]


def irrelevant(maker: SchemaMaker) -> dict[str, Any]:
    """Tools of which none fits, or one that lacks a value that it requires."""
    rng = maker.rng
    function = maker.function()
    others = distractors(maker, function, rng.randint(1, 1 + round(3 * maker.stage)))
    said = values_for(function, maker)
    required = [f for f in function.fields if f.required and f.role not in ("flag", "object")]
    if required and not function.requests and rng.random() < 0.15:
        missing = rng.choice(required)
        text, _ = request(function, [pair for pair in said if pair[0] is not missing], rng)
        tools = _shuffled(maker, {f.name: f for f in (function, *others[:1])})
        reply = assistant(f"What is the {missing.label}?")
        return made([user(text), reply], tools, f"The {missing.label} is missing.")
    tools = _shuffled(maker, {f.name: f for f in others})
    return made(refused(maker, function), tools, "I look for a function that fits: there is none.")


def refused(maker: SchemaMaker, function: Function) -> list[Message]:
    """A request for `function`, which is not there, and the reply."""
    text, _ = request(function, values_for(function, maker), maker.rng)
    if function.requests:
        reply = "Sorry, none of the functions can do that."
    elif function.verb in text.lower():
        reply = f"Sorry, I cannot {ask(function.verb, function.thing)}: none of the functions can do that."
    else:
        reply = f"Sorry, I cannot help with the {function.thing}: none of the functions can do that."
    return [user(text), assistant(reply)]


def alike(one: Function, other: Function) -> bool:
    """Whether a request for one could mean the other."""
    return one.thing == other.thing and (one.verb == other.verb or {one.verb, other.verb} <= ASKING)


def distractors(maker: SchemaMaker, function: Function, count: int) -> list[Function]:
    """Other functions; late in training some share the verb or the thing of `function`."""
    rng = maker.rng
    found = {function.name: function}
    while len(found) <= count:
        chance = rng.random() if maker.stage > 0.3 else 1.0
        verb = function.verb if chance < 0.15 else ""
        thing = function.thing if 0.15 <= chance < 0.35 else ""
        other = maker.function(verb=verb, thing=thing)
        if not alike(other, function):
            found.setdefault(other.name, other)
    return list(found.values())[1:]


def _one(maker: SchemaMaker, others: list[Function], function: Function) -> dict[str, Any]:
    tools = _shuffled(maker, {f.name: f for f in (function, *others)})
    return made(several(maker, [function]), tools, f"The function {function.name} fits.")


def _same_but_one(maker: SchemaMaker) -> dict[str, Any]:
    """``What is the weather in Rome, Oslo and Lima?``: one call for each."""
    rng = maker.rng
    function = maker.function(roles=("city", "person", "word", "count", "level", "choice", "date", "id", "flag"))
    said = values_for(function, maker)
    varied = next(
        (n for n, (f, _) in enumerate(said) if f.role in ("city", "person", "word", "date", "id", "level")), None
    )
    if varied is None:
        return parallel(maker)
    f = said[varied][0]
    choices = {value.said: value for value in (make_value(f, maker.lex, rng) for _ in range(rng.choice((2, 2, 3))))}
    together = Value(None, _listed(list(choices)))
    text, said = request(function, [(g, together if n == varied else v) for n, (g, v) in enumerate(said)], rng)
    calls = [call_of(function, [(g, one if g is f else v) for g, v in said]) for one in choices.values()]
    return made(
        [user(text), assistant(calls=calls)], [function.tool()], f"One call of {function.name} for each {f.label}."
    )


def _linked(first: str, second: str, maker: SchemaMaker) -> str:
    """Two requests as one message."""
    if "\n" in first + second or second.startswith(("Hi", "Hello")):
        return f"{first}\n{second}"
    lowered = second if second.startswith(("I ", "I'")) else second[0].lower() + second[1:]
    ended = first if first.endswith((".", "?", "!")) else f"{first}."
    return maker.rng.choice(_LINKS).format(ended, lowered, second)


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _shuffled(maker: SchemaMaker, functions: dict[str, Function]) -> list[dict[str, Any]]:
    return [f.tool() for f in maker.rng.sample(list(functions.values()), len(functions))]
