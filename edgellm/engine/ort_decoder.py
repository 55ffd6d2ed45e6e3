"""The decoder graphs over the slot pools: advance, verify and commit.

Knows names and shapes of graph inputs and outputs; knows nothing of committed lengths: the caller says where a slot
stands and checks that there is room. What must stay true: a call touches only the rows and states of its slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.ort_memory import Pools
from edgellm.engine.ort_session import F32, Array, BiasBuffer, BoundGraph
from edgellm.graph.indices import commit_rows, tree_index

Bound = tuple[dict[str, Array], dict[str, Array]]


class Decoder:
    """Sessions of the decoder and the buffers that they share.

    Args:
        folder: where the graphs are.
        chunk: most tokens of one advance.
        tree: most nodes of one verify; 0 loads neither verify nor commit.
    """

    def __init__(self, folder: Path, threads: int, spec: ModelSpec, pools: Pools, *, chunk: int, tree: int) -> None:
        slots, rows = pools.kv.shape[1], pools.kv.shape[3]
        self._spec = spec
        self._pools = pools
        self._advance = BoundGraph(folder / "advance.onnx", threads)
        self._verify = BoundGraph(folder / "verify.onnx", threads) if tree else None
        self._commit = BoundGraph(folder / "commit.onnx", threads) if tree else None
        self.logits: F32 = np.empty((max(tree, slots), spec.vocab), np.float32)
        self._hidden: F32 = np.empty((max(chunk, slots), spec.hidden), np.float32)
        self._bias = BiasBuffer(tree, rows)
        self._capsules = [_Capsules(spec, tree) for _ in range(slots)] if tree else []

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.logits.nbytes + self._hidden.nbytes + sum(capsule.nbytes for capsule in self._capsules)

    def advance(
        self, first: int, tokens: NDArray[np.int64], past: NDArray[np.int64], wanted: Sequence[int], row: int
    ) -> tuple[F32, F32]:
        """Commit `tokens` [B, S] to the slots first … first+B-1, which hold `past` [B] tokens; S is 1 unless B is 1.

        Returns:
            Logits [len(wanted), vocab] after the last token of the sequences `wanted` (rows from `row` on of a buffer
            that all calls share), and hidden rows [B, S, H], valid until the next call.
        """
        count, size = tokens.shape
        key = (first, count, size, len(wanted), row)
        binding = self._advance.bind(key, lambda: self._bind_advance(first, count, size, len(wanted), row))
        inputs = binding.inputs
        inputs["input_ids"][:] = tokens
        inputs["positions"][:] = past[:, None] + np.arange(size)
        inputs["seqlens_k"][:] = past + (size - 1)
        inputs["total_seqlen"][()] = past.max() + size
        inputs["logit_rows"][:] = [size * (index + 1) - 1 for index in wanted]
        self._advance.run(binding)
        return binding.outputs["logits"], binding.outputs["hidden"]

    def verify(self, slot: int, past: int, tokens: Sequence[int], parents: Sequence[int]) -> F32:
        """Logits [S, vocab] of every node of a tree over the `past` tokens of `slot`, valid until the next call.

        Writes KV rows from `past` on (r rows per node at most, r query heads per key head) and the slot's capsules,
        nothing else.
        """
        assert self._verify is not None
        size = len(tokens)
        index = tree_index(parents, self._spec.linear.conv_kernel)
        binding = self._verify.bind((slot, size), lambda: self._bind_verify(slot, size))
        inputs = binding.inputs
        inputs["input_ids"][0] = tokens
        inputs["positions"][0] = past + index.depths
        inputs["seqlens_k"][0] = past + size - 1
        inputs["total_seqlen"][()] = past + size
        inputs["tree_mask"][0, 0] = index.mask
        inputs["conv_idx"][:] = index.conv
        self._verify.run(binding, attn_bias=self._bias.fill(index.mask, past + size))
        return binding.outputs["logits"]

    def commit(self, slot: int, past: int, size: int, path: Sequence[int]) -> F32:
        """Apply `path` of the slot's last verified tree of `size` nodes; returns hidden rows [len(path), H]."""
        assert self._commit is not None
        binding = self._commit.bind((slot, size), lambda: self._bind_commit(slot, size))
        inputs = binding.inputs
        inputs["accept"][...] = 0
        inputs["accept"][0, 0, 0, list(path), 0] = 1
        inputs["leaf"][0] = path[-1]
        inputs["conv_rows"][:] = commit_rows(path, self._spec.linear.conv_kernel)
        self._commit.run(binding)
        self._pools.compact(slot, past, path)
        return self._capsules[slot].hidden[list(path)]

    def _bind_advance(self, first: int, count: int, size: int, wanted: int, row: int) -> Bound:
        state = self._state(first, count) | self._rows(first, count)
        inputs = state | _token_inputs(count, size) | {"logit_rows": np.zeros(wanted, np.int64)}
        outputs = {
            "logits": self.logits[row : row + wanted],
            "hidden": self._hidden[: count * size].reshape(count, size, -1),
        }
        return inputs, outputs | _in_place(state)

    def _bind_verify(self, slot: int, size: int) -> Bound:
        rows = self._rows(slot, 1)
        capsules = self._capsules[slot]
        inputs = {
            **self._state(slot, 1),
            **rows,
            **_token_inputs(1, size),
            "logit_rows": np.arange(size),
            "tree_mask": np.zeros((1, 1, size, size), np.float32),
            "conv_idx": np.zeros((size, self._spec.linear.conv_kernel), np.int64),
        }
        outputs = {"logits": self.logits[:size], "hidden": capsules.hidden[None, :size]}
        return inputs, outputs | capsules.arrays(size) | _in_place(rows)

    def _bind_commit(self, slot: int, size: int) -> Bound:
        state = self._state(slot, 1)
        inputs = {
            **state,
            **self._capsules[slot].arrays(size),
            "accept": np.zeros((1, 1, 1, size, 1), np.float32),
            "leaf": np.zeros(1, np.int64),
            "conv_rows": np.zeros(self._spec.linear.conv_kernel - 1, np.int64),
        }
        return inputs, _in_place(state)

    def _state(self, first: int, count: int) -> dict[str, Array]:
        span = slice(first, first + count)
        found: dict[str, Array] = {}
        for at, layer in enumerate(self._spec.linear_layers):
            found[f"conv_{layer}"] = self._pools.conv[at, span]
            found[f"state_{layer}"] = self._pools.state[at, span]
        return found

    def _rows(self, first: int, count: int) -> dict[str, Array]:
        span = slice(first, first + count)
        found: dict[str, Array] = {}
        for at, layer in enumerate(self._spec.full_layers):
            found[f"k_{layer}"] = self._pools.kv[2 * at, span]
            found[f"v_{layer}"] = self._pools.kv[2 * at + 1, span]
        return found


class _Capsules:
    """What commit needs of one slot's last verified tree: flat buffers, viewed as a tree of any size."""

    def __init__(self, spec: ModelSpec, nodes: int) -> None:
        linear = spec.linear
        ratio = linear.value_heads // linear.key_heads
        self._spec = spec
        self._shapes = {  # -1 stands for the nodes
            "d": (1, linear.key_heads, ratio, -1, linear.value_dim),
            "k": (1, linear.key_heads, 1, -1, linear.key_dim),
            "g": (1, linear.key_heads, ratio, -1, 1),
            "c": (1, -1, linear.conv_channels),
        }
        self._flat: dict[str, F32] = {
            f"cap_{part}_{layer}": np.zeros(-int(np.prod(shape)) * nodes, np.float32)
            for layer in spec.linear_layers
            for part, shape in self._shapes.items()
        }
        self.hidden: F32 = np.zeros((nodes, spec.hidden), np.float32)

    @property
    def nbytes(self) -> int:
        return self.hidden.nbytes + sum(flat.nbytes for flat in self._flat.values())

    def arrays(self, size: int) -> dict[str, Array]:
        """Graph values of a tree of `size` nodes."""
        found: dict[str, Array] = {}
        for name, flat in self._flat.items():
            shape = self._shapes[name[4]]
            found[name] = flat[: -int(np.prod(shape)) * size].reshape(shape)
        return found


def _token_inputs(count: int, size: int) -> dict[str, Array]:
    return {
        "input_ids": np.zeros((count, size), np.int64),
        "positions": np.zeros((count, size), np.int64),
        "seqlens_k": np.zeros(count, np.int32),
        "total_seqlen": np.zeros((), np.int32),
    }


def _in_place(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs in the memory of their inputs: `k_3` comes back as `k_out_3`."""
    outputs: dict[str, Array] = {}
    for name, array in inputs.items():
        stem, _, layer = name.rpartition("_")
        outputs[f"{stem}_out_{layer}"] = array
    return outputs
