"""Whatever was done to the slots before, every answer is the one of a fresh slot that ran the same tokens at once.

One state machine drives all slots through advances, trees, commits, drafts, publications and restores, and compares
each answer with the oracle. It also counts what is published: `memory()` must agree at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgellm.engine.base import BlockRef, Chunk, DraftNodes, DraftResult, Executor, SnapshotRef, TokenTree

LONGEST = 100  # tokens of a sequence

slots = st.integers(0, 3)
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Prefix:
    tokens: tuple[int, ...]
    blocks: tuple[BlockRef, ...]
    snapshot: SnapshotRef


def same_draft(found: DraftResult, expected: DraftResult, tolerance: float) -> None:
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=tolerance)
    apart = expected.logprobs[:, :-1] - expected.logprobs[:, 1:] > 2 * tolerance  # equal ones may change places
    differs = found.token_ids[:, :-1] != expected.token_ids[:, :-1]
    first = np.cumprod(apart, axis=1).astype(bool)  # places before the first near-tie
    assert not (differs & first).any()


def row(result: DraftResult, node: int) -> DraftResult:
    return DraftResult(result.token_ids[node : node + 1], result.logprobs[node : node + 1])


class ExecutorMachine(RuleBasedStateMachine):
    """`self.held[slot]` are the tokens that the slot must hold."""

    executor: Executor
    oracle: Any
    tolerance = 1e-4  # of logits

    def __init__(self) -> None:
        super().__init__()
        for slot in range(4):
            self.executor.reset(slot)
        self.held: list[list[int]] = [[] for _ in range(4)]
        self.prefixes: list[Prefix] = []
        self.before = self.executor.memory()

    def new_tokens(self, seed: int, count: int) -> list[int]:
        """Few different tokens, so that prefixes and roots coincide now and then."""
        return [int(token) for token in np.random.default_rng(seed).integers(0, 6, count)]

    def check(self, row: Any, tokens: list[int]) -> None:
        np.testing.assert_allclose(row, self.oracle.logits(tokens), atol=self.tolerance)

    @rule(slot=slots, seed=seeds, count=st.integers(1, 60))
    def advance(self, slot: int, seed: int, count: int) -> None:
        count = min(count, LONGEST - len(self.held[slot]))
        if count > 0:
            tokens = self.new_tokens(seed, count)
            logits = self.executor.advance([Chunk(slot, tokens, seed % 4 > 0)])
            self.held[slot] += tokens
            assert logits.rows == (seed % 4 > 0)
            if logits.rows:
                self.check(logits.row(0), self.held[slot])
                assert logits.greedy()[0] == logits.row(0).argmax()

    @rule(order=st.permutations(range(4)), count=st.integers(2, 4), seed=seeds)
    def batch(self, order: list[int], count: int, seed: int) -> None:
        chosen = [slot for slot in order[:count] if len(self.held[slot]) < LONGEST]
        if chosen:
            tokens = self.new_tokens(seed, len(chosen))
            wanted = [bool(seed >> at & 1) for at in range(len(chosen))]
            chunks = [Chunk(slot, [t], want) for slot, t, want in zip(chosen, tokens, wanted, strict=True)]
            logits = self.executor.advance(chunks)
            assert logits.rows == sum(wanted)
            for slot, token in zip(chosen, tokens, strict=True):
                self.held[slot].append(token)
            for row, slot in enumerate(slot for slot, want in zip(chosen, wanted, strict=True) if want):
                self.check(logits.row(row), self.held[slot])

    @rule(slot=slots, seed=seeds, size=st.integers(1, 16), wide=st.booleans(), go_on=st.booleans())
    def tree(self, slot: int, seed: int, size: int, wide: bool, go_on: bool) -> None:
        size = min(size, LONGEST - len(self.held[slot]))
        if size < 1:
            return
        rng = np.random.default_rng(seed)
        parents = [-1, *(int(rng.integers(0, node) if wide else max(0, node - 1 - rng.integers(2)))
                         for node in range(1, size))]  # fmt: skip
        tokens = self.new_tokens(seed, size)
        paths = [[0]]
        for node in range(1, size):
            paths.append([*paths[parents[node]], node])
        logits = self.executor.verify(TokenTree(slot, tokens, parents))
        assert logits.rows == size
        for node in {0, size - 1, int(rng.integers(size))}:
            self.check(logits.row(node), self.held[slot] + [tokens[at] for at in paths[node]])
        if go_on:
            path = paths[int(rng.integers(size))]
            self.executor.commit(slot, path)
            self.held[slot] += [tokens[at] for at in path]

    @rule(slot=slots, seed=seeds)
    def draft(self, slot: int, seed: int) -> None:
        if self.held[slot]:
            root, *below = self.new_tokens(seed, 6)
            first = self.executor.draft([DraftNodes(slot, [root], [-1])])[0]
            same_draft(first, self.oracle.draft(self.held[slot], [root]), self.tolerance)
            second = self.executor.draft([DraftNodes(slot, below[:2], [0, 0])])[0]
            third = self.executor.draft([DraftNodes(slot, below[2:], [2, 1, 1])])[0]
            leaf = seed % 3  # of the third call; its parent in the second one is 1, 0, 0
            above = [1, 0, 0][leaf]
            same_draft(row(second, above), self.oracle.draft(self.held[slot], [root, below[above]]), self.tolerance)
            chain = [root, below[above], below[2 + leaf]]
            same_draft(row(third, leaf), self.oracle.draft(self.held[slot], chain), self.tolerance)

    @rule(slot=slots, seed=seeds, other=st.booleans())
    def step(self, slot: int, seed: int, other: bool) -> None:
        """What decoding does: a draft, a tree at the same root (or another one), a path of it, and the next draft."""
        if not self.held[slot] or len(self.held[slot]) + 4 > LONGEST:
            return
        root, *below = self.new_tokens(seed, 4)
        self.executor.draft([DraftNodes(slot, [root], [-1])])
        self.executor.draft([DraftNodes(slot, below[:2], [0, 0])])
        tokens = [(root + 1) % 6 if other else root, *below]
        logits = self.executor.verify(TokenTree(slot, tokens, [-1, 0, 0, 1]))
        self.check(logits.row(3), [*self.held[slot], tokens[0], tokens[1], tokens[3]])
        path = [[0], [0, 1], [0, 2], [0, 1, 3]][seed % 4]
        self.executor.commit(slot, path)
        self.held[slot] += [tokens[node] for node in path]
        found = self.executor.draft([DraftNodes(slot, [below[0]], [-1])])[0]
        same_draft(found, self.oracle.draft(self.held[slot], [below[0]]), self.tolerance)

    @rule(slot=slots)
    def publish(self, slot: int) -> None:
        tokens, step = self.held[slot], self.executor.info.block_tokens
        if tokens:
            starts = range(0, len(tokens), step)
            blocks = tuple(self.executor.publish(slot, at, min(at + step, len(tokens))) for at in starts)
            self.prefixes.append(Prefix(tuple(tokens), blocks, self.executor.snapshot(slot)))

    @rule(slot=slots, which=seeds)
    def restore(self, slot: int, which: int) -> None:
        if self.prefixes:
            found = self.prefixes[which % len(self.prefixes)]
            self.executor.restore(slot, len(found.tokens), found.blocks, found.snapshot)
            self.held[slot] = list(found.tokens)

    @rule(slot=slots, which=seeds, seed=seeds)
    def restore_shorter(self, slot: int, which: int, seed: int) -> None:
        """A snapshot inside a longer prefix: its last block is used in part."""
        if not self.prefixes:
            return
        found = self.prefixes[which % len(self.prefixes)]
        length = seed % len(found.tokens) + 1
        self.oracle.logits(found.tokens[:length])
        scratch = (slot + 1) % 4
        self.executor.reset(scratch)
        self.executor.advance([Chunk(scratch, found.tokens[:length], False)])
        self.held[scratch] = list(found.tokens[:length])
        snapshot = self.executor.snapshot(scratch)
        self.executor.restore(slot, length, found.blocks, snapshot)
        self.executor.free_snapshot(snapshot)
        self.held[slot] = list(found.tokens[:length])

    @rule(which=seeds)
    def free(self, which: int) -> None:
        if self.prefixes:
            found = self.prefixes.pop(which % len(self.prefixes))
            self.executor.free_snapshot(found.snapshot)
            for ref in found.blocks:
                self.executor.free_block(ref)

    @rule(slot=slots)
    def reset(self, slot: int) -> None:
        self.executor.reset(slot)
        self.held[slot] = []

    @invariant()
    def counted(self) -> None:
        memory = self.executor.memory()
        assert [self.executor.length(slot) for slot in range(4)] == [len(tokens) for tokens in self.held]
        assert memory["n_blocks"] == sum(len(found.blocks) for found in self.prefixes)
        assert memory["n_snapshots"] == len(self.prefixes)
        assert memory["blocks"] == memory["n_blocks"] * self.executor.info.block_bytes
        assert memory["snapshots"] == len(self.prefixes) * self.executor.info.snapshot_bytes

    def teardown(self) -> None:
        while self.prefixes:
            self.free(0)
        assert self.executor.memory() == self.before
