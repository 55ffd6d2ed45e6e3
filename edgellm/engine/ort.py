"""The ONNX Runtime executor: runs a bundle's graphs on the CPU and owns the memory of its slots.

A slot has contiguous KV rows; publish and restore copy. A restore skips blocks whose rows the slot still holds, so a
conversation that returns to its slot copies only what changed. Single tokens of several sequences run as one batch per
run of neighbouring slots (a batch is a contiguous view of the pools, and the kernels take ragged lengths only for one
token a sequence); trees run one by one. What must stay true: everything is checked before anything is changed, and a
failed run leaves its slots marked broken until they are reset or restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import BlockRef, Chunk, DraftNodes, DraftResult, ExecutorInfo, SnapshotRef, TokenTree
from edgellm.engine.bundle import Bundle
from edgellm.engine.checks import check_block, check_chunks, check_draft, check_path, check_restore, check_tree
from edgellm.engine.guard import SlotGuard
from edgellm.engine.huge_pages import huge_pages
from edgellm.engine.ort_decoder import Decoder
from edgellm.engine.ort_draft import SCRATCH_ROWS, DraftLayer
from edgellm.engine.ort_logits import ArrayLogits
from edgellm.engine.ort_memory import Pools, check_memory
from edgellm.engine.ort_store import Store
from edgellm.engine.payload import pack_block, pack_snapshot, unpack_block, unpack_snapshot
from edgellm.errors import ConfigError
from edgellm.graph.export import WEIGHTS
from edgellm.graph.mtp import DRAFT_TOP_K


@dataclass(slots=True)
class SlotState:
    """What the host knows of one slot."""

    length: int = 0
    tree: TokenTree | None = None  # last verified, until the slot changes
    resident: list[tuple[BlockRef, int]] = field(default_factory=list)  # (block, its end): rows held from token 0 on
    broken: bool = False

    def forget_from(self, token: int) -> None:
        """Rows of `token` and later ones are about to be written."""
        while self.resident and self.resident[-1][1] > token:
            self.resident.pop()


class OrtExecutor:
    """See the module's docstring; the contract is `edgellm.engine.base.Executor`.

    Broken preconditions raise ValueError, a failed run `ExecutionError`.

    Args:
        context: tokens a slot can hold, at most the bundle's context.
        speculation: load what verify, commit and draft need (draft also needs a bundle with MTP).

    Raises:
        ConfigError: a setting is out of range, or the memory that it implies is not there.
    """

    def __init__(self, bundle: Bundle, *, slots: int, context: int, threads: int, speculation: bool) -> None:
        manifest, spec = bundle.manifest, bundle.manifest.spec
        if not 1 <= context <= manifest.context:
            raise ConfigError(f"context {context} is outside 1 to {manifest.context}, what the bundle was built for")
        if slots < 1 or threads < 1:
            raise ConfigError(f"{'slots' if slots < 1 else 'threads'} must be at least 1")
        mtp = speculation and spec.mtp_layers > 0
        tree = manifest.tree_nodes if speculation else 0
        chunk = min(manifest.prefill_chunk, context)
        rows = context + SCRATCH_ROWS
        # Each session keeps the weights in its own packed form: advance, and verify with speculation.
        self._weights = bundle.file(WEIGHTS).stat().st_size * (2 if speculation else 1)
        check_memory(spec, slots, context, rows, mtp=mtp, weights=self._weights)
        self._pools = Pools(
            spec, slots, rows, mtp=mtp, block_tokens=manifest.block_tokens, copy_threads=min(threads, 8)
        )
        with huge_pages():
            self._decoder = Decoder(bundle.path, threads, spec, self._pools, chunk=chunk, tree=tree)
            self._draft = (
                DraftLayer(bundle.path / "mtp.onnx", threads, spec, self._pools, positions=manifest.context)
                if mtp
                else None
            )
        self._slots = [SlotState() for _ in range(slots)]
        self._store = Store(self._pools)
        self._hidden = spec.hidden if mtp else 0  # values of a snapshot's boundary row
        self._guard = SlotGuard(self._slots, "model")
        self._info = ExecutorInfo(
            slots=slots,
            max_tokens=context,
            max_chunk=chunk,
            max_batch=slots,
            max_tree=tree,
            draft_top_k=DRAFT_TOP_K if mtp else 0,
            block_tokens=manifest.block_tokens,
            block_bytes=self._pools.token_bytes * manifest.block_tokens,
            snapshot_bytes=self._pools.state_bytes + 4 * self._hidden,
            vocab_size=spec.vocab,
            fingerprint=f"{bundle.fingerprint}-{'mtp' if mtp else 'plain'}",
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def length(self, slot: int) -> int:
        return self._guard.slot(slot).length

    def reset(self, slot: int) -> None:
        state = self._guard.slot(slot)
        self._pools.clear_state(slot)
        if self._draft:
            self._draft.reset(slot)
        state.length, state.tree, state.broken = 0, None, False

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        state, step = self._guard.slot(slot), self._info.block_tokens
        if length == 0:
            self.reset(slot)
            return
        kept = None if snapshot is None else self._store.snapshot(snapshot)
        found = [self._store.block(ref) for ref in blocks[: -(-length // step)]]
        check_restore(self._info, length, None if kept is None else kept.length, [block.tokens for block in found])
        assert kept is not None
        ends = [
            (ref, index * step + block.tokens) for index, (ref, block) in enumerate(zip(blocks, found, strict=False))
        ]
        held = 0
        while held < min(len(ends), len(state.resident)) and state.resident[held] == ends[held]:
            held += 1
        state.resident, state.tree, state.broken = ends[:held], None, True  # until all is copied
        self._pools.write(slot, [(index * step, found[index]) for index in range(held, len(found))], kept)
        if self._draft:
            self._draft.restore(slot, length, kept.hidden)
        state.resident, state.length, state.broken = ends, length, False

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        state = self._guard.usable(slot)
        check_block(self._info, state.length, start, end)
        self._flush(slot)
        ref = self._store.keep_block(self._pools.read_block(slot, start, end))
        index = start // self._info.block_tokens
        if index <= len(state.resident):  # the slot's rows are this block's rows
            state.resident[index : index + 1] = [(ref, end)]
        return ref

    def snapshot(self, slot: int) -> SnapshotRef:
        state = self._guard.usable(slot)
        if not state.length:
            raise ValueError(f"snapshot of the empty slot {slot}")
        self._flush(slot)
        hidden = self._draft.boundary(slot) if self._draft else np.zeros(0, np.float32)
        return self._store.keep_snapshot(self._pools.read_state(slot, state.length, hidden))

    def free_block(self, ref: BlockRef) -> None:
        self._store.free_block(ref)

    def free_snapshot(self, ref: SnapshotRef) -> None:
        self._store.free_snapshot(ref)

    def dump_block(self, ref: BlockRef) -> bytes:
        return pack_block(self._info.fingerprint, self._store.block(ref))

    def load_block(self, data: bytes) -> BlockRef:
        block = unpack_block(self._info.fingerprint, data, self._pools, self._info.block_tokens)
        return self._store.keep_block(block)

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        return pack_snapshot(self._info.fingerprint, self._store.snapshot(ref))

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        kept = unpack_snapshot(self._info.fingerprint, data, self._pools, self._hidden)
        return self._store.keep_snapshot(kept)

    def advance(self, batch: Sequence[Chunk]) -> ArrayLogits:
        check_chunks(self._info, batch, [self._guard.usable(chunk.slot).length for chunk in batch])
        slots = [chunk.slot for chunk in batch]
        order = sorted(range(len(batch)), key=slots.__getitem__)
        rows: dict[int, int] = {}
        with self._guard.running(slots):
            for run in _neighbours(order, slots):
                wanted = [at for at, index in enumerate(run) if batch[index].logits]
                values = self._advance([batch[index] for index in run], wanted, len(rows))
                rows |= {run[at]: len(rows) + row for row, at in enumerate(wanted)}
        if len(batch) > 1:
            values = self._decoder.logits[: len(rows)]
        return ArrayLogits(values, [rows[index] for index in sorted(rows)], self._guard.clock)

    def verify(self, tree: TokenTree) -> ArrayLogits:
        state = self._guard.usable(tree.slot)
        check_tree(self._info, tree, state.length)
        state.tree = None
        state.forget_from(state.length)
        with self._guard.running([tree.slot]):
            values = self._decoder.verify(tree.slot, state.length, tree.tokens, tree.parents)
        state.tree = tree
        return ArrayLogits(values, range(len(tree.tokens)), self._guard.clock)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._guard.usable(slot)
        tree = state.tree
        if tree is None:
            raise ValueError(f"slot {slot} has no verified tree, or changed since")
        check_path(tree, path)
        state.tree = None
        state.forget_from(state.length)
        with self._guard.running([slot]):
            hidden = self._decoder.commit(slot, state.length, len(tree.tokens), path)
            if self._draft:
                self._draft.append(slot, [tree.tokens[node] for node in path], hidden)
        state.length += len(path)

    def draft(self, batch: Sequence[DraftNodes]) -> list[DraftResult]:
        if self._draft is None:
            raise ValueError("this executor has no draft layer")
        results = []
        for nodes in batch:
            state = self._guard.usable(nodes.slot)
            check_draft(self._info, nodes, state.length)
            state.forget_from(state.length)
            if list(nodes.parents) == [-1]:
                with self._guard.running([nodes.slot]):
                    results.append(self._draft.start(nodes.slot, int(nodes.tokens[0])))
            else:
                self._draft.check(nodes.slot, nodes.parents)
                with self._guard.running([nodes.slot]):
                    results.append(self._draft.extend(nodes.slot, nodes.tokens, nodes.parents))
        return results

    def memory(self) -> dict[str, int]:
        return {
            "weights": self._weights,
            "slots": self._pools.nbytes + self._decoder.nbytes,
            **self._store.memory(),
        }

    def close(self) -> None:
        self._guard.close()
        self._store.clear()
        self._pools.close()

    # -- inside

    def _advance(self, chunks: Sequence[Chunk], wanted: Sequence[int], row: int) -> NDArray[np.float32]:
        """Advance chunks of neighbouring slots; logits of the sequences `wanted` go to buffer rows from `row` on."""
        states = [self._slots[chunk.slot] for chunk in chunks]
        for state in states:
            state.tree = None
            state.forget_from(state.length)
        tokens = np.asarray([chunk.tokens for chunk in chunks], np.int64)
        past = np.asarray([state.length for state in states], np.int64)
        logits, hidden = self._decoder.advance(chunks[0].slot, tokens, past, wanted, row)
        for at, (chunk, state) in enumerate(zip(chunks, states, strict=True)):
            state.length += tokens.shape[1]
            if self._draft:
                self._draft.append(chunk.slot, tokens[at].tolist(), hidden[at])
        return logits

    def _flush(self, slot: int) -> None:
        if self._draft:
            with self._guard.running([slot]):
                self._draft.flush(slot)


def _neighbours(order: Sequence[int], slots: Sequence[int]) -> list[list[int]]:
    """Batch positions in slot order, cut into runs of consecutive slots."""
    runs: list[list[int]] = []
    for index in order:
        if runs and slots[runs[-1][-1]] + 1 == slots[index]:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs
