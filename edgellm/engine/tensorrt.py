"""The executor of a device: runs a bundle's segments and kernels, and owns the memory of its slots.

KV rows are in pages of one pool: publish and restore move references, and a restore into the middle of a page copies
that page. A step commits the path that the step before accepted (the recurrent state is read and written once), so a
commit is a page copy of a few rows; whoever needs the state at once (a snapshot, a prefill) has it settled first. Only
tokens, candidates and counters cross to the host, and whole rows of logits where a request asks for them. What must
stay true: everything is checked before anything is changed, and a failed run leaves its slots marked broken until they
are reset or restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.base import BlockRef, Chunk, DraftNodes, DraftResult, ExecutorInfo, SnapshotRef, TokenTree
from edgellm.engine.checks import check_block, check_chunks, check_draft, check_path, check_restore, check_tree
from edgellm.engine.device.base import Buffer, Device
from edgellm.engine.device.decoder import DeviceDecoder
from edgellm.engine.device.logits import DeviceLogits
from edgellm.engine.device.memory import Layout, Pool, load_constants
from edgellm.engine.device.rows import Model
from edgellm.engine.guard import SlotGuard
from edgellm.errors import ConfigError
from edgellm.graph.mtp import DRAFT_TOP_K
from edgellm.graph.segments import KERNEL_WEIGHTS


class DeviceExecutor:
    """See the module's docstring; the contract is `edgellm.engine.base.Executor`.

    Broken preconditions raise ValueError, a failed run `ExecutionError`.

    Args:
        device: taken over: closed with the executor.
        folder: the bundle's, with the kernels' weights.
        layout: what the buffers are made for; `layout.pages` must be enough for every slot, and what it has more can be
            published.
        fingerprint: identity of weights and layout.
        engine: of a bundle of the plugin form: it takes every step over a tree, with one profile, `layout.nodes`.

    Raises:
        ConfigError: a setting is out of range, or the memory that it implies is not there.
    """

    def __init__(
        self,
        device: Device,
        folder: Path,
        spec: ModelSpec,
        layout: Layout,
        *,
        splits: int,
        fingerprint: str,
        engine: str | None = None,
    ) -> None:
        spare = layout.pages - layout.slots * layout.max_pages
        if not spec.full_layers:
            raise ConfigError("a model without attention layers has no device executor")
        if layout.mtp and layout.nodes < 2:
            raise ConfigError("drafts need trees of two nodes at least: tree_nodes is 1")
        if spare < 0:
            raise ConfigError(f"{layout.pages} KV pages are too few for {layout.slots} slots of {layout.max_pages}")
        constants = load_constants(device, folder / KERNEL_WEIGHTS)
        self.model = model = Model(device, spec, layout, constants, Pool(device, spec, layout), splits)
        self.decoder = DeviceDecoder(model, engine, fingerprint)
        self._batch = device.zeros((layout.slots, spec.vocab), np.float32)  # logits of one advance over several slots
        self._device, self._layout, self._store = device, layout, self.decoder.store
        self._guard = SlotGuard(self.decoder.slots, "device")
        self._info = ExecutorInfo(
            slots=layout.slots,
            max_tokens=model.tokens,
            max_chunk=max(layout.chunk, layout.nodes),
            max_batch=layout.slots,
            max_tree=layout.nodes,
            draft_top_k=DRAFT_TOP_K if layout.mtp else 0,
            block_tokens=layout.page,
            block_bytes=model.pool.page_bytes(),
            snapshot_bytes=self.decoder.memory[0].state.nbytes,
            vocab_size=spec.vocab,
            max_blocks=spare,
            max_snapshots=layout.snapshots,
            fingerprint=fingerprint,
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def length(self, slot: int) -> int:
        return self._guard.slot(slot).length

    def reset(self, slot: int) -> None:
        self._guard.slot(slot)
        self.decoder.reset(slot)

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        self._guard.slot(slot)
        if length == 0:
            self.reset(slot)
            return
        kept = None if snapshot is None else self._store.snapshot(snapshot)
        found = [self._store.block(ref) for ref in blocks[: -(-length // self._layout.page)]]
        check_restore(self._info, length, None if kept is None else kept.length, [block.tokens for block in found])
        assert kept is not None
        with self._guard.running([slot]):
            self.decoder.restore(slot, found, kept)

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        state = self._guard.usable(slot)
        check_block(self._info, state.length, start, end)
        with self._guard.running([slot]):
            self.decoder.settle(slot)
        return self._store.publish(state.pages[start // self._layout.page], end - start)

    def snapshot(self, slot: int) -> SnapshotRef:
        state = self._guard.usable(slot)
        if not state.length:
            raise ValueError(f"snapshot of the empty slot {slot}")
        with self._guard.running([slot]):
            self.decoder.settle(slot)
        return self._store.keep(state.length, self.decoder.memory[slot].state)

    def free_block(self, ref: BlockRef) -> None:
        self._store.free_block(ref)

    def free_snapshot(self, ref: SnapshotRef) -> None:
        self._store.free_snapshot(ref)

    def dump_block(self, ref: BlockRef) -> bytes:
        return self._store.dump_block(ref)

    def load_block(self, data: bytes) -> BlockRef:
        return self._store.load_block(data)

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        return self._store.dump_snapshot(ref)

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        return self._store.load_snapshot(data)

    def advance(self, batch: Sequence[Chunk]) -> DeviceLogits:
        check_chunks(self._info, batch, [self._guard.usable(chunk.slot).length for chunk in batch])
        made: list[tuple[int, Buffer]] = []  # best token and logits of each wanted row
        with self._guard.running([chunk.slot for chunk in batch]):
            for chunk in batch:
                best, logits = self.decoder.advance(chunk.slot, [int(token) for token in chunk.tokens])
                if not chunk.logits:
                    continue
                if len(batch) > 1:
                    row = self._batch[len(made)]
                    self._device.copy(logits, row)
                    logits = row
                made.append((best, logits))
        return DeviceLogits(self._device, [best for best, _ in made], [row for _, row in made], self._guard.clock)

    def verify(self, tree: TokenTree) -> DeviceLogits:
        state = self._guard.usable(tree.slot)
        check_tree(self._info, tree, state.length)
        with self._guard.running([tree.slot]):
            step, best = self.decoder.verify(tree)
        rows = [step.rows.logits[node] for node in range(len(tree.tokens))]
        return DeviceLogits(self._device, best, rows, self._guard.clock)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._guard.usable(slot)
        if state.tree is None:
            raise ValueError(f"slot {slot} has no verified tree, or changed since")
        check_path(state.tree, path)
        with self._guard.running([slot]):
            self.decoder.commit(slot, state.tree, path)

    def draft(self, batch: Sequence[DraftNodes]) -> list[DraftResult]:
        draft = self.decoder.draft
        if draft is None:
            raise ValueError("this executor has no draft layer")
        results = []
        for nodes in batch:
            state = self._guard.usable(nodes.slot)
            check_draft(self._info, nodes, state.length)
            start = list(nodes.parents) == [-1]
            if not start:
                draft.check(nodes.slot, nodes.parents)
            with self._guard.running([nodes.slot]):
                if start:
                    results.append(draft.start(nodes.slot, int(nodes.tokens[0])))
                else:
                    results.append(draft.extend(nodes.slot, nodes.tokens, nodes.parents))
        return results

    def memory(self) -> dict[str, int]:
        reserved = self._layout.snapshots * self._info.snapshot_bytes
        return {"weights": self._device.weights, "slots": self._device.used - reserved, **self._store.memory()}

    def close(self) -> None:
        self._guard.close()
        self._device.close()

    # -- inside
