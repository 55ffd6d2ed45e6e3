"""Conversations that end in text: results told, small talk, and copy drills.

What must stay true: every figure of an answer stands in the conversation before it.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from edgetiny.calls import call_of, distractors, values_for
from edgetiny.functions import Field, Function, joined
from edgetiny.phrases import request
from edgetiny.schemas import SchemaMaker
from edgetiny.turns import assistant, made, tool, user
from edgetiny.values import TEXT, listed, number
from edgetiny.words import a

_RESULT_KEYS: Final = (
    "id",
    "status",
    "name",
    "total",
    "price",
    "date",
    "city",
    "count",
    "code",
    "result",
    "value",
    "time",
)
_GREETINGS: Final = ("Hi", "Hello", "Hey", "Good morning", "Good evening", "Hi there", "Hello there")
_SELF: Final = "I am edge-tiny, a small model that calls functions."
_CHAT: Final = (
    (("What can you do?", "What are you able to do?", "How can you help me?", "What are you good at?"),
     ("I can call functions for you: tell me what you need, and give me the functions.",)),
    (("Who are you?", "What are you?", "What is your name?", "Tell me who you are."), (_SELF,)),
    (("Thanks!", "Thank you.", "Thank you very much!", "Great, thanks."), ("You are welcome!",)),
    (("How are you?", "How are you today?", "How is it going?"), ("I am fine, thank you. What can I do for you?",)),
    (("Bye!", "Goodbye.", "See you later."), ("Goodbye!",)),
    (("Are you a human?", "Are you a person?"), (f"No. {_SELF}",)),
    (("What is a function call?", "How do function calls work?"),
     ("I write the name of a function and its arguments, and a program runs it.",)),
)  # fmt: skip


def multi_turn(maker: SchemaMaker) -> dict[str, Any]:
    """A call, its result and the answer; sometimes a second request, which may need the first result's id."""
    rng = maker.rng
    function = maker.function()
    tools = {f.name: f for f in (function, *distractors(maker, function, rng.randint(0, 1 + round(maker.stage))))}
    follow_up = rng.random()
    result = {"error": f"{function.thing} not found"} if follow_up > 0.9 else results(maker, with_id=follow_up < 0.2)
    text, said = request(function, values_for(function, maker), rng)
    messages = [
        user(text),
        assistant(calls=[call_of(function, said)]),
        tool(json.dumps(result)),
    ]
    messages.append(assistant(told(function, result)))
    if follow_up < 0.2:
        other = _taking_id(maker, function)
        tools[other.name] = other
        wish = rng.choice(("Now {v} it.", "Please {v} that {t}.", "{V} the {t}.", "Can you {v} it?", "Then {v} it."))
        text = wish.format(v=other.verb, V=other.verb.capitalize(), t=function.thing)
        messages += [user(text), assistant(calls=[(other.name, {other.fields[0].name: result["id"]})])]
    elif follow_up < 0.5:
        again = rng.choice(list(tools.values()))
        text, said = request(again, values_for(again, maker), rng)
        messages += [user(text), assistant(calls=[call_of(again, said)])]
    shown = rng.sample(list(tools.values()), len(tools))
    return made(messages, [f.tool() for f in shown], "I look at what the user wants and at the results.")


def _taking_id(maker: SchemaMaker, function: Function) -> Function:
    """A function of another verb that takes the id of what `function` gave."""
    thing, style = function.thing, function.style
    verb = maker.rng.choice([verb for verb in maker.lex.verbs if verb != function.verb])
    schema = {"type": "string", "description": f"Id of the {thing}"}
    field = Field(joined(f"{thing} id", style), "id", f"id of the {thing}", schema)
    return Function(joined(f"{verb} {thing}", style), verb, thing, (field,), f"{verb.capitalize()} {a(thing)}")


def told(function: Function, result: dict[str, Any]) -> str:
    """The answer that tells a result."""
    if "error" in result:
        return f"That did not work: {result['error']}."
    facts = [f"the {key} is {value}" for key, value in result.items()]
    text = facts[0] if len(facts) == 1 else f"{', '.join(facts[:-1])} and {facts[-1]}"
    return f"Here is the {function.thing}: {text}."


def results(maker: SchemaMaker, *, with_id: bool = False) -> dict[str, Any]:
    """What a function may give back: one to three facts, and an id if it has to have one."""
    keys = maker.rng.sample(_RESULT_KEYS, maker.rng.randint(1, 3))
    return {key: _result(maker, key, maker.rng) for key in dict.fromkeys(["id", *keys] if with_id else keys)}


def _result(maker: SchemaMaker, key: str, rng: Random) -> Any:
    match key:
        case "status":
            return rng.choice(("ok", "done", "created", "pending", "confirmed", "failed"))
        case "total" | "price" | "value" | "result":
            return number(rng)
        case "count":
            return rng.randint(0, 500)
        case "name":
            return maker.lex.person(rng)
        case "code":
            return TEXT["id"](maker.lex, rng)
        case _:
            return TEXT[key](maker.lex, rng)


def chat(maker: SchemaMaker) -> dict[str, Any]:
    """A short exchange without functions."""
    rng = maker.rng
    chance = rng.random()
    if chance < 0.3:
        name = maker.lex.person(rng)
        hello = rng.choice(_GREETINGS)
        if rng.random() < 0.5:
            return made([user(f"{hello}, {rng.choice(('I am', 'my name is', 'this is'))} {name}."),
                         assistant(f"Hello {name}! How can I help you?")])  # fmt: skip
        asked = user(rng.choice(("What is my name?", "Do you remember my name?")))
        met = [user(f"My name is {name}."), assistant(f"Nice to meet you, {name}!")]
        return made([*met, asked, assistant(f"Your name is {name}.")])
    if chance < 0.45:
        return made(
            [user(rng.choice(_GREETINGS) + rng.choice(("", "!", "."))), assistant("Hello! How can I help you?")]
        )
    questions, replies = rng.choice(_CHAT)
    question = rng.choice(questions)
    if rng.random() < 0.2:
        question = f"{rng.choice(_GREETINGS)}! {question}"
    return made([user(question), assistant(rng.choice(replies))])


def copy(maker: SchemaMaker) -> dict[str, Any]:
    """A drill: repeat, look up, or fill in values from the prompt."""
    rng = maker.rng
    return rng.choice((_repeat, _look_up, _look_up, _as_json, _find_name))(maker, rng)


def _repeat(maker: SchemaMaker, rng: Random) -> dict[str, Any]:
    kind = rng.choice(("word", "word", "person", "phrase", "id", "path", "email", "date", "city"))
    items = [TEXT[kind](maker.lex, rng) for _ in range(rng.randint(1, 8 if kind == "word" else 3))]
    glue = rng.choice((" ", ", ", "\n")) if kind == "word" else rng.choice((", ", "\n"))
    text = glue.join(items)
    lead = rng.choice(
        ("Repeat: {x}", "Say this again: {x}", "Copy these words: {x}", "Repeat after me: {x}", "Echo: {x}")
    )
    return made([user(lead.format(x=text)), assistant(text)])


def _pairs(maker: SchemaMaker, rng: Random) -> dict[str, str]:
    kinds = ("word", "person", "id", "city", "date", "path", "phrase", "email", "number", "number")
    pairs: dict[str, str] = {}
    for _ in range(rng.randint(2, 4 + round(4 * maker.stage))):
        kind = rng.choice(kinds)
        value = str(number(rng)) if kind == "number" else TEXT[kind](maker.lex, rng)
        if value not in pairs.values():
            key = maker.lex.word(rng)
            pairs[f"{key}_{maker.lex.noun(rng)}" if rng.random() < 0.3 else key] = value
    return pairs


def _stated(pairs: dict[str, str], rng: Random) -> str:
    mark = rng.choice((" = ", ": ", " is ", "="))
    return rng.choice((", ", "\n", "; ")).join(f"{key}{mark}{value}" for key, value in pairs.items())


def _look_up(maker: SchemaMaker, rng: Random) -> dict[str, Any]:
    pairs = _pairs(maker, rng)
    key = rng.choice(list(pairs))
    ask = rng.choice(("What is {k}?", "What is the value of {k}?", "Give me {k}.", "{k}?", "Now {k}:"))
    return made([user(f"{_stated(pairs, rng)}\n{ask.format(k=key)}"), assistant(pairs[key])])


def _find_name(maker: SchemaMaker, rng: Random) -> dict[str, Any]:
    pairs = _pairs(maker, rng)
    key = rng.choice(list(pairs))
    ask = rng.choice(("Which one is {v}?", "What has the value {v}?", "Whose value is {v}?"))
    return made([user(f"{_stated(pairs, rng)}\n{ask.format(v=pairs[key])}"), assistant(key)])


def _as_json(maker: SchemaMaker, rng: Random) -> dict[str, Any]:
    pairs = dict(list(_pairs(maker, rng).items())[:4])
    if rng.random() < 0.5:
        items = list(pairs.values())
        return made(
            [user(f"Write as a JSON array: {listed(items, rng)}"), assistant(json.dumps(items, ensure_ascii=False))]
        )
    lead = f"Write {a(rng.choice(('JSON object', 'object in JSON')))}"
    return made([user(f"{lead}: {_stated(pairs, rng)}"), assistant(json.dumps(pairs, ensure_ascii=False))])
