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
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.base import BlockRef, Chunk, DraftNodes, DraftResult, ExecutorInfo, SnapshotRef, TokenTree
from edgellm.engine.checks import check_chunks, check_path, check_tokens, check_tree
from edgellm.engine.device.base import Buffer, Device, Launch, Operation
from edgellm.engine.device.drafting import DeviceDraft
from edgellm.engine.device.logits import DeviceLogits
from edgellm.engine.device.memory import Layout, Pool, SlotMemory, load_constants
from edgellm.engine.device.programs import Programs, chain_positions, commit_rows, padded, write_control
from edgellm.engine.device.steps import Model, PrefillStep, TreeStep
from edgellm.engine.device.store import DeviceStore
from edgellm.engine.ort_logits import Clock
from edgellm.errors import ConfigError, ExecutionError
from edgellm.graph.mtp import DRAFT_TOP_K
from edgellm.graph.segments import KERNEL_WEIGHTS
from edgellm.kernels.gdn import GDN_COMMIT


@dataclass(slots=True)
class Slot:
    """What the host knows of one slot."""

    length: int = 0
    pages: list[int] = field(default_factory=list)
    turn: int = 0  # which capsules the next step reads
    accepted: tuple[int, int] = (0, 0)  # path (mask, last node) that the next step commits
    tree: TokenTree | None = None  # last verified, until the slot changes
    broken: bool = False


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
        self._model = Model(device, spec, layout, constants, Pool(device, spec, layout), splits)
        self.slots = [SlotMemory(device, spec, layout) for _ in range(layout.slots)]
        counts = sorted({1, layout.nodes})
        trees = counts if engine is None else [layout.nodes]
        self.trees = {count: TreeStep(self._model, count, engine) for count in trees}
        self._prefill = PrefillStep(self._model, layout.chunk) if layout.chunk > layout.nodes else None
        self._draft = DeviceDraft(self._model, self.slots, self._prefill, counts) if layout.mtp else None
        self._batch = device.zeros((layout.slots, spec.vocab), np.float32)  # logits of one advance over several slots
        self._programs = Programs(device)
        self._slots = [Slot() for _ in range(layout.slots)]
        self._store = DeviceStore(self._model, self._programs, self.slots[0].state, fingerprint)
        self._device, self._layout, self._spec = device, layout, spec
        self._clock = Clock()
        self._closed = False
        self._info = ExecutorInfo(
            slots=layout.slots,
            max_tokens=self._model.tokens,
            max_chunk=max(layout.chunk, layout.nodes),
            max_batch=layout.slots,
            max_tree=layout.nodes,
            draft_top_k=DRAFT_TOP_K if layout.mtp else 0,
            block_tokens=layout.page,
            block_bytes=self._model.pool.page_bytes(),
            snapshot_bytes=self.slots[0].state.nbytes,
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
        self._drop(self._slot(slot))
        for part in self.slots[slot].state.parts:
            self._device.clear(part)
        if self._draft:
            self._draft.reset(slot)
        self._slots[slot] = Slot()

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        state, page = self._slot(slot), self._layout.page
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
            old, state.pages = state.pages, []
            full = length // page
            for block in found[:full]:
                self._store.pages.share(block.page)
                state.pages.append(block.page)
            if full < len(found):
                state.pages.append(self._store.copy_page(found[full].page))
            for number in old:
                self._store.pages.release(number)
            self._upload_pages(slot)
            for source, target in zip(kept.state.parts, self.slots[slot].state.parts, strict=True):
                self._device.copy(source, target)
            if self._draft:
                self._draft.restore(slot, length)
        state.length, state.accepted, state.tree, state.broken = length, (0, 0), None, False

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        state, page = self._usable(slot), self._layout.page
        if start < 0 or start % page or not start < end <= min(start + page, state.length):
            raise ValueError(f"tokens [{start}, {end}) are not a block of the {state.length} committed ones")
        self._settle(slot)
        return self._store.publish(state.pages[start // page], end - start)

    def snapshot(self, slot: int) -> SnapshotRef:
        state = self._usable(slot)
        if not state.length:
            raise ValueError(f"snapshot of the empty slot {slot}")
        self._settle(slot)
        return self._store.keep(state.length, self.slots[slot].state)

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
                best, logits = self._advance(chunk.slot, [int(token) for token in chunk.tokens])
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
            step, best = self._verify(tree)
        rows = [step.rows.logits[node] for node in range(len(tree.tokens))]
        return DeviceLogits(self._device, best, rows, self._clock)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._usable(slot)
        if state.tree is None:
            raise ValueError(f"slot {slot} has no verified tree, or changed since")
        check_path(state.tree, path)
        with self._running([slot]):
            self._commit(slot, state.tree, path)

    def draft(self, batch: Sequence[DraftNodes]) -> list[DraftResult]:
        draft = self._draft
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

    def _advance(self, slot: int, tokens: Sequence[int]) -> tuple[int, Buffer]:
        """Commit tokens; the best next token and the logits after the last of them."""
        count = len(tokens)
        if count <= self._layout.nodes:
            tree = TokenTree(slot, tokens, range(-1, count - 1))
            step, best = self._verify(tree)
            self._commit(slot, tree, range(count))
            return best[-1], step.rows.logits[count - 1]
        state, memory, prefill = self._slots[slot], self.slots[slot], self._prefill
        assert prefill is not None
        self._settle(slot)
        if self._draft:
            self._draft.before_prefill(slot)
        self._reserve(slot, state.length + count)
        rows = self._layout.chunk
        self._device.upload(prefill.rows.input_ids, padded(tokens, rows, np.int64)[None])
        self._device.upload(prefill.rows.positions, chain_positions(state.length, rows, self._model.tokens))
        self._device.upload(prefill.rows.logit_rows, np.array([count - 1]))
        write_control(self._device, memory.control, state.length, count)
        self._programs.run(("prefill", slot), lambda: prefill.operations(memory))
        state.tree = None
        state.length += count
        if self._draft:
            self._draft.prefill(slot, count)
        return int(self._device.download(prefill.rows.best)[0, 0]), prefill.rows.logits[0]

    def _verify(self, tree: TokenTree) -> tuple[TreeStep, list[int]]:
        """Run a tree; the step and the best next token of every node."""
        state, memory, count = self._slots[tree.slot], self.slots[tree.slot], len(tree.tokens)
        rows = next(rows for rows in self.trees if rows >= count)
        step = self.trees[rows]
        self._device.upload(step.rows.input_ids, padded(tree.tokens, rows, np.int64)[None])
        self._device.upload(step.rows.parents, padded(tree.parents, rows, np.int32))
        self._device.upload(memory.accepted, np.array(state.accepted, np.int32))
        write_control(self._device, memory.control, state.length, count)
        left, made = memory.capsules[state.turn], memory.capsules[1 - state.turn]
        self._programs.run((rows, tree.slot, state.turn), lambda: step.operations(memory, left, made))
        state.turn, state.accepted, state.tree = 1 - state.turn, (0, 0), tree
        return step, self._device.download(step.rows.best)[:count, 0].tolist()

    def _commit(self, slot: int, tree: TokenTree, path: Sequence[int]) -> None:
        state, memory = self._slots[slot], self.slots[slot]
        self._reserve(slot, state.length + len(path))
        state.tree = None
        state.accepted = sum(1 << node for node in path), path[-1]
        self._device.upload(memory.accepted, np.array(state.accepted, np.int32))
        layers = slice(0, len(self._spec.full_layers))
        if layers.stop:
            self._programs.run(
                ("commit", slot),
                lambda: [
                    commit_rows(
                        self._model,
                        (memory.tail_k, memory.tail_v),
                        memory.page_table,
                        memory.control,
                        memory.accepted,
                        layers,
                    )
                ],
            )
        state.length += len(path)
        if self._draft:
            self._draft.append(slot, [tree.tokens[node] for node in path], [memory.hidden[node] for node in path])

    def _settle(self, slot: int) -> None:
        """Bring the recurrent state and the MTP rows of a slot up to its committed tokens."""
        state, memory = self._slots[slot], self.slots[slot]
        with self._running([slot]):
            if state.accepted != (0, 0):
                turn = state.turn
                self._programs.run(("settle", slot, turn), lambda: self._settling(memory, turn))
                state.accepted = (0, 0)
            if self._draft:
                self._draft.flush(slot)
                self._draft.boundary(slot)

    def _settling(self, memory: SlotMemory, turn: int) -> list[Operation]:
        if not self._spec.linear_layers:
            return []
        left = memory.capsules[turn]
        tensors = {
            "accepted": memory.accepted,
            "cap_k": left.k,
            "cap_u": left.u,
            "cap_g": left.g,
            "cap_c": memory.conv_rows,
            "state": memory.state.state,
            "conv_state": memory.state.conv,
        }
        sizes = replace(self._model.sizes(1, 1), layers=len(self._spec.linear_layers))
        return [Launch(GDN_COMMIT, sizes, tensors)]

    def _reserve(self, slot: int, length: int) -> None:
        """Give the slot the pages of its first `length` tokens."""
        state = self._slots[slot]
        needed = -(-length // self._layout.page)
        if needed > len(state.pages):
            while len(state.pages) < needed:
                state.pages.append(self._store.pages.take())
            self._upload_pages(slot)

    def _upload_pages(self, slot: int) -> None:
        table = padded(self._slots[slot].pages, self._layout.max_pages, np.int32)
        self._device.upload(self.slots[slot].page_table, table)

    def _drop(self, state: Slot) -> None:
        for page in state.pages:
            self._store.pages.release(page)
        state.pages = []

    @contextmanager
    def _running(self, slots: Iterable[int]) -> Iterator[None]:
        """A block that changes `slots`: they are broken when it does not get to its end."""
        self._clock.tick()
        try:
            yield
        except BaseException as error:
            for slot in slots:
                self._slots[slot].broken = True
            if isinstance(error, Exception):
                raise ExecutionError(f"a device run in slots {list(slots)} failed: {error}") from error
            raise

    def _slot(self, slot: int) -> Slot:
        if self._closed:
            raise ValueError("the executor is closed")
        if not 0 <= slot < self._info.slots:
            raise ValueError(f"slot {slot} of {self._info.slots}")
        return self._slots[slot]

    def _usable(self, slot: int) -> Slot:
        state = self._slot(slot)
        if state.broken:
            raise ExecutionError(f"slot {slot} holds half a step after a failure: reset or restore it first")
        return state
