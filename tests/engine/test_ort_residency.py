"""A restore copies only blocks whose rows the slot does not hold, and never trusts rows that were overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgellm.engine.base import BlockRef, Chunk, DraftNodes, SnapshotRef, TokenTree
from edgellm.engine.ort import OrtExecutor

Copies = list[list[int]]


@pytest.fixture
def copies(executor: OrtExecutor, monkeypatch: pytest.MonkeyPatch) -> Copies:
    """For each restore, the first tokens of the blocks that were copied."""
    seen: Copies = []
    write = executor._pools.write

    def watched(slot: int, blocks: Any, snapshot: Any) -> None:
        seen.append([start for start, _ in blocks])
        write(slot, blocks, snapshot)

    monkeypatch.setattr(executor._pools, "write", watched)
    return seen


def fill(executor: OrtExecutor, slot: int, tokens: list[int]) -> tuple[list[BlockRef], SnapshotRef]:
    """Advance an empty slot and publish everything."""
    executor.reset(slot)
    executor.advance([Chunk(slot, tokens, False)])
    blocks = [executor.publish(slot, at, min(at + 16, len(tokens))) for at in range(0, len(tokens), 16)]
    return blocks, executor.snapshot(slot)


def check(executor: OrtExecutor, oracle: Any, slot: int, tokens: list[int]) -> None:
    """The slot holds all but the last token: logits and drafts are those of a fresh one."""
    same = executor.draft([DraftNodes(slot, tokens[-1:], [-1])])[0]
    np.testing.assert_allclose(same.logprobs, oracle.draft(tokens[:-1], tokens[-1:]).logprobs, atol=1e-4)
    row = executor.advance([Chunk(slot, tokens[-1:], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens), atol=1e-4)


def test_a_conversation_that_returns_to_its_slot_copies_nothing(
    executor: OrtExecutor, oracle: Any, tokens: list[int], copies: Copies
) -> None:
    blocks, snapshot = fill(executor, 0, tokens[:40])
    executor.advance([Chunk(0, tokens[100:110], False)])
    executor.reset(0)
    executor.restore(0, 40, blocks, snapshot)
    check(executor, oracle, 0, tokens[:41])
    executor.restore(1, 40, blocks, snapshot)
    check(executor, oracle, 1, tokens[:41])
    assert copies == [[], [0, 16, 32]]  # the advance wrote behind the rows of the partial block


def test_overwritten_rows_are_copied_again(
    executor: OrtExecutor, oracle: Any, tokens: list[int], copies: Copies
) -> None:
    blocks, snapshot = fill(executor, 0, tokens[:40])
    executor.reset(0)
    executor.advance([Chunk(0, [5, 6, 7], False)])
    executor.restore(0, 40, blocks, snapshot)
    check(executor, oracle, 0, tokens[:41])
    assert copies == [[0, 16, 32]]


def _advance(executor: OrtExecutor) -> None:
    executor.advance([Chunk(0, [5, 6, 7], False)])


def _verify(executor: OrtExecutor) -> None:
    executor.verify(TokenTree(0, [5, 6, 7], [-1, 0, 0]))


def _draft(executor: OrtExecutor) -> None:
    executor.draft([DraftNodes(0, [5], [-1])])
    executor.draft([DraftNodes(0, [6, 7], [0, 0])])


@pytest.mark.parametrize("disturb", [_advance, _verify, _draft])
@pytest.mark.parametrize("length", [31, 32, 33])
def test_scratch_rows_of_a_shorter_restore(
    executor: OrtExecutor,
    oracle: Any,
    tokens: list[int],
    copies: Copies,
    disturb: Callable[[OrtExecutor], None],
    length: int,
) -> None:
    _, short = fill(executor, 1, tokens[:length])
    blocks, snapshot = fill(executor, 0, tokens[:60])
    executor.restore(0, length, blocks, short)
    disturb(executor)
    executor.restore(0, 60, blocks, snapshot)
    check(executor, oracle, 0, tokens[:61])
    assert copies[0] == []  # all of it was there
    assert copies[1] == ([16, 32, 48] if length == 31 else [32, 48])


def test_references_of_another_prefix_are_not_mistaken(
    executor: OrtExecutor, oracle: Any, tokens: list[int], copies: Copies
) -> None:
    one, _ = fill(executor, 0, tokens[:32])
    other, snapshot = fill(executor, 1, tokens[:16] + tokens[50:70])
    executor.restore(0, 36, other, snapshot)
    check(executor, oracle, 0, tokens[:16] + tokens[50:71])
    for ref in one:
        executor.free_block(ref)
    third, last = fill(executor, 2, tokens[80:112])
    executor.restore(0, 32, third, last)
    check(executor, oracle, 0, tokens[80:113])
    assert copies == [[0, 16, 32], [0, 16]]
