"""The decoder over the slots of a device: what a slot holds, and the steps that change it.

Knows programs, pages and which path the next step commits; checks nothing: the executor does. What must stay true: a
slot's pages cover its committed tokens, and its recurrent state lags by exactly the path in `accepted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgellm.engine.base import TokenTree
from edgellm.engine.device.base import Buffer, Launch, Operation
from edgellm.engine.device.drafting import DeviceDraft
from edgellm.engine.device.memory import SlotMemory
from edgellm.engine.device.programs import Programs, chain_positions, commit_rows, padded, write_control
from edgellm.engine.device.rows import Model
from edgellm.engine.device.steps import PrefillStep, TreeStep
from edgellm.engine.device.store import DeviceStore, KeptBlock, KeptState
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


class DeviceDecoder:
    """See the module's docstring.

    Args:
        engine: see `edgellm.engine.tensorrt.DeviceExecutor`.
    """

    def __init__(self, model: Model, engine: str | None, fingerprint: str) -> None:
        layout, device = model.layout, model.device
        self.memory = [SlotMemory(device, model.spec, layout) for _ in range(layout.slots)]
        self.slots = [Slot() for _ in range(layout.slots)]
        counts = sorted({1, layout.nodes})
        trees = counts if engine is None else [layout.nodes]
        self.trees = {count: TreeStep(model, count, engine) for count in trees}
        self._prefill = PrefillStep(model, layout.chunk) if layout.chunk > layout.nodes else None
        self.draft = DeviceDraft(model, self.memory, self._prefill, counts) if layout.mtp else None
        self.programs = Programs(device)
        self.store = DeviceStore(model, self.programs, self.memory[0].state, fingerprint)
        self._model, self._device, self._layout = model, device, layout

    def reset(self, slot: int) -> None:
        """Empty the slot."""
        self._drop(slot)
        for part in self.memory[slot].state.parts:
            self._device.clear(part)
        if self.draft:
            self.draft.reset(slot)
        self.slots[slot] = Slot()

    def restore(self, slot: int, blocks: Sequence[KeptBlock], kept: KeptState) -> None:
        """Make the slot hold `kept.length` tokens: whole pages are shared, the one that they end in is copied."""
        self._drop(slot)  # first, so that the copy finds a page; blocks have references of their own
        pages, full = self.slots[slot].pages, kept.length // self._layout.page
        for block in blocks[:full]:
            self.store.pages.share(block.page)
            pages.append(block.page)
        if full < len(blocks):
            pages.append(self.store.copy_page(blocks[full].page))
        self._upload_pages(slot)
        for source, target in zip(kept.state.parts, self.memory[slot].state.parts, strict=True):
            self._device.copy(source, target)
        if self.draft:
            self.draft.restore(slot, kept.length)
        self.slots[slot] = Slot(length=kept.length, pages=pages)

    def advance(self, slot: int, tokens: Sequence[int]) -> tuple[int, Buffer]:
        """Commit tokens; the best next token and the logits after the last of them."""
        count = len(tokens)
        if count <= self._layout.nodes:
            tree = TokenTree(slot, tokens, range(-1, count - 1))
            step, best = self.verify(tree)
            self.commit(slot, tree, range(count))
            return best[-1], step.rows.logits[count - 1]
        state, memory, prefill = self.slots[slot], self.memory[slot], self._prefill
        assert prefill is not None
        self.settle(slot)
        if self.draft:
            self.draft.before_prefill(slot)
        self._reserve(slot, state.length + count)
        rows = self._layout.chunk
        self._device.upload(prefill.rows.input_ids, padded(tokens, rows, np.int64)[None])
        self._device.upload(prefill.rows.positions, chain_positions(state.length, rows, self._model.tokens))
        self._device.upload(prefill.rows.logit_rows, np.array([count - 1]))
        write_control(self._model, memory.control, state.length, count)
        self.programs.run(("prefill", slot), lambda: prefill.operations(memory))
        state.tree = None
        state.length += count
        if self.draft:
            self.draft.prefill(slot, count, state.pages[0])
        return int(self._device.download(prefill.rows.best)[0, 0]), prefill.rows.logits[0]

    def verify(self, tree: TokenTree) -> tuple[TreeStep, list[int]]:
        """Run a tree; the step and the best next token of every node."""
        state, memory, count = self.slots[tree.slot], self.memory[tree.slot], len(tree.tokens)
        rows = next(rows for rows in self.trees if rows >= count)
        step = self.trees[rows]
        self._device.upload(step.rows.input_ids, padded(tree.tokens, rows, np.int64)[None])
        self._device.upload(step.rows.parents, padded(tree.parents, rows, np.int32))
        self._device.upload(memory.accepted, np.array(state.accepted, np.int32))
        write_control(self._model, memory.control, state.length, count)
        left, made = memory.capsules[state.turn], memory.capsules[1 - state.turn]
        self.programs.run((rows, tree.slot, state.turn), lambda: step.operations(memory, left, made))
        state.turn, state.accepted, state.tree = 1 - state.turn, (0, 0), tree
        return step, self._device.download(step.rows.best)[:count, 0].tolist()

    def commit(self, slot: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Commit nodes of the tree that was verified last."""
        state, memory = self.slots[slot], self.memory[slot]
        self._reserve(slot, state.length + len(path))
        state.tree = None
        state.accepted = sum(1 << node for node in path), path[-1]
        self._device.upload(memory.accepted, np.array(state.accepted, np.int32))
        layers = slice(0, len(self._model.spec.full_layers))
        if layers.stop:
            self.programs.run(
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
        if self.draft:
            tokens, hidden = [tree.tokens[node] for node in path], [memory.hidden[node] for node in path]
            self.draft.append(slot, tokens, hidden, state.pages[0])

    def settle(self, slot: int) -> None:
        """Bring the recurrent state and the MTP rows of a slot up to its committed tokens."""
        state, memory = self.slots[slot], self.memory[slot]
        if state.accepted != (0, 0):
            turn = state.turn
            self.programs.run(("settle", slot, turn), lambda: self._settling(memory, turn))
            state.accepted = (0, 0)
        if self.draft:
            self.draft.flush(slot)
            self.draft.boundary(slot)

    def _settling(self, memory: SlotMemory, turn: int) -> list[Operation]:
        if not self._model.spec.linear_layers:
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
        sizes = replace(self._model.sizes(1, 1), layers=len(self._model.spec.linear_layers))
        return [Launch(GDN_COMMIT, sizes, tensors)]

    def _reserve(self, slot: int, length: int) -> None:
        """Give the slot the pages of its first `length` tokens."""
        state = self.slots[slot]
        needed = -(-length // self._layout.page)
        if needed > len(state.pages):
            while len(state.pages) < needed:
                state.pages.append(self.store.pages.take())
            self._upload_pages(slot)

    def _upload_pages(self, slot: int) -> None:
        table = padded(self.slots[slot].pages, self._layout.max_pages, np.int32)
        self._device.upload(self.memory[slot].page_table, table)

    def _drop(self, slot: int) -> None:
        pages = self.slots[slot].pages
        while pages:
            self.store.pages.release(pages.pop())
