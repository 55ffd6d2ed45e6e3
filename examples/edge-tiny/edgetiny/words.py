"""Word material, split into words for training and words held out.

What must stay true: a word belongs to one split for ever (a hash of its letters decides, not its place in a list), and
a `Lexicon` only gives words of its own split, so no name or string value built from it is seen by the other split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final, Literal
from zlib import crc32

from edgetiny import lists
from edgetiny.lists import words

Split = Literal["train", "held_out"]
_HELD_OUT_OF: Final = 8  # one word in so many is held out
# How often a word is one that nobody knows. Often in training: a model that has seen each word a hundred times
# completes it from memory where it should copy it, and then fails on held-out words.
_UNKNOWN: Final[dict[Split, float]] = {"train": 0.45, "held_out": 0.15}
_UNKNOWN_VERBS: Final[dict[Split, float]] = {"train": 0.45, "held_out": 0.075}  # verbs tell what is wanted
# Words that every user of functions knows; holding them out would measure nothing.
_NEVER_HELD_OUT: Final = frozenset(
    words("get list update remove order change select move download code page field option contact area job photo")
)
_ONSETS: Final = words("b c d f g h j k l m n p r s t v w z br ch cl dr fl fr gl gr kl kr pl pr sh sk sl st th tr")
_VOWELS: Final = words("a e i o u a e i o u ai ea ee oa oo ou y")
_CODAS: Final = words("b d g k l m n p r s t x ck ft lm ld nd nt nk rd rk rm rn sk st th") + ("",) * 12


def split_of(word: str) -> Split:
    """The split a word belongs to, whatever its case."""
    word = word.lower()
    return "held_out" if crc32(word.encode()) % _HELD_OUT_OF == 0 and word not in _NEVER_HELD_OUT else "train"


def plural(noun: str) -> str:
    """Plural of a regular English noun."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def a(phrase: str) -> str:
    """`phrase` with its indefinite article."""
    vowel = phrase[0].lower() in "aeiou" and not phrase.startswith(("uni", "use"))
    return f"{'an' if vowel else 'a'} {phrase}"


def invented(rng: Random, syllables: int = 2) -> str:
    """A pronounceable word that means nothing; of either split."""
    parts = []
    for n in range(syllables):
        parts.append(rng.choice(_ONSETS) + rng.choice(_VOWELS))
        if n == syllables - 1 or rng.random() < 0.25:
            parts.append(rng.choice(_CODAS))
    return "".join(parts)


@dataclass(frozen=True)
class Lexicon:
    """The words of one split."""

    split: Split
    verbs: Sequence[str]
    nouns: Sequence[str]
    adjectives: Sequence[str]
    first_names: Sequence[str]
    last_names: Sequence[str]
    cities: Sequence[str]
    code_words: Sequence[str]

    def invented(self, rng: Random) -> str:
        """An invented word of this split. In training most are made of parts of real ones."""
        while True:
            mixed = self.split == "train" and rng.random() < 0.6
            word = self._mixed(rng) if mixed else invented(rng, rng.choice((1, 2, 2, 2, 3)))
            if 2 < len(word) < 13 and split_of(word) == self.split:
                return word

    def _mixed(self, rng: Random) -> str:
        """The beginning of one word and the end of another, so that any piece of a word may follow any other."""
        first, last = (rng.choice(rng.choice((self.verbs, self.nouns, self.adjectives, self.code_words))) for _ in "12")
        return first[: rng.randint(1, len(first))] + last[rng.randint(0, len(last) - 1) :]

    def _known(self, rng: Random, known: Sequence[str]) -> str:
        return self.invented(rng) if rng.random() < _UNKNOWN[self.split] else rng.choice(known)

    def verb(self, rng: Random) -> str:
        """A verb, sometimes an invented one."""
        return self.invented(rng) if rng.random() < _UNKNOWN_VERBS[self.split] else rng.choice(self.verbs)

    def adjective(self, rng: Random) -> str:
        """An adjective, sometimes an invented one."""
        return self._known(rng, self.adjectives)

    def code_word(self, rng: Random) -> str:
        """A word of programs and paths, sometimes an invented one."""
        return self._known(rng, self.code_words)

    def noun(self, rng: Random) -> str:
        """A noun, sometimes an invented one."""
        return self._known(rng, self.nouns)

    def thing(self, rng: Random) -> str:
        """One or two words that name a thing: ``hotel``, ``hotel room``, ``small room``."""
        noun = self.noun(rng)
        chance = rng.random()
        if chance < 0.35:
            return f"{self.noun(rng)} {noun}"
        return f"{self.adjective(rng)} {noun}" if chance < 0.45 else noun

    def word(self, rng: Random) -> str:
        """Any content word."""
        chance = rng.random()
        if chance < 0.4:
            return self.invented(rng)
        return (self.noun if chance < 0.7 else self.adjective if chance < 0.85 else self.code_word)(rng)

    def person(self, rng: Random) -> str:
        """A first name, or a full name."""
        first = self._known(rng, self.first_names).capitalize()
        if rng.random() < 0.5:
            return first
        last = self._known(rng, self.last_names).capitalize()
        return f"{first} {last}"

    def city(self, rng: Random) -> str:
        """A city, real or invented."""
        return rng.choice(self.cities) if rng.random() > _UNKNOWN[self.split] else self.invented(rng).capitalize()


@cache
def lexicon(split: Split) -> Lexicon:
    """The words of `split`."""

    def own(text: str) -> tuple[str, ...]:
        return tuple(sorted({word.replace("_", " ") for word in words(text) if split_of(word) == split}))

    return Lexicon(
        split,
        own(lists.VERBS),
        own(lists.NOUNS),
        own(lists.ADJECTIVES),
        own(lists.FIRST_NAMES),
        own(lists.LAST_NAMES),
        own(lists.CITIES),
        own(lists.CODE_WORDS),
    )
