"""The scripted executor keeps the contract of base.py and notices every breach of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.engine.base import Chunk, DraftNodes, Executor, TokenTree
from edgellm.engine.scripted import ScriptedExecutor, ScriptTiming, fail_at
from edgellm.engine.scripts import HashScript, ReplyScript

VOCAB = 100


def make(**options: Any) -> ScriptedExecutor:
    return ScriptedExecutor(**{"vocab_size": VOCAB, "block_tokens": 4, "max_tokens": 64, "max_chunk": 8, **options})


def fill(executor: ScriptedExecutor, slot: int, tokens: list[int]) -> int:
    """Advance over `tokens` in one-token chunks; the greedy token that follows."""
    for token in tokens[:-1]:
        executor.advance([Chunk(slot, [token], False)])
    return int(executor.advance([Chunk(slot, tokens[-1:], True)]).greedy()[0])


def test_is_an_executor() -> None:
    executor: Executor = make()
    assert executor.info.vocab_size == VOCAB


@given(
    tokens=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=40),
    cuts=st.lists(st.integers(1, 8), max_size=40),
    restored=st.integers(1, 39),
)
@settings(max_examples=100, deadline=None)
def test_a_row_depends_on_the_prefix_only(tokens: list[int], cuts: list[int], restored: int) -> None:
    """Token by token, in chunks, from a restored prefix, or as a node of a tree: the same row."""
    executor = make(slots=2)
    expected = fill(executor, 0, tokens)
    assert executor.tokens(0) == tuple(tokens)

    executor.reset(1)
    place = 0
    for cut in [*cuts, *[8] * 40]:
        if place < len(tokens):
            logits = executor.advance([Chunk(1, tokens[place : place + cut], place + cut >= len(tokens))])
            place = min(place + cut, len(tokens))
    assert logits.greedy()[0] == expected
    row = logits.row(0).copy()

    length = min(restored, len(tokens) - 1)
    executor.reset(0)
    fill(executor, 0, tokens[:length])
    snapshot = executor.snapshot(0)
    fill(executor, 0, tokens[length:])
    blocks = [executor.publish(0, at, min(at + 4, len(tokens))) for at in range(0, length, 4)]  # last one may go past
    executor.restore(1, length, blocks, snapshot)
    assert executor.length(1) == length
    rest = tokens[length:][:16]
    tree = TokenTree(1, [*rest, 0], [*range(-1, len(rest) - 1), -1 if not rest else 0])
    if len(rest) == len(tokens) - length and len(tree.tokens) <= 16:
        logits = executor.verify(tree)
        np.testing.assert_array_equal(logits.row(len(rest) - 1), row)
        executor.commit(1, list(range(len(rest))))
        assert executor.tokens(1) == tuple(tokens)
    for ref in blocks:
        executor.free_block(ref)
    executor.free_snapshot(snapshot)
    assert executor.memory()["n_blocks"] == executor.memory()["n_snapshots"] == 0


def test_dumps_survive_into_an_executor_of_the_same_fingerprint() -> None:
    first, second = make(), make()
    expected = fill(first, 0, [1, 2, 3, 4, 5, 6])
    first.reset(0)
    fill(first, 0, [1, 2, 3, 4, 5])
    blocks = [first.dump_block(first.publish(0, 0, 4)), first.dump_block(first.publish(0, 4, 5))]
    snapshot = first.dump_snapshot(first.snapshot(0))
    second.restore(2, 5, [second.load_block(data) for data in blocks], second.load_snapshot(snapshot))
    assert fill(second, 2, [6]) == expected
    with pytest.raises(AssertionError, match="fingerprint"):
        make(fingerprint="other").load_block(blocks[0])
    with pytest.raises(AssertionError, match="fingerprint"):
        second.load_snapshot(blocks[0])


def test_a_restored_slot_publishes_the_same_blocks() -> None:
    executor = make()
    fill(executor, 0, [*range(10)])
    blocks = [executor.publish(0, at, min(at + 4, 10)) for at in (0, 4, 8)]
    snapshot = executor.snapshot(0)
    executor.restore(1, 10, blocks, snapshot)
    executor.verify(TokenTree(1, [20, 21, 22], [-1, 0, 1]))
    executor.commit(1, [0, 1, 2])  # across the end of a block
    again = [executor.publish(1, at, min(at + 4, 13)) for at in (0, 4, 8, 12)]
    executor.restore(2, 13, again, executor.snapshot(1))
    assert executor.tokens(2) == executor.tokens(1) == (*range(10), 20, 21, 22)
    executor.restore(1, 0, [], None)
    assert executor.length(1) == 0
    fill(executor, 1, [*range(10)])
    assert executor.dump_block(executor.publish(1, 4, 8)) == executor.dump_block(blocks[1])


def restore_other_prefix(e: ScriptedExecutor) -> None:
    block = e.publish(0, 4, 6)
    fill(e, 1, [9, 2, 3, 4])  # differs in the first token
    first = e.publish(1, 0, 4)
    e.restore(2, 6, [first, block], e.snapshot(0))


def restore_other_snapshot(e: ScriptedExecutor) -> None:
    fill(e, 1, [9, 2, 3, 4, 5, 6])
    e.restore(2, 6, [e.publish(0, 0, 4), e.publish(0, 4, 6)], e.snapshot(1))


def use_after_free(e: ScriptedExecutor) -> None:
    ref = e.snapshot(0)
    e.free_snapshot(ref)
    e.free_snapshot(ref)


def stale_logits(e: ScriptedExecutor) -> None:
    logits = e.advance([Chunk(0, [1], True)])
    e.advance([Chunk(1, [1], True)])
    logits.greedy()


def stale_tree(e: ScriptedExecutor) -> None:
    e.verify(TokenTree(0, [1], [-1]))
    e.advance([Chunk(0, [1], True)])
    e.commit(0, [0])


def commit_twice(e: ScriptedExecutor) -> None:
    e.verify(TokenTree(0, [1], [-1]))
    e.commit(0, [0])
    e.commit(0, [0])


def verified_then_commit(path: list[int]) -> Callable[[ScriptedExecutor], None]:
    def run(e: ScriptedExecutor) -> None:
        e.verify(TokenTree(0, [1, 2, 3, 4], [-1, 0, 0, 1]))
        e.commit(0, path)

    return run


def second_thread(e: ScriptedExecutor) -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            e.reset(1)
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


BREACHES: dict[str, tuple[Callable[[ScriptedExecutor], Any], str]] = {
    "slot": (lambda e: e.length(9), "slot 9"),
    "token": (lambda e: e.advance([Chunk(0, [VOCAB], True)]), "outside the vocabulary"),
    "negative token": (lambda e: e.verify(TokenTree(0, [-1], [-1])), "negative"),
    "empty chunk": (lambda e: e.advance([Chunk(0, [], True)]), "chunk of 0"),
    "long chunk": (lambda e: e.advance([Chunk(0, [1] * 9, True)]), "at most 8"),
    "ragged batch": (lambda e: e.advance([Chunk(0, [1, 2], True), Chunk(1, [1], True)]), "hold one token"),
    "slot twice": (lambda e: e.advance([Chunk(0, [1], True), Chunk(0, [1], True)]), "twice"),
    "context end": (lambda e: [e.advance([Chunk(0, [1] * 8, False)]) for _ in range(8)], "room for"),
    "tree past the end": (
        lambda e: [*[e.advance([Chunk(1, [1] * 8, False)]) for _ in range(8)], e.verify(TokenTree(1, [1], [-1]))],
        "room for 0",
    ),
    "publish offset": (lambda e: e.publish(0, 1, 3), "multiple of 4"),
    "publish size": (lambda e: e.publish(0, 0, 5), "publish of"),
    "publish uncommitted": (lambda e: e.publish(0, 4, 7), "committed"),
    "snapshot of nothing": (lambda e: e.snapshot(1), "empty slot"),
    "restore without snapshot": (lambda e: e.restore(1, 4, [e.publish(0, 0, 4)], None), "without a snapshot"),
    "snapshot at another length": (lambda e: e.restore(1, 4, [e.publish(0, 0, 4)], e.snapshot(0)), "of 6 tokens"),
    "blocks too short": (lambda e: e.restore(1, 6, [e.publish(0, 0, 4)], e.snapshot(0)), "cover 4 of 6"),
    "gap between blocks": (
        lambda e: e.restore(1, 6, [e.publish(0, 0, 3), e.publish(0, 4, 6)], e.snapshot(0)),
        "gap at 3",
    ),
    "blocks out of order": (lambda e: e.restore(1, 6, [e.publish(0, 4, 6)], e.snapshot(0)), "starts at 4"),
    "block of another prefix": (restore_other_prefix, "block 1 belongs to another prefix"),
    "snapshot of another prefix": (restore_other_snapshot, "snapshot at 6 belongs to another prefix"),
    "use after free": (use_after_free, "was freed"),
    "unknown block": (lambda e: e.free_block(12345), "never existed"),  # type: ignore[arg-type]
    "stale logits": (stale_logits, "no longer valid"),
    "tree too large": (lambda e: e.verify(TokenTree(0, [1] * 17, [-1] * 17)), "at most 16"),
    "no root": (lambda e: e.verify(TokenTree(0, [1, 2], [0, 0])), "not a root"),
    "order of parents": (lambda e: e.verify(TokenTree(0, [1, 2, 3], [-1, 2, 0])), "before its parent"),
    "commit without verify": (lambda e: e.commit(0, [0]), "without a verified tree"),
    "commit of a stale tree": (stale_tree, "without a verified tree"),
    "commit twice": (commit_twice, "without a verified tree"),
    "empty path": (verified_then_commit([]), "empty path"),
    "path without root": (verified_then_commit([1]), "starts at the root"),
    "path across branches": (verified_then_commit([0, 2, 3]), "not a child of 2"),
    "path out of the tree": (verified_then_commit([0, 7]), "not in the tree"),
    "draft without root": (lambda e: e.draft([DraftNodes(0, [1], [0])]), "without a root"),
    "draft parent": (
        lambda e: [e.draft([DraftNodes(0, [1], [-1])]), e.draft([DraftNodes(0, [2, 3], [0, 1])])],
        "parent 1",
    ),
    "closed": (lambda e: [e.close(), e.reset(0)], "closed"),
    "thread": (second_thread, "second thread"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_breach(name: str) -> None:
    breach, message = BREACHES[name]
    executor = make()
    fill(executor, 0, [1, 2, 3, 4, 5, 6])
    with pytest.raises(AssertionError, match=message):
        breach(executor)


def test_a_refused_call_changes_nothing() -> None:
    executor = make()
    fill(executor, 0, [1, 2, 3])
    with pytest.raises(AssertionError):
        executor.advance([Chunk(1, [5], True), Chunk(0, [VOCAB], True)])
    assert executor.tokens(0) == (1, 2, 3)
    assert executor.length(1) == 0


def test_injected_fault_comes_before_any_change() -> None:
    executor = make(on_call=fail_at("advance", 2, RuntimeError("device lost")))
    executor.advance([Chunk(0, [1], True)])
    with pytest.raises(RuntimeError, match="device lost"):
        executor.advance([Chunk(0, [2], True)])
    assert executor.tokens(0) == (1,)
    executor.advance([Chunk(0, [2], True)])
    assert executor.calls == {"advance": 3}


def test_timing_model_is_accepted() -> None:
    executor = make(timing=ScriptTiming(prefill_token_s=1e-6, decode_step_s=1e-6, draft_step_s=1e-6))
    executor.advance([Chunk(0, [1, 2], True)])
    executor.draft([DraftNodes(0, [3], [-1])])
    executor.verify(TokenTree(0, [3], [-1]))


def test_rows_are_read_only_and_agree_with_greedy() -> None:
    logits = make(script=HashScript(VOCAB, alternatives=VOCAB)).verify(TokenTree(0, [1, 2, 3], [-1, 0, 0]))
    assert logits.greedy().tolist() == [int(logits.row(i).argmax()) for i in range(logits.rows)]
    with pytest.raises(ValueError, match="read-only"):
        logits.row(0)[0] = 1.0


def test_drafts_agree_as_often_as_asked() -> None:
    for agreement in (0.0, 0.7, 1.0):
        executor = make(script=HashScript(VOCAB, agreement=agreement), max_tokens=2000)
        hits = 0
        token = int(executor.advance([Chunk(0, [1], True)]).greedy()[0])
        for _ in range(600):
            result = executor.draft([DraftNodes(0, [token], [-1])])[0]
            assert (np.diff(result.logprobs) <= 0).all()
            assert len(set(result.token_ids[0].tolist())) == 4
            token = int(executor.advance([Chunk(0, [token], True)]).greedy()[0])
            hits += int(result.token_ids[0, 0] == token)
        assert abs(hits / 600 - agreement) < 0.08


def reply(executor: ScriptedExecutor, slot: int, prompt: list[int], count: int) -> list[int]:
    executor.reset(slot)
    found = []
    tokens = prompt
    for _ in range(count):
        tokens = [int(executor.advance([Chunk(slot, tokens, True)]).greedy()[0])]
        found += tokens
    return found


def test_replies() -> None:
    fixed = make(script=ReplyScript([7, 8, 9], eos=0, vocab_size=VOCAB))
    assert reply(fixed, 0, [1, 2], 5) == [7, 8, 9, 0, 0]
    assert reply(fixed, 1, [7], 4) == [7, 8, 9, 0]
    assert reply(fixed, 1, [1, 2, 7, 8], 3) == [9, 0, 0]  # a prompt that ends inside a known text goes on with it
    by_prompt = make(script=ReplyScript({(1, 2): [3], (): [4, 5]}, eos=0, vocab_size=VOCAB))
    assert reply(by_prompt, 0, [1, 2], 2) == [3, 0]
    assert reply(by_prompt, 0, [1, 3], 3) == [4, 5, 0]
    echo = make(script=ReplyScript(lambda prompt: prompt[-2:], eos=0, vocab_size=VOCAB))
    assert reply(echo, 0, [5, 6, 7], 3) == [6, 7, 0]
    with pytest.raises(KeyError, match="no scripted reply"):
        reply(make(script=ReplyScript({}, eos=0, vocab_size=VOCAB)), 0, [1], 1)


def test_off_the_text_only_the_end_follows_in_a_tree_as_in_a_chain() -> None:
    executor = make(script=ReplyScript([7, 8, 9], eos=0, vocab_size=VOCAB))
    executor.advance([Chunk(0, [1], True)])
    assert executor.verify(TokenTree(0, [7, 5, 8], [-1, 0, 0])).greedy().tolist() == [8, 0, 9]
    executor.commit(0, [0])
    assert executor.advance([Chunk(0, [5], True)]).greedy().tolist() == [0]
    assert executor.advance([Chunk(0, [6], True)]).greedy().tolist() == [0]
    assert reply(executor, 1, [1, 7, 5], 2) == [7, 8]  # as a prompt the same tokens get a reply
