"""The ONNX Runtime executor: runs a bundle's graphs on the CPU and owns the memory of its slots.

A slot has contiguous KV rows; publish and restore copy. A restore skips blocks whose rows the slot still holds, so a
conversation that returns to its slot copies only what changed. Single tokens of several sequences run as one batch when
their slots are neighbours (the kernels take ragged lengths only for one token a sequence); trees run one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.base import BlockRef, Chunk, DraftNodes, DraftResult, ExecutorInfo, Logits, SnapshotRef, TokenTree
from edgellm.engine.builder import DRAFT_POSITIONS
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort_draft import DraftLayer
from edgellm.engine.ort_memory import Block, Pools, Snapshot
from edgellm.engine.ort_session import BoundGraph
from edgellm.engine.payload import pack, unpack
from edgellm.errors import ConfigError, EdgeLLMError
from edgellm.graph.indices import attention_bias, commit_rows, tree_index

F32 = NDArray[np.float32]


class ArrayLogits:
    """Logits in an array [rows, vocab] that the next call overwrites."""

    def __init__(self, values: F32) -> None:
        self._values = values

    @property
    def rows(self) -> int:
        return int(self._values.shape[0])

    def greedy(self) -> NDArray[np.int64]:
        best: NDArray[np.int64] = np.argmax(self._values, axis=1)
        return best

    def row(self, index: int) -> F32:
        row: F32 = self._values[index]
        return row


@dataclass(slots=True)
class SlotState:
    """What the host knows of one slot."""

    length: int = 0
    tree: TokenTree | None = None  # last verified, until the next change of the slot
    resident: list[tuple[BlockRef, int]] = field(default_factory=list)  # (block, end token) held from token 0 on
    broken: bool = False  # a run failed half-way: only reset or restore to 0 helps

    def forget_from(self, row: int) -> None:
        """Rows from `row` on are about to be written."""
        while self.resident and self.resident[-1][1] > row:
            self.resident.pop()


class OrtExecutor:
    """See the module's docstring; the contract is `edgellm.engine.base.Executor`."""

    def __init__(self, bundle: Bundle, *, slots: int, context: int, threads: int, speculation: bool) -> None:
        manifest, spec = bundle.manifest, bundle.manifest.spec
        limit = manifest.context
        if not 1 <= context <= limit:
            raise ConfigError(f"context: {context} is outside 1..{limit}, the context this bundle was built for")
        if slots < 1:
            raise ConfigError(f"slots: {slots} is not positive")
        mtp = speculation and spec.mtp_layers > 0
        self._spec = spec
        self._rows = context + DRAFT_POSITIONS
        self._pools = Pools(spec, slots, self._rows, mtp, copy_threads=min(threads, 4))
        self._slots = [SlotState() for _ in range(slots)]
        self._advance = BoundGraph(bundle.path / "advance.onnx", threads)
        self._verify = BoundGraph(bundle.path / "verify.onnx", threads) if speculation else None
        self._commit = BoundGraph(bundle.path / "commit.onnx", threads) if speculation else None
        self._draft = DraftLayer(bundle.path / "mtp.onnx", threads, spec, self._pools, slots) if mtp else None
        tree = manifest.tree_nodes if speculation else 0
        self._logits: F32 = np.empty((max(tree, slots), spec.vocab), np.float32)
        self._hidden: F32 = np.empty((min(manifest.prefill_chunk, context), spec.hidden), np.float32)
        self._capsules = [_capsules(bundle, tree) for _ in range(slots)] if tree else []
        self._blocks: dict[BlockRef, Block] = {}
        self._snapshots: dict[SnapshotRef, Snapshot] = {}
        self._next = itertools.count(1)
        self._weights = sum(entry.bytes for entry in manifest.files if entry.name.endswith(".bin"))
        head = spec.attention.kv_heads * spec.attention.head_dim * 4
        self._info = ExecutorInfo(
            slots=slots,
            max_tokens=context,
            max_chunk=min(manifest.prefill_chunk, context),
            max_batch=slots,
            max_tree=tree,
            draft_top_k=DraftLayer.TOP_K if mtp else 0,
            block_tokens=manifest.block_tokens,
            block_bytes=self._pools.kv_layers * head * manifest.block_tokens,
            snapshot_bytes=(self._pools.conv.nbytes + self._pools.state.nbytes) // slots + spec.hidden * 4,
            vocab_size=spec.vocab,
            fingerprint=f"{bundle.fingerprint}-{'mtp' if mtp else 'plain'}",
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def length(self, slot: int) -> int:
        return self._slots[slot].length

    def reset(self, slot: int) -> None:
        self._pools.clear_state(slot)
        state = self._slots[slot]
        state.length, state.tree, state.broken = 0, None, False
        if self._draft:
            self._draft.reset(slot)

    def restore(self, slot: int, length: int, blocks: Sequence[BlockRef], snapshot: SnapshotRef | None) -> None:
        if length == 0:
            self.reset(slot)
            return
        if snapshot is None or self._snapshots[snapshot].length != length:
            raise ValueError(f"restore of {length} tokens needs a snapshot taken there")
        state, step = self._slots[slot], self._info.block_tokens
        ends = [(ref, i * step + self._blocks[ref].tokens) for i, ref in enumerate(blocks)]
        if not ends or ends[-1][1] < length:
            raise ValueError(f"blocks cover less than {length} tokens")
        held = 0
        while held < min(len(ends), len(state.resident)) and state.resident[held] == ends[held]:
            held += 1
        self._pools.write_blocks(slot, [(i * step, self._blocks[blocks[i]]) for i in range(held, len(blocks))])
        self._pools.write_state(slot, self._snapshots[snapshot])
        state.length, state.tree, state.broken, state.resident = length, None, False, ends
        if self._draft:
            self._draft.restore(slot, length, self._snapshots[snapshot].hidden)

    def publish(self, slot: int, start: int, end: int) -> BlockRef:
        state, step = self._usable(slot), self._info.block_tokens
        if start % step or not start < end <= min(start + step, state.length):
            raise ValueError(f"tokens [{start}, {end}) are not one block of {state.length} committed tokens")
        if self._draft:
            self._draft.flush(slot)
        ref = BlockRef(next(self._next))
        self._blocks[ref] = self._pools.read_block(slot, start, end)
        index = start // step
        if index <= len(state.resident):  # the slot's rows are this block's rows
            after = state.resident[index + 1 :] if end - start == step else []
            state.resident[index:] = [(ref, end), *after]
        return ref

    def snapshot(self, slot: int) -> SnapshotRef:
        state = self._usable(slot)
        hidden = self._draft.boundary(slot) if self._draft else np.zeros(0, np.float32)
        ref = SnapshotRef(next(self._next))
        self._snapshots[ref] = self._pools.read_state(slot, state.length, hidden)
        return ref

    def free_block(self, ref: BlockRef) -> None:
        del self._blocks[ref]

    def free_snapshot(self, ref: SnapshotRef) -> None:
        del self._snapshots[ref]

    def dump_block(self, ref: BlockRef) -> bytes:
        return pack(self._info.fingerprint, {"rows": self._blocks[ref].rows})

    def load_block(self, data: bytes) -> BlockRef:
        arrays, _ = unpack(self._info.fingerprint, data)
        ref = BlockRef(next(self._next))
        self._blocks[ref] = Block(arrays["rows"])
        return ref

    def dump_snapshot(self, ref: SnapshotRef) -> bytes:
        snap = self._snapshots[ref]
        return pack(
            self._info.fingerprint, {"conv": snap.conv, "state": snap.state, "hidden": snap.hidden}, snap.length
        )

    def load_snapshot(self, data: bytes) -> SnapshotRef:
        arrays, length = unpack(self._info.fingerprint, data)
        ref = SnapshotRef(next(self._next))
        self._snapshots[ref] = Snapshot(length, arrays["conv"], arrays["state"], arrays["hidden"])
        return ref

    def advance(self, batch: Sequence[Chunk]) -> Logits:
        if len(batch) > 1 and any(len(chunk.tokens) != 1 for chunk in batch):
            raise ValueError("several chunks in one advance() must hold one token each")
        order = sorted(range(len(batch)), key=lambda i: batch[i].slot)
        rows: dict[int, int] = {}
        used = 0
        for run in _neighbours(order, batch):
            self._advance_run([batch[i] for i in run], used)
            rows |= {i: used + offset for offset, i in enumerate(run)}
            used += len(run)
        wanted = [rows[i] for i, chunk in enumerate(batch) if chunk.logits]
        values = self._logits[:used]
        return ArrayLogits(values if wanted == list(range(used)) else values[wanted])

    def verify(self, tree: TokenTree) -> Logits:
        state, size = self._usable(tree.slot), len(tree.tokens)
        if self._verify is None or not 1 <= size <= self._info.max_tree:
            raise ValueError(f"a tree of {size} nodes: the executor takes 1..{self._info.max_tree}")
        state.tree = None
        base = state.length
        state.forget_from(base)
        binding = self._verify.bind((tree.slot, size), lambda: self._bind_verify(tree.slot, size))
        index = tree_index(tree.parents, self._spec.linear.conv_kernel)
        _token_inputs(binding.inputs, tree.tokens, base + index.depths, [base], size)
        binding.inputs["tree_mask"][:] = index.mask
        binding.inputs["conv_idx"][:] = index.conv
        self._guard([tree.slot], lambda: self._verify_run(binding, base, index.mask))
        state.tree = tree
        return ArrayLogits(binding.outputs["logits"])

    def commit(self, slot: int, path: Sequence[int]) -> None:
        state = self._usable(slot)
        tree = state.tree
        if tree is None or self._commit is None:
            raise ValueError(f"slot {slot} has no verified tree to commit")
        if not path or path[0] != 0 or any(tree.parents[b] != a for a, b in itertools.pairwise(path)):
            raise ValueError(f"path {list(path)} does not go down the tree from its root")
        state.tree = None
        size = len(tree.tokens)
        binding = self._commit.bind((slot, size), lambda: self._bind_commit(slot, size))
        accept = binding.inputs["accept"]
        accept[:] = 0
        accept[0, 0, 0, list(path), 0] = 1
        binding.inputs["leaf"][0] = path[-1]
        binding.inputs["conv_rows"][:] = commit_rows(path, self._spec.linear.conv_kernel)
        run = self._commit.run
        self._guard([slot], lambda: run(binding))
        self._pools.compact(slot, state.length, path)
        if self._draft:
            hidden = self._tree_hidden(slot, size)[list(path)]
            self._draft.append(slot, state.length, [tree.tokens[i] for i in path], hidden)
        state.length += len(path)

    def draft(self, batch: Sequence[DraftNodes]) -> Sequence[DraftResult]:
        if self._draft is None:
            raise ValueError("this executor was opened without MTP")
        return [self._draft.extend(nodes, self._usable(nodes.slot).length) for nodes in batch]

    def memory(self) -> dict[str, int]:
        return {
            "weights": self._weights,
            "slots": self._pools.nbytes,
            "blocks": sum(block.rows.nbytes for block in self._blocks.values()),
            "snapshots": sum(s.conv.nbytes + s.state.nbytes + s.hidden.nbytes for s in self._snapshots.values()),
            "n_blocks": len(self._blocks),
            "n_snapshots": len(self._snapshots),
        }

    def close(self) -> None:
        self._pools.close()
        self._blocks.clear()
        self._snapshots.clear()

    def _usable(self, slot: int) -> SlotState:
        state = self._slots[slot]
        if state.broken:
            raise EdgeLLMError(f"slot {slot} holds half a step after a fault; reset it first")
        return state

    def _guard(self, slots: Sequence[int], run: Callable[[], object]) -> None:
        """Run a graph; a failure leaves the slots marked broken."""
        try:
            run()
        except Exception as error:
            for slot in slots:
                self._slots[slot].broken = True
            raise EdgeLLMError(f"ONNX Runtime failed in slots {list(slots)}: {error}") from error

    def _advance_run(self, chunks: Sequence[Chunk], row: int) -> None:
        """Advance chunks of neighbouring slots; the last row's logits of each go to self._logits[row:]."""
        first, count, size = chunks[0].slot, len(chunks), len(chunks[0].tokens)
        states = [self._usable(chunk.slot) for chunk in chunks]
        bases = [state.length for state in states]
        if size < 1 or size > self._info.max_chunk or max(bases) + size > self._info.max_tokens:
            raise ValueError(f"chunk of {size} tokens at {max(bases)} exceeds chunk {self._info.max_chunk} or context")
        for state in states:
            state.tree = None
            state.forget_from(state.length)
        binding = self._advance.bind((first, count, size, row), lambda: self._bind_advance(first, count, size, row))
        tokens = np.asarray([chunk.tokens for chunk in chunks], np.int64)
        _token_inputs(binding.inputs, tokens, np.asarray(bases)[:, None] + np.arange(size), bases, size)
        self._guard(range(first, first + count), lambda: self._advance.run(binding))
        for i, state in enumerate(states):
            if self._draft:
                self._draft.append(first + i, bases[i], tokens[i], binding.outputs["hidden"][i])
            state.length += size

    def _verify_run(self, binding: Any, base: int, mask: F32) -> None:
        assert self._verify is not None
        self._verify.run(binding, attn_bias=attention_bias(base, mask))

    def _tree_hidden(self, slot: int, size: int) -> F32:
        hidden: F32 = self._capsules[slot]["hidden"][: size * self._spec.hidden].reshape(size, self._spec.hidden)
        return hidden

    def _state_arrays(self, first: int, count: int, *, kv: bool) -> dict[str, Any]:
        pools, span = self._pools, slice(first, first + count)
        arrays: dict[str, Any] = {}
        for j, i in enumerate(self._spec.linear_layers):
            arrays |= {f"conv_{i}": pools.conv[j, span], f"state_{i}": pools.state[j, span]}
        for j, i in enumerate(self._spec.full_layers if kv else ()):
            arrays |= {f"k_{i}": pools.kv[2 * j, span], f"v_{i}": pools.kv[2 * j + 1, span]}
        return arrays

    def _bind_advance(self, first: int, count: int, size: int, row: int) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._state_arrays(first, count, kv=True)
        rows = np.arange(1, count + 1, dtype=np.int64) * size - 1
        outputs = {
            "logits": self._logits[row : row + count],
            "hidden": self._hidden[: count * size].reshape(count, size, -1),
        }
        return {**state, **_small_inputs(count, size), "logit_rows": rows}, {**outputs, **_aliases(state)}

    def _bind_verify(self, slot: int, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._state_arrays(slot, 1, kv=True)
        inputs = {
            **state,
            **_small_inputs(1, size),
            "logit_rows": np.arange(size, dtype=np.int64),
            "tree_mask": np.zeros((1, 1, size, size), np.float32),
            "conv_idx": np.zeros((size, self._spec.linear.conv_kernel), np.int64),
        }
        kv = {name: array for name, array in state.items() if name[0] in "kv"}
        outputs = {
            "logits": self._logits[:size],
            "hidden": self._tree_hidden(slot, size)[None],
            **self._capsule_arrays(slot, size),
            **_aliases(kv),
        }
        return inputs, outputs

    def _bind_commit(self, slot: int, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._state_arrays(slot, 1, kv=False)
        inputs = {
            **state,
            **self._capsule_arrays(slot, size),
            "accept": np.zeros((1, 1, 1, size, 1), np.float32),
            "leaf": np.zeros(1, np.int64),
            "conv_rows": np.zeros(self._spec.linear.conv_kernel - 1, np.int64),
        }
        return inputs, _aliases(state)

    def _capsule_arrays(self, slot: int, size: int) -> dict[str, Any]:
        """The slot's capsule buffers viewed for a tree of `size` nodes."""
        spec = self._spec.linear
        ratio = spec.value_heads // spec.key_heads
        shapes = {
            "d": (1, spec.key_heads, ratio, size, spec.value_dim),
            "k": (1, spec.key_heads, 1, size, spec.key_dim),
            "g": (1, spec.key_heads, ratio, size, 1),
            "c": (1, size, spec.conv_channels),
        }
        buffers = self._capsules[slot]
        return {
            f"cap_{part}_{i}": buffers[f"{part}{i}"][: int(np.prod(shape))].reshape(shape)
            for i in self._spec.linear_layers
            for part, shape in shapes.items()
        }


def _capsules(bundle: Bundle, nodes: int) -> dict[str, F32]:
    """Flat buffers for one slot's capsules and hidden rows of a tree."""
    spec, linear = bundle.manifest.spec, bundle.manifest.spec.linear
    sizes = {
        "d": linear.value_heads * linear.value_dim,
        "k": linear.key_heads * linear.key_dim,
        "g": linear.value_heads,
        "c": linear.conv_channels,
    }
    buffers = {
        f"{part}{i}": np.empty(nodes * size, np.float32) for i in spec.linear_layers for part, size in sizes.items()
    }
    return {**buffers, "hidden": np.empty(nodes * spec.hidden, np.float32)}


def _small_inputs(count: int, size: int) -> dict[str, Any]:
    return {
        "input_ids": np.zeros((count, size), np.int64),
        "positions": np.zeros((count, size), np.int64),
        "seqlens_k": np.zeros(count, np.int32),
        "total_seqlen": np.zeros((), np.int32),
    }


def _token_inputs(inputs: Any, tokens: Any, positions: Any, bases: Sequence[int], size: int) -> None:
    """Fill the inputs of `_small_inputs`; `bases` are the committed tokens of each sequence."""
    inputs["input_ids"][:] = tokens
    inputs["positions"][:] = positions
    inputs["seqlens_k"][:] = [base + size - 1 for base in bases]
    inputs["total_seqlen"][()] = max(bases) + size


def _aliases(state: dict[str, Any]) -> dict[str, Any]:
    """Output names of state inputs: `k_3` comes back as `k_out_3` in the same memory."""
    return {f"{name.rpartition('_')[0]}_out_{name.rpartition('_')[2]}": array for name, array in state.items()}


def _neighbours(order: Sequence[int], batch: Sequence[Chunk]) -> list[list[int]]:
    """Batch positions, sorted by slot, cut into runs of consecutive slots."""
    runs: list[list[int]] = []
    for i in order:
        if runs and batch[runs[-1][-1]].slot + 1 == batch[i].slot:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs
