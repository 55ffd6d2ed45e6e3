"""What the scripted executor says: deterministic stand-ins for a language model.

A script maps a token prefix to a few candidate next tokens with logits; every other token has `FLOOR`. A prefix is
named by its `key`, a 64-bit polynomial hash, so a row costs the same at any depth. What must stay true: the same
prefix gives the same row whichever way it was reached, chunked, token by token, restored or as a tree node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

FLOOR = -100.0  # logit of every token that is not a candidate
_MASK = (1 << 64) - 1
BASE = 0x9E3779B97F4A7C15 | 1  # of the polynomial; odd, so that no token is ever shifted out


@dataclass(frozen=True, slots=True)
class Candidates:
    """Next tokens, best first: logits descend and equal logits are in order of token id."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """A token prefix. `decoding`: the prefix one token shorter has had a row, so this is not a new prompt."""

    key: int
    tokens: Callable[[], tuple[int, ...]]
    decoding: bool


class Script(Protocol):
    def target(self, prefix: Prefix) -> Candidates:
        """What the model says after `prefix`."""
        ...

    def draft(self, prefix: Prefix, k: int) -> tuple[Sequence[int], Sequence[float]]:
        """The draft layer's `k` best tokens after `prefix` and their log-probabilities, best first."""
        ...


def extend(key: int, token: int) -> int:
    """Key of a prefix with one more token; the empty prefix has key 0."""
    return (key * BASE + token + 1) & _MASK


def mix(value: int) -> int:
    """Finaliser of splitmix64: 64 bits that look independent for different inputs."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


# Log-probabilities of the four best drafts, one profile a node: sure, likely, open.
_PROFILES = (
    (-0.05, -3.6, -5.0, -6.5),
    (-0.3, -1.8, -3.0, -4.0),
    (-0.7, -1.2, -2.5, -3.5),
    (-1.1, -1.3, -1.9, -2.4),
)


@dataclass(frozen=True, slots=True)
class HashScript:
    """A random language model: the row after a prefix is drawn from a hash of the whole prefix.

    `alternatives` tokens are candidates at each position (at most the vocabulary: then every token has a logit); logits
    lie up to `spread` below the best. The draft layer puts the model's best token first with probability `agreement`,
    otherwise second or last. With `eos`, that token is the best one at a share `eos_rate` of the positions.
    """

    vocab_size: int
    seed: int = 0
    agreement: float = 0.8
    alternatives: int = 4
    spread: float = 6.0
    eos: int | None = None
    eos_rate: float = 0.0
    _rows: dict[int, Candidates] = field(default_factory=dict, init=False, repr=False, compare=False)

    def target(self, prefix: Prefix) -> Candidates:
        found = self._rows.get(prefix.key)
        if found is None:
            if len(self._rows) >= 1024:  # a node is drafted and verified within a step or two
                self._rows.clear()
            found = self._rows[prefix.key] = self._row(mix(prefix.key ^ mix(self.seed + 1)))
        return found

    def _row(self, bits: int) -> Candidates:
        logits: dict[int, float] = {}
        for index in range(min(self.alternatives, self.vocab_size)):
            value = mix(bits + index * BASE & _MASK)
            token = value % self.vocab_size
            while token in logits:
                token = (token + 1) % self.vocab_size
            logits[token] = 10.0 - self.spread * ((value >> 40) / (1 << 24))
        if self.eos is not None and (bits >> 32) < self.eos_rate * (1 << 32):
            logits[self.eos] = 11.0
        ids = sorted(logits, key=lambda token: (-logits[token], token))
        return Candidates(tuple(ids), tuple([logits[token] for token in ids]))

    def draft(self, prefix: Prefix, k: int) -> tuple[Sequence[int], Sequence[float]]:
        return disagree(self.target(prefix).ids, k, prefix.key ^ self.seed, self.agreement, self.vocab_size)


Reply = Sequence[int] | Mapping[tuple[int, ...], Sequence[int]] | Callable[[tuple[int, ...]], Sequence[int]]


class ReplyScript:
    """Says a given text after each prompt, then `eos` for ever.

    `reply` is the text as token ids, a mapping from prompt to text (key `()` for any other prompt), or a function of
    the prompt. A prompt is a prefix whose row is asked for without its parent's. The scripted token leads by 40, so no
    temperature leaves the text; penalties, bias and constraints can, and then only `eos` follows.
    """

    MEMORY = 1 << 20  # positions remembered; the oldest prompts are forgotten first

    def __init__(self, reply: Reply, *, eos: int, vocab_size: int, agreement: float = 0.8) -> None:
        self._reply = reply
        self._eos = eos
        self._vocab_size = vocab_size
        self._agreement = agreement
        self._places: dict[int, tuple[Sequence[int], int]] = {}  # prefix key → text and how much of it was said

    def target(self, prefix: Prefix) -> Candidates:
        best = self._best(prefix)
        others: list[int] = []
        for index in range(3):
            token = mix(prefix.key + index + 1 & _MASK) % self._vocab_size
            if token != best and token not in others:
                others.append(token)
        return Candidates((best, *sorted(others)), (10.0, *[-30.0] * len(others)))

    def draft(self, prefix: Prefix, k: int) -> tuple[Sequence[int], Sequence[float]]:
        return disagree((self._best(prefix),), k, prefix.key, self._agreement, self._vocab_size)

    def _best(self, prefix: Prefix) -> int:
        place = self._places.get(prefix.key)
        if place is None:
            if prefix.decoding:  # off the text: what follows is the end
                return self._eos
            place = self._start(prefix)
        text, said = place
        return text[said] if said < len(text) else self._eos

    def _start(self, prefix: Prefix) -> tuple[Sequence[int], int]:
        prompt = prefix.tokens()
        if callable(self._reply):
            text: Sequence[int] = tuple(self._reply(prompt))
        elif isinstance(self._reply, Mapping):
            found = self._reply.get(prompt, self._reply.get(()))
            if found is None:
                raise KeyError(f"no scripted reply to this prompt of {len(prompt)} tokens: {prompt[:8]}…")
            text = tuple(found)
        else:
            text = self._reply
        while len(self._places) > self.MEMORY:
            self._places.pop(next(iter(self._places)))
        key = prefix.key
        for said, token in enumerate(text):
            self._places[key] = (text, said)
            key = extend(key, token)
        self._places[key] = (text, len(text))
        return self._places[prefix.key]


def disagree(
    best: Sequence[int], k: int, key: int, agreement: float, vocab_size: int
) -> tuple[Sequence[int], Sequence[float]]:
    """Drafts for a model that ranks `best` first: right with probability `agreement`, otherwise second or absent."""
    bits = mix(key ^ 0xD1B54A32D192ED03)
    ranked = list(best[:k])
    fill = bits
    while len(ranked) < min(k, vocab_size):
        fill = mix(fill + 1 & _MASK)
        token = fill % vocab_size
        while token in ranked:
            token = (token + 1) % vocab_size
        ranked.append(token)
    if (bits & 0xFFFFFFFF) >= agreement * (1 << 32) and len(ranked) > 1:
        if bits >> 63:
            ranked[0], ranked[1] = ranked[1], ranked[0]
        else:
            ranked.append(ranked.pop(0))
    profile = _PROFILES[(bits >> 40) & 3]
    return ranked, [profile[i] if i < 4 else profile[3] - (i - 3) for i in range(len(ranked))]
