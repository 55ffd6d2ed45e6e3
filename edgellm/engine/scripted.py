"""An executor without a model: replays a script, keeps literal tokens, checks every precondition of the contract.

It serves the tests of everything above the executor and measures host overhead. What must stay true: whatever a real
executor may answer wrongly or corrupt (a block of another prefix, a snapshot at another length, a stale row, a freed
reference, a path that is not in the tree) raises AssertionError here, and `memory()` counts every live reference.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import (
    BlockRef,
    Chunk,
    DraftNodes,
    DraftResult,
    ExecutorInfo,
    SnapshotRef,
    TokenTree,
)
from edgellm.engine.scripts import BASE, FLOOR, Candidates, HashScript, Prefix, Script, extend

_MASK = (1 << 64) - 1
_Ref = TypeVar("_Ref")
_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class ScriptTiming:
    """Seconds that calls take. All zero: as fast as Python."""

    prefill_token_s: float = 0.0  # a token of a chunk of more than one
    decode_step_s: float = 0.0  # an advance of single tokens, or a verify
    draft_step_s: float = 0.0


OnCall = Callable[[str, int], None]


def fail_at(operation: str, count: int, error: Exception) -> OnCall:
    """An `on_call` hook that raises `error` at the `count`-th call (from 1) of `operation`."""

    def hook(name: str, number: int) -> None:
        if name == operation and number == count:
            raise error

    return hook


@dataclass(frozen=True, slots=True)
class _Block:
    start: int
    tokens: NDArray[np.int64]
    before: int  # key of the prefix [0, start)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    length: int
    key: int


@dataclass(slots=True)
class _Nodes:
    """Tokens, parents and prefix keys of a tree."""

    tokens: list[int]
    parents: list[int]
    keys: list[int]


class _Slot:
    __slots__ = ("block_keys", "decoding", "drafted", "key", "length", "tokens", "tree")

    def __init__(self, max_tokens: int) -> None:
        self.tokens = np.zeros(max_tokens, np.int64)
        self.length = 0
        self.key = 0  # of all committed tokens
        self.block_keys = [0]  # keys of the prefixes that end where a block starts
        self.decoding = False  # the last committed token has had a row
        self.tree: _Nodes | None = None  # last verified, not committed
        self.drafted: _Nodes | None = None

    def changed(self, *, decoding: bool) -> None:
        self.decoding = decoding
        self.tree = None
        self.drafted = None


class ScriptedLogits:
    """Rows of one call. Reading them after the executor's next call is an error."""

    def __init__(self, executor: ScriptedExecutor, prefixes: Sequence[Prefix]) -> None:
        self._executor = executor
        self._clock = executor.clock
        self._prefixes = prefixes
        self._greedy: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        return len(self._prefixes)

    def greedy(self) -> NDArray[np.int64]:
        self._check()
        if self._greedy is None:
            self._greedy = np.array([self._candidates(index).ids[0] for index in range(self.rows)], np.int64)
        return self._greedy

    def row(self, index: int) -> NDArray[np.float32]:
        self._check()
        found = self._candidates(index)
        dense = np.full(self._executor.info.vocab_size, FLOOR, np.float32)
        dense[list(found.ids)] = found.logits
        dense.flags.writeable = False
        return dense

    def _candidates(self, index: int) -> Candidates:
        return self._executor.script.target(self._prefixes[index])

    def _check(self) -> None:
        assert self._clock == self._executor.clock, "these logits are no longer valid: the executor was called again"


class ScriptedExecutor:
    """See the module's docstring. `on_call(operation, number)` runs before each operation and may raise."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        vocab_size: int = 4096,
        slots: int = 4,
        max_tokens: int = 16384,
        max_chunk: int = 512,
        max_batch: int = 8,
        max_tree: int = 16,
        draft_top_k: int = 4,
        block_tokens: int = 64,
        block_bytes: int = 1 << 16,
        snapshot_bytes: int = 1 << 18,
        fingerprint: str = "scripted",
        timing: ScriptTiming | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self.script: Script = script or HashScript(vocab_size)
        self.clock = 0  # changes with every call that may overwrite logits
        self.calls: dict[str, int] = {}
        self._info = ExecutorInfo(
            slots=slots,
            max_tokens=max_tokens,
            max_chunk=max_chunk,
            max_batch=max_batch,
            max_tree=max_tree,
            draft_top_k=draft_top_k,
            block_tokens=block_tokens,
            block_bytes=block_bytes,
            snapshot_bytes=snapshot_bytes,
            vocab_size=vocab_size,
            fingerprint=fingerprint,
        )
        self._timing = timing or ScriptTiming()
        self._on_call = on_call
        self._slots = [_Slot(max_tokens) for _ in range(slots)]
        self._blocks: dict[BlockRef, _Block] = {}
        self._snapshots: dict[SnapshotRef, _Snapshot] = {}
        self._next_ref = 1  # never reused: a freed reference stays wrong
        self._thread: int | None = None
        self._closed = False
        powers = [1]
        for _ in range(block_tokens):
            powers.append(powers[-1] * BASE & _MASK)
        self._powers = np.array(powers[::-1], np.uint64)

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def length(self, slot: int) -> int:
        return self._slot(slot).length

    def tokens(self, slot: int) -> tuple[int, ...]:
        """The committed tokens of `slot` (not part of the contract; for tests)."""
        found = self._slot(slot)
        return tuple(found.tokens[: found.length].tolist())

    def reset(self, slot: int) -> None:
        self._enter("reset")
        found = self._slot(slot)
        found.length, found.key, found.block_keys = 0, 0, [0]
        found.changed(decoding=False)

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        self._enter("restore")
        found = self._slot(slot)
        assert 0 <= length <= self._info.max_tokens, f"restore to {length} of {self._info.max_tokens} tokens"
        key, keys = 0, [0]
        if length:
            assert snapshot is not None, "restore of a prefix without a snapshot"
            kept = self._live(self._snapshots, snapshot, "snapshot")
            assert kept.length == length, f"restore to {length} with a snapshot of {kept.length} tokens"
            covered = 0
            for index, ref in enumerate(blocks):
                block = self._live(self._blocks, ref, "block")
                assert block.start == index * self._info.block_tokens, f"block {index} starts at {block.start}"
                assert block.start == covered, f"block {index} leaves a gap at {covered}"
                assert block.before == key, f"block {index} belongs to another prefix"
                used = block.tokens[: length - block.start]
                found.tokens[covered : covered + len(used)] = used
                covered += len(used)
                key = self._extended(key, used)
                if len(used) == self._info.block_tokens:
                    keys.append(key)
            assert covered == length, f"blocks cover {covered} of {length} tokens"
            assert kept.key == key, f"snapshot at {length} belongs to another prefix than the blocks"
        found.length, found.key, found.block_keys = length, key, keys
        found.changed(decoding=False)

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        self._enter("publish")
        found, size = self._slot(slot), self._info.block_tokens
        assert start % size == 0, f"publish from {start}: not a multiple of {size}"
        assert 0 <= start < end <= start + size, f"publish of [{start}, {end})"
        assert end <= found.length, f"publish up to {end} of {found.length} committed tokens"
        return self._keep_block(_Block(start, found.tokens[start:end].copy(), found.block_keys[start // size]))

    def snapshot(self, slot: int) -> SnapshotRef:
        self._enter("snapshot")
        found = self._slot(slot)
        assert found.length > 0, "snapshot of an empty slot"
        return self._keep_snapshot(_Snapshot(found.length, found.key))

    def free_block(self, ref: BlockRef) -> None:
        self._live(self._blocks, ref, "block")
        del self._blocks[ref]

    def free_snapshot(self, ref: SnapshotRef) -> None:
        self._live(self._snapshots, ref, "snapshot")
        del self._snapshots[ref]

    def dump_block(self, ref: BlockRef) -> bytes:
        block = self._live(self._blocks, ref, "block")
        return self._header(b"B") + struct.pack("<qQ", block.start, block.before) + block.tokens.tobytes()

    def load_block(self, data: bytes) -> BlockRef:
        self._enter("load_block")
        body = self._body(b"B", data)
        start, before = struct.unpack_from("<qQ", body)
        return self._keep_block(_Block(start, np.frombuffer(body[16:], np.int64), before))

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        kept = self._live(self._snapshots, ref, "snapshot")
        return self._header(b"S") + struct.pack("<qQ", kept.length, kept.key)

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        self._enter("load_snapshot")
        return self._keep_snapshot(_Snapshot(*struct.unpack("<qQ", self._body(b"S", data))))

    def advance(self, batch: Sequence[Chunk]) -> ScriptedLogits:
        self._enter("advance")
        info = self._info
        assert 1 <= len(batch) <= info.max_batch, f"advance of {len(batch)} chunks, at most {info.max_batch}"
        assert len(batch) == 1 or all(len(chunk.tokens) == 1 for chunk in batch), "chunks of a batch hold one token"
        assert len({chunk.slot for chunk in batch}) == len(batch), "a slot appears twice in one advance"
        for chunk in batch:  # all checks before any change
            size = len(chunk.tokens)
            assert 1 <= size <= info.max_chunk, f"chunk of {size} tokens, at most {info.max_chunk}"
            room = info.max_tokens - self._slot(chunk.slot).length
            assert size <= room, f"chunk of {size} tokens, room for {room}"
            self._check_tokens(chunk.tokens)
        prefixes = [self._append(chunk) for chunk in batch]
        longest = max(len(chunk.tokens) for chunk in batch)
        self._sleep(self._timing.decode_step_s if longest == 1 else self._timing.prefill_token_s * longest)
        return ScriptedLogits(self, [prefix for prefix in prefixes if prefix is not None])

    def verify(self, tree: TokenTree) -> ScriptedLogits:
        self._enter("verify")
        found, info = self._slot(tree.slot), self._info
        assert 1 <= len(tree.tokens) <= info.max_tree, f"tree of {len(tree.tokens)} nodes, at most {info.max_tree}"
        assert len(tree.parents) == len(tree.tokens), "parents and tokens differ in number"
        assert tree.parents[0] == -1, "node 0 is not a root"
        self._check_tokens(tree.tokens)
        nodes = _Nodes([], [], [])
        depths: list[int] = []
        for index, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            assert index == 0 or 0 <= parent < index, f"node {index} comes before its parent {parent}"
            depths.append(depths[parent] + 1 if index else 1)
            self._add(found, nodes, token, parent)
        room = info.max_tokens - found.length
        assert max(depths) <= room, f"tree of depth {max(depths)}, room for {room} tokens"
        found.tree = nodes
        self._sleep(self._timing.decode_step_s)
        return ScriptedLogits(self, [self._prefix(found, nodes, index) for index in range(len(nodes.keys))])

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self._enter("commit")
        found = self._slot(slot)
        nodes = found.tree
        assert nodes is not None, "commit without a verified tree (or the slot changed since)"
        assert len(path) > 0, "commit of an empty path"
        assert path[0] == 0, "a path starts at the root"
        for above, node in itertools.pairwise(path):
            assert 0 < node < len(nodes.tokens), f"path node {node} is not in the tree"
            assert nodes.parents[node] == above, f"path node {node} is not a child of {above}"
        for node in path:
            found.tokens[found.length] = nodes.tokens[node]
            found.length, found.key = found.length + 1, nodes.keys[node]
            if found.length % self._info.block_tokens == 0:
                found.block_keys.append(found.key)
        found.changed(decoding=True)

    def draft(self, batch: Sequence[DraftNodes]) -> list[DraftResult]:
        self._enter("draft")
        assert self._info.draft_top_k > 0, "this executor has no draft layer"
        assert len({nodes.slot for nodes in batch}) == len(batch), "a slot appears twice in one draft"
        result = [self._draft(nodes) for nodes in batch]
        self._sleep(self._timing.draft_step_s)
        return result

    def memory(self) -> dict[str, int]:
        info = self._info
        return {
            "weights": 0,
            "slots": sum(slot.tokens.nbytes for slot in self._slots),
            "blocks": len(self._blocks) * info.block_bytes,
            "snapshots": len(self._snapshots) * info.snapshot_bytes,
            "n_blocks": len(self._blocks),
            "n_snapshots": len(self._snapshots),
        }

    def close(self) -> None:
        self._closed = True

    # -- inside

    def _enter(self, operation: str) -> None:
        assert not self._closed, f"{operation} on a closed executor"
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        assert self._thread == thread, f"{operation} from a second thread"
        number = self.calls[operation] = self.calls.get(operation, 0) + 1
        self.clock += 1
        if self._on_call is not None:
            self._on_call(operation, number)

    def _slot(self, slot: int) -> _Slot:
        assert 0 <= slot < self._info.slots, f"slot {slot} of {self._info.slots}"
        return self._slots[slot]

    @staticmethod
    def _live(table: dict[_Ref, _Kept], ref: _Ref, kind: str) -> _Kept:
        found = table.get(ref)
        assert found is not None, f"{kind} reference {ref} was freed or never existed"
        return found

    def _keep_block(self, block: _Block) -> BlockRef:
        ref = BlockRef(self._next_ref)
        self._next_ref += 1
        self._blocks[ref] = block
        return ref

    def _keep_snapshot(self, kept: _Snapshot) -> SnapshotRef:
        ref = SnapshotRef(self._next_ref)
        self._next_ref += 1
        self._snapshots[ref] = kept
        return ref

    def _check_tokens(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        size = self._info.vocab_size
        assert min(tokens) >= 0, f"negative token {min(tokens)}"
        assert max(tokens) < size, f"token {max(tokens)} is outside the vocabulary of {size}"

    def _extended(self, key: int, tokens: NDArray[np.int64]) -> int:
        """`extend` over up to a block of tokens at once: the same sum of products modulo 2**64."""
        count = len(tokens)
        if count == 1:
            return extend(key, int(tokens[0]))
        weights = self._powers[len(self._powers) - count :]
        total = int(np.dot(tokens.astype(np.uint64) + np.uint64(1), weights))
        return (key * int(self._powers[len(self._powers) - 1 - count]) + total) & _MASK

    def _append(self, chunk: Chunk) -> Prefix | None:
        found = self._slot(chunk.slot)
        size, continued = len(chunk.tokens), found.decoding
        end, block = found.length + size, self._info.block_tokens
        found.tokens[found.length : end] = chunk.tokens
        while found.length < end:
            stop = min(end, found.length - found.length % block + block)
            found.key = self._extended(found.key, found.tokens[found.length : stop])
            found.length = stop
            if stop % block == 0:
                found.block_keys.append(found.key)
        found.changed(decoding=chunk.logits)
        if not chunk.logits:
            return None
        length = found.length
        prefix = Prefix(found.key, lambda: tuple(found.tokens[:length].tolist()), continued and size == 1)
        if not prefix.decoding:
            self.script.target(prefix)  # the script learns where a prompt ends, whether or not the row is read
        return prefix

    @staticmethod
    def _add(slot: _Slot, nodes: _Nodes, token: int, parent: int) -> None:
        nodes.tokens.append(token)
        nodes.parents.append(parent)
        nodes.keys.append(extend(slot.key if parent < 0 else nodes.keys[parent], token))

    @staticmethod
    def _prefix(slot: _Slot, nodes: _Nodes, index: int) -> Prefix:
        length, parent = slot.length, nodes.parents[index]

        def tokens() -> tuple[int, ...]:
            path = [index]
            while nodes.parents[path[-1]] >= 0:
                path.append(nodes.parents[path[-1]])
            return (*slot.tokens[:length].tolist(), *[nodes.tokens[node] for node in reversed(path)])

        return Prefix(nodes.keys[index], tokens, slot.decoding if parent < 0 else True)

    def _draft(self, added: DraftNodes) -> DraftResult:
        found = self._slot(added.slot)
        assert len(added.tokens) == len(added.parents) > 0, "draft tokens and parents differ in number, or none"
        self._check_tokens(added.tokens)
        if list(added.parents) == [-1]:
            found.drafted = _Nodes([], [], [])
        nodes = found.drafted
        assert nodes is not None, "draft without a root (or the slot changed since)"
        first = len(nodes.tokens)
        for token, parent in zip(added.tokens, added.parents, strict=True):
            assert (parent == -1 and first == 0) or 0 <= parent < first, f"draft parent {parent} is not in the tree"
            self._add(found, nodes, token, parent)
        best = [
            self.script.draft(self._prefix(found, nodes, index), self._info.draft_top_k)
            for index in range(first, len(nodes.tokens))
        ]
        return DraftResult(
            np.array([ids for ids, _ in best], np.int64), np.array([logprobs for _, logprobs in best], np.float32)
        )

    def _header(self, kind: bytes) -> bytes:
        return kind + self._info.fingerprint.encode() + b"\0"

    def _body(self, kind: bytes, data: bytes) -> bytes:
        header = self._header(kind)
        assert data.startswith(header), "not a dump of this executor's fingerprint"
        return data[len(header) :]

    @staticmethod
    def _sleep(seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
