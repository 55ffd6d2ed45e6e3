"""Published blocks and snapshots of a device, by reference: pages with counts, and copies of recurrent states.

What must stay true: no memory is taken after opening: a freed snapshot's serves the next.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from edgellm.engine.base import BlockRef, SnapshotRef
from edgellm.engine.device.base import Array, Launch
from edgellm.engine.device.memory import State
from edgellm.engine.device.pages import PagePool
from edgellm.engine.device.programs import Programs
from edgellm.engine.device.rows import Model
from edgellm.engine.payload import pack, unpack
from edgellm.engine.references import References
from edgellm.errors import ExecutionError
from edgellm.kernels.attention import KV_COPY_PAGE


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """The first `tokens` rows of a page."""

    page: int
    tokens: int


@dataclass(frozen=True, slots=True)
class KeptState:
    """The recurrent state after `length` tokens."""

    length: int
    state: State


class DeviceStore:
    """See the module's docstring. An unknown reference raises ValueError.

    Args:
        state: of a slot: every snapshot has its form.
    """

    def __init__(self, model: Model, programs: Programs, state: State, fingerprint: str) -> None:
        self.pages = PagePool(model.layout.pages)
        self._model, self._programs, self._fingerprint = model, programs, fingerprint
        numbers = itertools.count(1)
        self._blocks = References[BlockRef, KeptBlock](BlockRef, numbers)
        self._snapshots = References[SnapshotRef, KeptState](SnapshotRef, numbers)
        self._unused = [State(model.device, model.spec, model.layout) for _ in range(model.layout.snapshots)]
        self._state_forms = [(part.shape, part.dtype) for part in state.parts]
        self._copy = model.zeros(3, dtype=np.int32)

    def publish(self, page: int, tokens: int) -> BlockRef:
        """A reference to the first `tokens` rows of `page`, which has an owner."""
        self.pages.share(page)
        return self._blocks.keep(KeptBlock(page, tokens))

    def copy_page(self, page: int) -> int:
        """A page of one's own with the rows of `page`."""
        made, model = self.pages.take(), self._model
        model.device.upload(self._copy, np.array([page, made, model.layout.pages], np.int32))
        pool = model.pool
        sizes = replace(model.sizes(1, 1), layers=pool.k.shape[0])
        tensors = {"copy": self._copy, "k_pages": pool.k, "v_pages": pool.v}
        self._programs.run("copy page", lambda: [Launch(KV_COPY_PAGE, sizes, tensors)])
        return made

    def keep(self, length: int, state: State) -> SnapshotRef:
        """A copy of a slot's settled state."""
        kept = self._state()
        for source, target in zip(state.parts, kept.parts, strict=True):
            self._model.device.copy(source, target)
        return self._snapshots.keep(KeptState(length, kept))

    def block(self, ref: BlockRef) -> KeptBlock:
        return self._blocks.get(ref)

    def snapshot(self, ref: SnapshotRef) -> KeptState:
        return self._snapshots.get(ref)

    def free_block(self, ref: BlockRef) -> None:
        self.pages.release(self._blocks.drop(ref).page)

    def free_snapshot(self, ref: SnapshotRef) -> None:
        self._unused.append(self._snapshots.drop(ref).state)

    def dump_block(self, ref: BlockRef) -> bytes:
        block, pool = self.block(ref), self._model.pool
        rows = [
            self._model.device.download(part[layer, block.page])[: block.tokens]
            for part in (pool.k, pool.v)
            for layer in range(part.shape[0])
        ]
        return pack("block", self._fingerprint, block.tokens, rows)

    def load_block(self, data: bytes) -> BlockRef:
        layout, pool = self._model.layout, self._model.pool
        targets = [(part, layer) for part in (pool.k, pool.v) for layer in range(part.shape[0])]
        shape = pool.k.shape[3:]
        tokens, rows = unpack(
            "block",
            self._fingerprint,
            data,
            layout.page,
            lambda tokens: [((tokens, *shape), pool.k.dtype)] * len(targets),
        )
        page = self.pages.take()
        whole: Array = np.zeros((layout.page, *shape), pool.k.dtype)
        for (part, layer), values in zip(targets, rows, strict=True):
            whole[:tokens] = values
            self._model.device.upload(part[layer, page], whole)
        return self._blocks.keep(KeptBlock(page, tokens))

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        kept = self.snapshot(ref)
        parts = [self._model.device.download(part) for part in kept.state.parts]
        return pack("snapshot", self._fingerprint, kept.length, parts)

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        length, values = unpack("snapshot", self._fingerprint, data, 1 << 40, lambda _: self._state_forms)
        state = self._state()
        for part, value in zip(state.parts, values, strict=True):
            self._model.device.upload(part, np.ascontiguousarray(value))
        return self._snapshots.keep(KeptState(length, state))

    def memory(self) -> dict[str, int]:
        """Bytes and counts of what is alive."""
        return {
            "blocks": len(self._blocks) * self._model.pool.page_bytes(),
            "snapshots": sum(kept.state.nbytes for kept in self._snapshots.values()),
            "n_blocks": len(self._blocks),
            "n_snapshots": len(self._snapshots),
        }

    def _state(self) -> State:
        if not self._unused:
            raise ExecutionError(f"all {self._model.layout.snapshots} snapshots are in use")
        return self._unused.pop()
