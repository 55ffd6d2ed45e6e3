"""An endless, resumable stream of batches of conversations of like length.

What must stay true: the batches depend only on the sampler, the settings and the stages asked for; a stream made from
`state()` continues with exactly the batches that the first one would have given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from edgellm.text.tokenizer import Tokenizer
from edgetiny.conversations import conversation
from edgetiny.rendering import render
from edgetiny.tokenizer import chat_template
from edgetiny.words import Split

Tokens: TypeAlias = tuple[Sequence[int], Sequence[int]]  # ids and loss mask, of equal length
Sampler: TypeAlias = Callable[[int, float], Tokens]  # (index, stage) -> tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded sequences.

    Attributes:
        ids: i64 [B, T].
        mask: bool [B, T], true on tokens to learn, never on padding.
        repeats: bool [B, T], true on other tokens that follow the one before them for at least the second time in their
            sequence. They can be told from what came before, so they teach copying, and they are as many as the first.
        tokens: without padding.
    """

    ids: Tensor
    mask: Tensor
    repeats: Tensor
    tokens: int

    @classmethod
    def of(cls, samples: Sequence[Tokens]) -> Batch:
        length = max(len(ids) for ids, _ in samples)
        ids = torch.zeros(len(samples), length, dtype=torch.int64)
        mask, again = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
        for row, (tokens, learn) in enumerate(samples):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(learn)] = torch.tensor(learn, dtype=torch.bool)
            again[row, : len(learn)] = torch.tensor(_repeats(tokens), dtype=torch.bool)
        return cls(ids, mask, again & ~mask, sum(len(tokens) for tokens, _ in samples))


def _repeats(ids: Sequence[int]) -> list[bool]:
    """Whether each token follows the one before it for at least the second time."""
    seen: set[tuple[int, int]] = set()
    found = [False]
    for pair in pairwise(ids):
        found.append(pair in seen)
        seen.add(pair)
    return found


def conversations(seed: int, split: Split, tokenizer: Path) -> Sampler:
    """Conversations of the data package, as ids of the tokenizer in a folder."""
    loaded, template = Tokenizer.load(tokenizer), chat_template()
    return lambda index, stage: render(conversation(seed, index, split, stage), loaded, template)


class Stream:
    """Batches from pools of consecutive samples, sorted by length within a pool.

    Args:
        sample: gives the sample of an index.
        size: tokens per batch, padding included, at most (a longer single sample makes a batch of its own).
        longest: longer samples are left out.
        pool: samples that are sorted together.
        state: where to continue.
    """

    def __init__(
        self, sample: Sampler, *, size: int, longest: int, pool: int = 256, state: dict[str, Any] | None = None
    ) -> None:
        self._sample, self._size, self._longest, self._pool = sample, size, longest, pool
        self._start, self._stage, self._taken = 0, 0.0, 0
        self._batches: list[list[Tokens]] = []
        if state is not None:
            self._start, self._stage, self._taken = state["start"], state["stage"], state["taken"]
            if self._taken:
                self._batches = self._fill()

    def state(self) -> dict[str, Any]:
        """What `Stream` needs to continue: the pool, its stage and how many of its batches were taken."""
        return {"start": self._start, "stage": self._stage, "taken": self._taken}

    def next(self, stage: float) -> Batch:
        """The next batch; `stage` (0 to 1) counts where a new pool begins."""
        while self._taken >= len(self._batches):
            if self._batches:
                self._start += self._pool
            self._stage, self._taken = stage, 0
            self._batches = self._fill()
            if not self._batches:
                raise ValueError(f"no sample from {self._start} to {self._start + self._pool} fits {self._longest}")
        self._taken += 1
        return Batch.of(self._batches[self._taken - 1])

    def _fill(self) -> list[list[Tokens]]:
        made = (self._sample(index, self._stage) for index in range(self._start, self._start + self._pool))
        samples = sorted(
            (tokens for tokens in made if len(tokens[0]) <= self._longest), key=lambda tokens: len(tokens[0])
        )
        batches: list[list[Tokens]] = []
        for tokens in samples:  # growing lengths: the newest is the longest of its batch
            if not batches or (len(batches[-1]) + 1) * len(tokens[0]) > self._size:
                batches.append([])
            batches[-1].append(tokens)
        random.Random(self._start).shuffle(batches)
        return batches
