"""The executor of a device: runs a bundle's segments and kernels, and owns the memory of its slots.

KV rows are in pages of one pool: publish and restore move references, and a restore into the middle of a page copies
that page. A step commits the path that the step before accepted (the recurrent state is read and written once), so a
commit is a page copy of a few rows; whoever needs the state at once (a snapshot, a prefill) has it settled first. Only
tokens, candidates and counters cross to the host, and whole rows of logits where a request asks for them. What must
stay true: everything is checked before anything is changed, and a failed run leaves its slots marked broken until they
are reset or restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.base import BlockRef, Chunk, DraftNodes, DraftResult, ExecutorInfo, SnapshotRef, TokenTree
from edgellm.engine.checks import check_chunks, check_path, check_tokens, check_tree
from edgellm.engine.device.base import Buffer, Device
from edgellm.engine.device.decoder import DeviceDecoder, Slot
from edgellm.engine.device.logits import DeviceLogits
from edgellm.engine.device.memory import Layout, Pool, load_constants
from edgellm.engine.device.rows import Model
from edgellm.engine.ort_logits import Clock
from edgellm.errors import ConfigError, ExecutionError
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
        if spare < 0:
            raise ConfigError(f"{layout.pages} KV pages are too few for {layout.slots} slots of {layout.max_pages}")
        constants = load_constants(device, folder / KERNEL_WEIGHTS)
        self.model = model = Model(device, spec, layout, constants, Pool(device, spec, layout), splits)
        self.decoder = DeviceDecoder(model, engine, fingerprint)
        self._batch = device.zeros((layout.slots, spec.vocab), np.float32)  # logits of one advance over several slots
        self._device, self._layout, self._store = device, layout, self.decoder.store
        self._clock = Clock()
        self._closed = False
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
            fingerprint=fingerprint,
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def length(self, slot: int) -> int:
        return self._slot(slot).length

    def reset(self, slot: int) -> None:
        self._slot(slot)
        self.decoder.reset(slot)

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        self._slot(slot)
        page = self._layout.page
        if length == 0:
            self.reset(slot)
            return
        if not 0 < length <= self._info.max_tokens:
            raise ValueError(f"restore of {length} tokens into a slot of {self._info.max_tokens}")
        kept = None if snapshot is None else self._store.snapshot(snapshot)
        if kept is None or kept.length != length:
            raise ValueError(f"restore of {length} tokens needs a snapshot of as many, not {kept and kept.length}")
        found = [self._store.block(ref) for ref in blocks[: -(-length // page)]]
        whole = all(block.tokens == page for block in found[:-1])
        if not found or not whole or (len(found) - 1) * page + found[-1].tokens < length:
            raise ValueError(f"the blocks do not cover {length} tokens without a gap")
        with self._running([slot]):
            self.decoder.restore(slot, found, kept)

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        state, page = self._usable(slot), self._layout.page
        if start < 0 or start % page or not start < end <= min(start + page, state.length):
            raise ValueError(f"tokens [{start}, {end}) are not a block of the {state.length} committed ones")
        with self._running([slot]):
            self.decoder.settle(slot)
        return self._store.publish(state.pages[start // page], end - start)

    def snapshot(self, slot: int) -> SnapshotRef:
        state = self._usable(slot)
        if not state.length:
            raise ValueError(f"snapshot of the empty slot {slot}")
        with self._running([slot]):
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
        check_chunks(self._info, batch, [self._usable(chunk.slot).length for chunk in batch])
        made: list[tuple[int, Buffer]] = []  # best token and logits of each wanted row
        with self._running([chunk.slot for chunk in batch]):
            for chunk in batch:
                best, logits = self.decoder.advance(chunk.slot, [int(token) for token in chunk.tokens])
                if not chunk.logits:
                    continue
                if len(batch) > 1:
                    row = self._batch[len(made)]
                    self._device.copy(logits, row)
                    logits = row
                made.append((best, logits))
        return DeviceLogits(self._device, [best for best, _ in made], [row for _, row in made], self._clock)

    def verify(self, tree: TokenTree) -> DeviceLogits:
        state = self._usable(tree.slot)
        check_tree(self._info, tree, state.length)
        with self._running([tree.slot]):
            step, best = self.decoder.verify(tree)
        rows = [step.rows.logits[node] for node in range(len(tree.tokens))]
        return DeviceLogits(self._device, best, rows, self._clock)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._usable(slot)
        if state.tree is None:
            raise ValueError(f"slot {slot} has no verified tree, or changed since")
        check_path(state.tree, path)
        with self._running([slot]):
            self.decoder.commit(slot, state.tree, path)

    def draft(self, batch: Sequence[DraftNodes]) -> list[DraftResult]:
        draft = self.decoder.draft
        if draft is None:
            raise ValueError("this executor has no draft layer")
        results = []
        for nodes in batch:
            state = self._usable(nodes.slot)
            check_tokens(self._info, nodes.tokens)
            if not state.length or len(nodes.parents) != len(nodes.tokens):
                raise ValueError(f"draft of {len(nodes.tokens)} nodes in slot {nodes.slot} with {state.length} tokens")
            start = list(nodes.parents) == [-1]
            if not start:
                draft.check(nodes.slot, nodes.parents)
            with self._running([nodes.slot]):
                if start:
                    results.append(draft.start(nodes.slot, int(nodes.tokens[0])))
                else:
                    results.append(draft.extend(nodes.slot, nodes.tokens, nodes.parents))
        return results

    def memory(self) -> dict[str, int]:
        slots = self._device.used - self._store.state_bytes
        return {"weights": self._device.weights, "slots": slots, **self._store.memory()}

    def close(self) -> None:
        self._closed = True
        self._clock.tick()
        self._device.close()

    # -- inside

    @contextmanager
    def _running(self, slots: Iterable[int]) -> Iterator[None]:
        """A block that changes `slots`: they are broken when it does not get to its end."""
        self._clock.tick()
        try:
            yield
        except BaseException as error:
            for slot in slots:
                self.decoder.slots[slot].broken = True
            if isinstance(error, Exception):
                raise ExecutionError(f"a device run in slots {list(slots)} failed: {error}") from error
            raise

    def _slot(self, slot: int) -> Slot:
        if self._closed:
            raise ValueError("the executor is closed")
        if not 0 <= slot < self._info.slots:
            raise ValueError(f"slot {slot} of {self._info.slots}")
        return self.decoder.slots[slot]

    def _usable(self, slot: int) -> Slot:
        state = self._slot(slot)
        if state.broken:
            raise ExecutionError(f"slot {slot} holds half a step after a failure: reset or restore it first")
        return state
