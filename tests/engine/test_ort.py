"""The executor's edges: wrong calls, faults, limits, stored bytes, bundles without MTP and with quantized weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.base import BlockRef, Chunk, DraftNodes, SnapshotRef, TokenTree
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.recipe import Recipe
from edgellm.engine.registry import open_executor
from edgellm.errors import BundleError, ConfigError, ExecutionError


@pytest.fixture
def held(executor: OrtExecutor, tokens: list[int]) -> OrtExecutor:
    """40 tokens in slot 0."""
    executor.advance([Chunk(0, tokens[:40], False)])
    return executor


# -- wrong calls change nothing

WRONG_CALLS = {
    "slot 4 of 4": lambda e: e.length(4),
    "slot -1 of 4": lambda e: e.reset(-1),
    "advance of 0 chunks": lambda e: e.advance([]),
    "advance of 5 chunks": lambda e: e.advance([Chunk(slot, [1], False) for slot in (0, 1, 2, 3, 3)]),
    "a slot appears twice": lambda e: e.advance([Chunk(0, [1], False), Chunk(0, [1], False)]),
    "chunk of 2 tokens in slot 1: at most 1": lambda e: e.advance([Chunk(0, [1], False), Chunk(1, [1, 2], False)]),
    "chunk of 0 tokens": lambda e: e.advance([Chunk(0, [], False)]),
    "chunk of 129 tokens": lambda e: e.advance([Chunk(0, [1] * 129, False)]),
    "token 1024 is outside": lambda e: e.advance([Chunk(0, [1, 1024], False)]),
    "token -1 is outside": lambda e: e.verify(TokenTree(0, [1, -1], [-1, 0])),
    "tree of 0 nodes": lambda e: e.verify(TokenTree(0, [], [])),
    "tree of 17 nodes": lambda e: e.verify(TokenTree(0, [1] * 17, [*range(-1, 16)])),
    "one parent per token": lambda e: e.verify(TokenTree(0, [1, 2], [-1])),
    "and -1 for the root": lambda e: e.verify(TokenTree(0, [1], [0])),
    "node 1 comes before its parent 1": lambda e: e.verify(TokenTree(0, [1, 2], [-1, 1])),
    "node 1 comes before its parent -1": lambda e: e.verify(TokenTree(0, [1, 2], [-1, -1])),
    "no verified tree": lambda e: e.commit(0, [0]),
    "draft of 1 nodes in slot 1 with 0 tokens": lambda e: e.draft([DraftNodes(1, [1], [-1])]),
    "draft of 2 nodes": lambda e: e.draft([DraftNodes(0, [1, 2], [-1])]),
    "not nodes of the slot's tree of 0": lambda e: e.draft([DraftNodes(0, [1], [0])]),
    "token 5000 is outside": lambda e: e.draft([DraftNodes(0, [5000], [-1])]),
    r"tokens \[8, 16\) are not a block": lambda e: e.publish(0, 8, 16),
    r"tokens \[0, 17\) are not a block": lambda e: e.publish(0, 0, 17),
    r"tokens \[32, 41\) are not a block": lambda e: e.publish(0, 32, 41),
    r"tokens \[16, 16\) are not a block": lambda e: e.publish(0, 16, 16),
    r"tokens \[-16, 0\) are not a block": lambda e: e.publish(0, -16, 0),
    "snapshot of the empty slot 2": lambda e: e.snapshot(2),
    "reference 999999 was freed": lambda e: e.free_block(BlockRef(999999)),
    "reference 999998 was freed": lambda e: e.free_snapshot(SnapshotRef(999998)),
    "restore of 257 tokens": lambda e: e.restore(0, 257, [], None),
    "restore of -1 tokens": lambda e: e.restore(0, -1, [], None),
    "needs a snapshot of as many, not None": lambda e: e.restore(0, 16, [], None),
}


@pytest.mark.parametrize("named", WRONG_CALLS)
def test_wrong_calls_change_nothing(held: OrtExecutor, oracle: Any, tokens: list[int], named: str) -> None:
    before = held.memory()
    with pytest.raises(ValueError, match=named):
        WRONG_CALLS[named](held)
    assert held.memory() == before
    row = held.advance([Chunk(0, tokens[40:41], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens[:41]), atol=1e-4)


def test_wrong_restores(held: OrtExecutor, tokens: list[int]) -> None:
    blocks = [held.publish(0, at, min(at + 16, 40)) for at in (0, 16, 32)]
    snapshot = held.snapshot(0)
    for length, refs, kept, named in [
        (39, blocks, snapshot, "needs a snapshot of as many, not 40"),
        (40, blocks[:2], snapshot, "do not cover 40 tokens"),
        (40, [blocks[0], blocks[2], blocks[1]], snapshot, "do not cover 40 tokens"),
        (40, [*blocks[:2], BlockRef(10**6)], snapshot, "was freed or never existed"),
        (40, blocks, SnapshotRef(10**6), "was freed or never existed"),
    ]:
        with pytest.raises(ValueError, match=named):
            held.restore(1, length, refs, kept)
        assert held.length(1) == 0
    for ref in blocks:
        held.free_block(ref)
    with pytest.raises(ValueError, match="was freed"):
        held.free_block(blocks[0])
    held.free_snapshot(snapshot)


def test_wrong_paths(held: OrtExecutor) -> None:
    held.verify(TokenTree(0, [1, 2, 3, 4], [-1, 0, 0, 2]))
    for path in ([], [1], [0, 3], [0, 2, 1], [0, 0], [0, 4], [0, -1]):
        with pytest.raises(ValueError, match="does not go down the tree"):
            held.commit(0, path)
    held.commit(0, [0, 2, 3])
    with pytest.raises(ValueError, match="no verified tree"):
        held.commit(0, [0])


def test_a_tree_is_forgotten_when_the_slot_changes(held: OrtExecutor) -> None:
    tree = TokenTree(0, [1, 2], [-1, 0])
    snapshot = held.snapshot(0)
    blocks = [held.publish(0, at, min(at + 16, 40)) for at in (0, 16, 32)]
    for change in (
        lambda: held.advance([Chunk(0, [1], False)]),
        lambda: held.restore(0, 40, blocks, snapshot),
        lambda: held.reset(0),
    ):
        held.verify(tree)
        held.advance([Chunk(1, [1], False)])  # another slot
        change()
        with pytest.raises(ValueError, match="no verified tree"):
            held.commit(0, [0])
    held.free_snapshot(snapshot)
    for ref in blocks:
        held.free_block(ref)


def test_logits_are_read_only_and_end_with_the_next_call(held: OrtExecutor) -> None:
    logits = held.advance([Chunk(0, [1], True)])
    with pytest.raises(ValueError, match="read-only"):
        logits.row(0)[0] = 1
    held.verify(TokenTree(0, [1], [-1]))
    for read in (logits.greedy, lambda: logits.row(0)):
        with pytest.raises(RuntimeError, match="no longer valid"):
            read()


# -- limits


def test_the_context_can_be_filled_to_its_end(executor: OrtExecutor, oracle: Any, tokens: list[int]) -> None:
    size = executor.info.max_tokens
    for start in range(0, size - 4, 84):
        executor.advance([Chunk(3, tokens[start : start + 84], False)])
    assert executor.length(3) == size - 4
    parents = [-1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    tree = [*tokens[size - 4 :], *tokens[:12]]
    executor.draft([DraftNodes(3, tree[:1], [-1])])
    for node in range(1, 30):  # a draft may look beyond the end
        executor.draft([DraftNodes(3, [node], [node - 1])])
    np.testing.assert_allclose(executor.verify(TokenTree(3, tree, parents)).row(3), oracle.logits(tokens), atol=1e-4)
    executor.commit(3, [0, 1, 2])
    with pytest.raises(ValueError, match="a tree of depth 2, room for 1"):
        executor.verify(TokenTree(3, [1, 2], [-1, 0]))
    row = executor.advance([Chunk(3, tokens[-1:], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens), atol=1e-4)
    with pytest.raises(ValueError, match="room for 0"):
        executor.advance([Chunk(3, [1], False)])


def test_draft_trees_are_bounded(held: OrtExecutor) -> None:
    held.draft([DraftNodes(0, [1], [-1])])
    held.draft([DraftNodes(0, [2] * 120, [0] * 120)])
    with pytest.raises(ValueError, match="at most 128"):
        held.draft([DraftNodes(0, [2] * 8, [0] * 8)])
    held.draft([DraftNodes(0, [2] * 7, [0] * 7)])


def test_settings_out_of_range(bundle: Bundle) -> None:
    for settings, named in [
        ({"slots": 0}, "slots must be at least 1"),
        ({"slots": 1, "threads": 0}, "threads must be at least 1"),
        ({"slots": 1, "context": 0}, "context 0 is outside 1 to 256"),
        ({"slots": 1, "context": 257}, "context 257 is outside 1 to 256"),
        ({"slots": 1 << 22}, "ask for fewer slots or a context of at most"),
    ]:
        with pytest.raises(ConfigError, match=named):
            open_executor(bundle, **settings)  # type: ignore[arg-type]


def test_memory_of_a_closed_executor(bundle: Bundle) -> None:
    executor = open_executor(bundle, slots=1)
    executor.advance([Chunk(0, [1] * 20, False)])
    executor.publish(0, 0, 16)
    info, used = executor.info, executor.memory()
    assert used["blocks"] == info.block_bytes
    executor.close()
    assert executor.memory()["n_blocks"] == 0
    with pytest.raises(ValueError, match="closed"):
        executor.advance([Chunk(0, [1], False)])


# -- faults


@pytest.mark.parametrize("graph", ["_advance", "_verify", "_commit", "draft"])
def test_a_failed_run_breaks_its_slot_only(
    held: OrtExecutor, oracle: Any, tokens: list[int], monkeypatch: pytest.MonkeyPatch, graph: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no memory")

    held.advance([Chunk(1, tokens[:30], False)])
    blocks, snapshot = [held.publish(0, at, min(at + 16, 40)) for at in (0, 16, 32)], held.snapshot(0)
    held.verify(TokenTree(0, [1, 2], [-1, 0]))
    calls = {
        "_advance": lambda: held.advance([Chunk(0, [1], False)]),
        "_verify": lambda: held.verify(TokenTree(0, [1, 2], [-1, 0])),
        "_commit": lambda: held.commit(0, [0]),
        "draft": lambda: held.draft([DraftNodes(0, [1], [-1])]),
    }
    with monkeypatch.context() as patch:
        owner = held._draft._graph if graph == "draft" and held._draft else getattr(held._decoder, graph)
        patch.setattr(owner, "run", fail)
        with pytest.raises(ExecutionError, match=r"slots \[0\] failed: no memory"):
            calls[graph]()
    for call in (*calls.values(), lambda: held.snapshot(0), lambda: held.publish(0, 0, 16)):
        with pytest.raises(ExecutionError, match="reset or restore it first"):
            call()
    row = held.advance([Chunk(1, tokens[30:31], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens[:31]), atol=1e-4)
    held.restore(0, 40, blocks, snapshot)
    row = held.advance([Chunk(0, tokens[40:41], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens[:41]), atol=1e-4)
    held.free_snapshot(snapshot)
    for ref in blocks:
        held.free_block(ref)


# -- stored bytes


def test_a_prefix_moves_to_another_executor(held: OrtExecutor, bundle: Bundle, oracle: Any, tokens: list[int]) -> None:
    blocks = [held.publish(0, at, min(at + 16, 40)) for at in (0, 16, 32)]
    snapshot = held.snapshot(0)
    stored, state = [held.dump_block(ref) for ref in blocks], held.dump_snapshot(snapshot)
    other = open_executor(bundle, slots=2, context=100)
    try:
        assert other.info.fingerprint == held.info.fingerprint
        loaded = [other.load_block(data) for data in stored]
        other.restore(1, 40, loaded, other.load_snapshot(state))
        found = other.draft([DraftNodes(1, tokens[40:41], [-1])])[0]
        np.testing.assert_allclose(found.logprobs, oracle.draft(tokens[:40], tokens[40:41]).logprobs, atol=1e-4)
        row = other.advance([Chunk(1, tokens[40:41], True)]).row(0)
        np.testing.assert_allclose(row, oracle.logits(tokens[:41]), atol=1e-4)
        assert [other.dump_block(ref) for ref in loaded] == stored
        assert other.memory()["blocks"] == 3 * other.info.block_bytes
    finally:
        other.close()
    held.free_snapshot(snapshot)
    for ref in blocks:
        held.free_block(ref)


def test_stored_bytes_of_something_else_are_refused(held: OrtExecutor) -> None:
    block, snapshot = held.publish(0, 0, 16), held.snapshot(0)
    data, state = held.dump_block(block), held.dump_snapshot(snapshot)
    header, body = data.split(b"\n", 1)
    before = held.memory()

    def changed(**values: Any) -> bytes:
        return json.dumps(json.loads(header) | values).encode() + b"\n" + body

    for wrong, named in [
        (b"", "not JSON"),
        (b"\n", "not JSON"),
        (b"{}\n", "not a block"),
        (b"[1]\n", "not a block"),
        (b"[" * 10**5 + b"\n", "not JSON"),
        (state, "not a block"),
        (changed(fingerprint="other"), "belongs to 'other'"),
        (changed(length=17), "length 17"),
        (changed(length="1"), "length '1'"),
        (changed(length=8), "shapes"),
        (changed(shapes=[[1, 2]]), "shapes"),
        (data[:-1], "bytes of values"),
        (data + b"\0", "bytes of values"),
    ]:
        with pytest.raises(BundleError, match=named):
            held.load_block(wrong)
    with pytest.raises(BundleError, match="not a snapshot"):
        held.load_snapshot(data)
    assert held.memory() == before
    held.free_block(block)
    held.free_snapshot(snapshot)


# -- other bundles


def test_without_speculation(bundle: Bundle, oracle: Any, tokens: list[int]) -> None:
    executor = open_executor(bundle, slots=1, speculation=False)
    assert executor.info.max_tree == executor.info.draft_top_k == 0
    row = executor.advance([Chunk(0, tokens[:50], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens[:50]), atol=1e-4)
    with pytest.raises(ValueError, match="no draft layer"):
        executor.draft([DraftNodes(0, [1], [-1])])
    with pytest.raises(ValueError, match="a tree of 1 nodes"):
        executor.verify(TokenTree(0, [1], [-1]))
    snapshot = executor.snapshot(0)
    with pytest.raises(BundleError, match="belongs to"):
        oracle.executor.load_snapshot(executor.dump_snapshot(snapshot))
    executor.close()


@pytest.fixture(scope="module", params=["f32", "int8", "int4"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrtExecutor]:
    """A model without MTP, untrained shapes, in each precision."""
    folder: Path = tmp_path_factory.mktemp("plain")
    make_checkpoint("parity-odd", folder / "checkpoint", mtp_num_hidden_layers=0)
    recipe = Recipe(precision=request.param, context=128, block_tokens=16)
    made = OrtExecutor(
        Bundle.open(build_bundle(folder / "checkpoint", folder / "bundle", recipe)),
        slots=2,
        context=128,
        threads=1,
        speculation=True,
    )
    yield made
    made.close()


def test_a_model_without_mtp_in_every_precision(plain: OrtExecutor, tokens: list[int]) -> None:
    """Trees, commits and restores agree with chains; rounding activations to int8 may move a logit a little."""
    ids = [token % 509 for token in tokens]
    assert plain.info.draft_top_k == 0
    plain.advance([Chunk(0, ids[:30], False)])
    tree = TokenTree(0, ids[30:35], [-1, 0, 0, 2, 3])
    rows = plain.verify(tree)
    found = [rows.row(node).copy() for node in range(5)]
    plain.commit(0, [0, 2, 3])
    path = [*ids[:31], ids[32], ids[33]]
    plain.reset(1)
    plain.advance([Chunk(1, path[:30], False)])
    for at, node in enumerate((0, 2, 3)):
        row = plain.advance([Chunk(1, path[30 + at : 31 + at], True)]).row(0)
        np.testing.assert_allclose(row, found[node], atol=1e-3)
    blocks = [plain.publish(0, at, min(at + 16, 33)) for at in (0, 16, 32)]
    plain.restore(1, 33, blocks, plain.snapshot(0))
    rows = plain.advance([Chunk(0, [7], True), Chunk(1, [7], True)])
    np.testing.assert_allclose(rows.row(0), rows.row(1), atol=1e-5)
    plain.reset(0)
