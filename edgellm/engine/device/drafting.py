"""The MTP layer over the slots of a device: keeps up with the committed tokens and extends draft trees.

The row of token j is made of the hidden row of token j - 1 and the embedding of token j, and stands at row j of the
pages; row 0, which no token has, is never visible. A slot that holds n tokens has `rows` finished rows; tokens rows … n
- 1 wait, with the hidden rows before them, for the next draft or flush: hidden_pool[i] belongs to waiting token i, and
the one behind the last of them to the next token. A draft runs waiting tokens and root as one chain in the tail; its
nodes follow there, so node k of the tree is tail row `root + k`. What must stay true: results depend on the committed
tokens only, not on how they were committed or drafted before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from edgellm.engine.base import DraftResult
from edgellm.engine.device.base import Buffer
from edgellm.engine.device.draft_steps import DraftPrefillStep, DraftStep
from edgellm.engine.device.memory import DRAFT_TAIL, WAITING, SlotMemory
from edgellm.engine.device.programs import Programs, chain_positions, commit_rows, padded, write_control
from edgellm.engine.device.rows import Model
from edgellm.engine.device.steps import PrefillStep

_FIRST: Final = 1  # row 0 of the MTP layer belongs to no token


@dataclass(slots=True)
class _Slot:
    rows: int = 0
    waiting: list[int] = field(default_factory=list)
    # The draft tree: its root's token and tail row, the rows in the tail and in the pages when it was started.
    token: int | None = None
    root: int = 0
    tail: int = 0
    context: int = 0


class DeviceDraft:
    """MTP state of all slots.

    Args:
        counts: rows of the steps to prepare, ascending; the last one is what a step takes at most.
    """

    def __init__(
        self, model: Model, slots: Sequence[SlotMemory], decoder: PrefillStep | None, counts: Sequence[int]
    ) -> None:
        self._model, self._memory = model, slots
        self._steps = {count: DraftStep(model, count) for count in counts}
        self._most = counts[-1]
        self._decoder = decoder
        self._prefill = DraftPrefillStep(model, decoder) if decoder else None
        self._slots = [_Slot() for _ in slots]
        self._programs = Programs(model.device)

    def reset(self, slot: int) -> None:
        """The slot is empty."""
        self._slots[slot] = _Slot()
        self._model.device.clear(self._memory[slot].hidden_pool)

    def restore(self, slot: int, length: int) -> None:
        """The slot holds `length` tokens with their rows; its state's ``hidden`` is the last token's."""
        self._slots[slot] = _Slot(rows=length)
        memory = self._memory[slot]
        self._model.device.copy(memory.state.hidden, memory.hidden_pool[0])

    def append(self, slot: int, tokens: Sequence[int], hidden: Sequence[Buffer], page: int) -> None:
        """`tokens` were committed and their pages exist; `hidden` are their rows [H], `page` the slot's first one."""
        found, memory, copy = self._slots[slot], self._memory[slot], self._model.device.copy
        if found.token is not None and found.token == tokens[0]:  # its row is final: both its inputs are
            self._land(slot, found.rows, 1 << found.root)
            found.rows += 1
            copy(hidden[0], memory.hidden_pool[0])
            tokens, hidden = tokens[1:], hidden[1:]
        elif not found.rows:  # the first token has no row
            found.rows = 1
            self._clear_first(page)
            copy(hidden[0], memory.hidden_pool[0])
            tokens, hidden = tokens[1:], hidden[1:]
        found.token = None
        for token, row in zip(tokens, hidden, strict=True):
            if len(found.waiting) == self._most - 1:  # with the root, a step's rows
                self.flush(slot)
            found.waiting.append(token)
            copy(row, memory.hidden_pool[len(found.waiting)])

    def prefill(self, slot: int, count: int, page: int) -> None:
        """The decoder's prefill step took `count` tokens of the slot; `before_prefill` was called before it. `page` is
        the slot's first one."""
        assert self._decoder is not None
        assert self._prefill is not None
        found, memory, step = self._slots[slot], self._memory[slot], self._prefill
        device, rows = self._model.device, self._decoder.rows
        device.upload(rows.positions, chain_positions(found.rows - _FIRST, rows.positions.shape[0], self._model.tokens))
        write_control(self._model, memory.draft_control, found.rows, count, first=_FIRST)
        self._programs.run(("prefill", slot), lambda: step.operations(memory))
        if not found.rows:
            self._clear_first(page)
        found.rows += count
        self._model.device.copy(self._decoder.hidden[count], memory.hidden_pool[0])

    def before_prefill(self, slot: int) -> None:
        """Finish what waits and hand the prefill step the hidden row before its first token."""
        assert self._decoder is not None
        self.flush(slot)
        self._slots[slot].token = None
        self._model.device.copy(self._memory[slot].hidden_pool[0], self._decoder.hidden[0])

    def flush(self, slot: int) -> None:
        """Finish the rows of all committed tokens."""
        found = self._slots[slot]
        if found.waiting:
            count = len(found.waiting)
            self._chain(slot, found.waiting)
            self._advance(slot, count)

    def boundary(self, slot: int) -> None:
        """Store the hidden row of the last token in the slot's state; nothing waits."""
        memory = self._memory[slot]
        self._model.device.copy(memory.hidden_pool[0], memory.state.hidden)

    def start(self, slot: int, root: int) -> DraftResult:
        """Start a tree at the next token `root`."""
        found = self._slots[slot]
        found.context = found.rows
        count = len(found.waiting)
        step = self._chain(slot, [*found.waiting, root])
        self._keep_hidden(slot, step, 0, count + 1)
        self._advance(slot, count)
        found.token, found.root, found.tail = root, count, count + 1
        return self._result(step, count, count + 1)

    def check(self, slot: int, parents: Sequence[int]) -> None:
        """Raises ValueError: there is no tree, a parent is not in it, or it would outgrow the tail."""
        found = self._slots[slot]
        nodes = found.tail - found.root if found.token is not None else 0
        if not all(0 <= parent < nodes for parent in parents):
            raise ValueError(f"draft parents {list(parents)} are not nodes of the slot's tree of {nodes}")
        if found.tail + len(parents) > DRAFT_TAIL:
            raise ValueError(f"a draft tree of {nodes + len(parents)} nodes: it has room for {DRAFT_TAIL - found.root}")

    def extend(self, slot: int, tokens: Sequence[int], parents: Sequence[int]) -> DraftResult:
        """Add nodes to the slot's tree; `check` has passed."""
        found = self._slots[slot]
        results: list[DraftResult] = []
        for start in range(0, len(tokens), self._most):
            part = list(tokens[start : start + self._most])
            above = [found.root + parent for parent in parents[start : start + self._most]]
            hidden = [WAITING + row for row in above]
            step = self._run(slot, part, above, hidden, found.context, found.tail)
            self._keep_hidden(slot, step, found.tail, len(part))
            found.tail += len(part)
            results.append(self._result(step, 0, len(part)))
        return DraftResult(
            np.concatenate([result.token_ids for result in results]),
            np.concatenate([result.logprobs for result in results]),
        )

    def _chain(self, slot: int, tokens: Sequence[int]) -> DraftStep:
        """Run tokens that follow the finished rows, from the start of the tail."""
        count = len(tokens)
        return self._run(slot, tokens, list(range(-1, count - 1)), list(range(count)), self._slots[slot].rows, 0)

    def _run(
        self,
        slot: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        hidden: Sequence[int],
        context: int,
        tail: int,
    ) -> DraftStep:
        """Run rows whose parents are tail rows and whose hidden rows are `hidden` of the slot's pool."""
        count, memory, device = len(tokens), self._memory[slot], self._model.device
        rows = next(rows for rows in self._steps if rows >= count)
        step = self._steps[rows]
        device.upload(step.rows.input_ids, padded(tokens, rows, np.int64)[None])
        device.upload(step.rows.parents, padded(parents, rows, np.int32))
        device.upload(step.hidden_rows, padded(hidden, rows, np.int64))
        write_control(self._model, memory.draft_control, context, count, tail=tail, first=_FIRST)
        self._programs.run((rows, slot), lambda: step.operations(memory))
        return step

    def _advance(self, slot: int, count: int) -> None:
        """The first `count` rows of the tail are those of the waiting tokens: they are final."""
        found, memory = self._slots[slot], self._memory[slot]
        if count:
            self._land(slot, found.rows, (1 << count) - 1)
            self._model.device.copy(memory.hidden_pool[count], memory.hidden_pool[0])
        found.rows += count
        found.waiting = []

    def _land(self, slot: int, row: int, mask: int) -> None:
        """Copy tail rows to the pages, from row `row` on."""
        memory, model = self._memory[slot], self._model
        write_control(model, memory.draft_control, row, 0, first=_FIRST)
        model.device.upload(memory.draft_accepted, np.array([mask, mask.bit_length() - 1], np.int32))
        part = len(model.spec.full_layers)
        self._programs.run(
            ("land", slot),
            lambda: [
                commit_rows(
                    model,
                    (memory.draft_k, memory.draft_v),
                    memory.page_table,
                    memory.draft_control,
                    memory.draft_accepted,
                    slice(part, part + 1),
                )
            ],
        )

    def _clear_first(self, page: int) -> None:
        """Row 0 belongs to no token and is never visible; what stood in the page must not go out with a block."""
        pool, part = self._model.pool, len(self._model.spec.full_layers)
        for pages in (pool.k, pool.v):
            self._model.device.clear(pages[part, page][:1])

    def _keep_hidden(self, slot: int, step: DraftStep, tail: int, count: int) -> None:
        """Keep what the step made of tail rows tail … tail + count - 1 for their children."""
        start = WAITING + tail
        self._model.device.copy(step.hidden[:count], self._memory[slot].hidden_pool[start : start + count])

    def _result(self, step: DraftStep, start: int, stop: int) -> DraftResult:
        device, rows = self._model.device, step.rows
        ids, values, norm = (device.download(part) for part in (rows.best, rows.best_values, rows.log_norm))
        return DraftResult(ids[start:stop].astype(np.int64), (values - norm)[start:stop])
