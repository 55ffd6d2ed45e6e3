"""Values of parameters: what the call holds and how a person says it.

What must stay true: every string, number and array item of a value stands verbatim in what is said, so that a call can
be copied from the prompt; string values use only words of the lexicon's split, besides glue words.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from edgetiny import lists
from edgetiny.lists import words
from edgetiny.words import Lexicon, plural

_MONTHS: Final = words("January February March April May June July August September October November December")
_PHRASES: Final = (
    "{a} {n}", "{a} {n}", "the {a} {n}", "{n} for {n2}", "{a} {n} and {n2}", "new {n} for {p}", "{v} the {n}",
    "{n} {n2}", "{v} {ns} today", "best {ns} in {c}", "how to {v} {a} {ns}", "{ns}, {a} and {a2}", "{p} has the {n}",
    "no {ns} left",
)  # fmt: skip
_STREETS: Final = ("Street", "Road", "Avenue", "Lane")


@dataclass(frozen=True)
class Value:
    """`arg` is what the call holds, `said` the words that a person uses for it."""

    arg: Any
    said: str


def same(arg: Any) -> Value:
    """A string or number that is said as it is written."""
    return Value(arg, str(arg))


def integer(rng: Random, low: int = 1, high: int = 999) -> int:
    """Small numbers more often than large ones."""
    return rng.randint(low, max(low, min(high, rng.choice((9, 20, 99, 500, high)))))


def number(rng: Random) -> float | int:
    """A decimal number, sometimes whole, sometimes negative."""
    chance = rng.random()
    if chance < 0.35:
        return integer(rng)
    value = round(rng.uniform(0, rng.choice((1, 10, 100, 1000))), rng.choice((1, 1, 2)))
    return -value if chance > 0.9 and value else value


def phrase(lex: Lexicon, rng: Random) -> str:
    """Free text of one to five words."""
    return rng.choice(_PHRASES).format(
        a=lex.adjective(rng),
        a2=lex.adjective(rng),
        n=lex.noun(rng),
        n2=lex.noun(rng),
        ns=plural(lex.noun(rng)),
        v=lex.verb(rng),
        p=rng.choice(lex.first_names),
        c=lex.city(rng),
    )


def file_name(lex: Lexicon, rng: Random) -> str:
    """A file's name with its suffix."""
    words = [lex.word(rng) if rng.random() < 0.4 else lex.code_word(rng) for _ in range(rng.choice((1, 1, 2)))]
    return f"{rng.choice('_-_').join(words).replace(' ', '_')}.{rng.choice(lists.FILE_SUFFIXES)}"


def path(lex: Lexicon, rng: Random) -> str:
    """A path of a file, relative or absolute."""
    folders = [rng.choice(lists.FOLDERS)] + [lex.code_word(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
    return rng.choice(("", "", "/", "./")) + "/".join([*folders, file_name(lex, rng)])


def date(rng: Random) -> str:
    """A date in the ISO form, or in words."""
    month, day, year = rng.randint(1, 12), rng.randint(1, 28), rng.randint(1990, 2035)
    if rng.random() < 0.7:
        return f"{year}-{month:02}-{day:02}"
    return f"{_MONTHS[month - 1]} {day}" + (f", {year}" if rng.random() < 0.5 else "")


def time(rng: Random) -> str:
    """A time of the day."""
    minute = rng.choice((0, 15, 30, 45, rng.randint(0, 59)))
    return f"{rng.randint(0, 23):02}:{minute:02}" if rng.random() < 0.7 else f"{rng.randint(1, 12)}:{minute:02} pm"


def identifier(lex: Lexicon, rng: Random) -> str:
    """An id such as ``AB-1234``, ``x7f3k2`` or ``order-51``."""
    chance = rng.random()
    if chance < 0.4:
        letters = "".join(rng.choice("ABCDEFGHJKLMNPRSTVXYZ") for _ in range(rng.choice((1, 2, 3))))
        return f"{letters}{rng.choice(('-', '', '_'))}{rng.randint(10, 99999)}"
    if chance < 0.7:
        return "".join(rng.choice("abcdefghkmnprstxyz0123456789") for _ in range(rng.choice((5, 6, 8))))
    return f"{lex.invented(rng)}-{rng.randint(1, 999)}"


def email(lex: Lexicon, rng: Random) -> str:
    """An email address."""
    user = rng.choice((rng.choice(lex.first_names).lower(), lex.invented(rng)))
    tail = rng.choice(("", "", f".{lex.invented(rng)}", str(rng.randint(1, 99))))
    return f"{user}{tail}@{rng.choice((rng.choice(lists.DOMAINS), lex.invented(rng) + '.com'))}"


def url(lex: Lexicon, rng: Random) -> str:
    """A web address."""
    host = rng.choice((rng.choice(lists.DOMAINS), f"{lex.invented(rng)}.org"))
    return f"https://{host}/{lex.word(rng).replace(' ', '-')}" + rng.choice(("", f"/{rng.randint(1, 999)}"))


def address(lex: Lexicon, rng: Random) -> str:
    """A postal address of one line."""
    name = rng.choice((lex.invented(rng).capitalize(), rng.choice(lex.last_names)))
    return f"{rng.randint(1, 250)} {name} {rng.choice(_STREETS)}"


TEXT: Final = {
    "person": lambda lex, rng: lex.person(rng),
    "city": lambda lex, rng: lex.city(rng),
    "word": lambda lex, rng: lex.word(rng),
    "phrase": phrase,
    "path": path,
    "file": file_name,
    "date": lambda _, rng: date(rng),
    "time": lambda _, rng: time(rng),
    "id": identifier,
    "email": email,
    "url": url,
    "address": address,
}


def listed(items: list[str], rng: Random) -> str:
    """Items as a person lists them."""
    if len(items) == 1:
        return items[0]
    if rng.random() < 0.35:
        return ", ".join(items)
    return f"{', '.join(items[:-1])} {rng.choice(('and', 'and', 'and also'))} {items[-1]}"
