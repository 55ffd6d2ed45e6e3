"""Small models, and a runner of their graphs, for the tests of edgellm.graph.

Weights come from an integer hash, so that they are the same with every version of NumPy: the golden files depend on it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from quantized_files import nvfp4

from edgellm.checkpoint.nvfp4 import Nvfp4
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.weights import PlainWeight, Weight, WeightKind
from edgellm.graph.indices import attention_bias, commit_rows, tree_index

Array = NDArray[Any]
CACHE_ROWS = 720
# The shape of a good draft tree: 16 nodes, six levels, several branches.
TREE = (-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 10, 10, 13)
CHAIN = tuple(range(-1, 15))


def _config(
    hidden: int, inter: int, layers: int, every: int, vocab: int, heads: Any, linear: Any, tied: bool
) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "full_attention_interval": every,
        "vocab_size": vocab,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "linear_num_key_heads": linear[0],
        "linear_num_value_heads": linear[1],
        "linear_key_head_dim": linear[2],
        "linear_value_head_dim": linear[3],
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 4096,
        "mtp_num_hidden_layers": 1,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "equal-tied": _config(128, 256, 6, 3, 512, (4, 2, 64), (4, 4, 32, 32), True),
    "grouped-untied": _config(96, 224, 4, 2, 640, (6, 2, 32), (2, 6, 32, 32), False),
    "odd-sizes": _config(80, 184, 5, 4, 509, (3, 1, 32), (3, 6, 24, 40), False),
}


class HashedModel:
    """A `Source` with weights that depend on (seed, tensor name, shape) only."""

    def __init__(self, name: str, seed: int = 0, **overrides: Any) -> None:
        self.config = {**CONFIGS[name], **overrides}
        self.spec = ModelSpec.from_config(self.config)
        self.seed = seed
        self.reads: list[str] = []

    def tensor(self, name: str) -> Array:
        self.reads.append(name)
        shape = self.spec.expected_tensors()[name]
        z = _uniform(int(np.prod(shape)), zlib.crc32(f"{self.seed}/{name}".encode())).reshape(shape)
        if name.endswith(".A_log"):
            return np.log(0.02 + 3.98 * (z + 1) / 2).astype(np.float32)
        z = z * 3**0.5  # unit variance
        if name.endswith(".dt_bias"):
            return (0.5 * z - 1).astype(np.float32)
        if name.endswith("linear_attn.norm.weight"):
            return (1 + 0.1 * z).astype(np.float32)
        if "norm" in name:
            return (0.1 * z).astype(np.float32)
        if name.endswith("conv1d.weight"):
            return (0.4 * z).astype(np.float32)
        return (z * shape[-1] ** -0.5).astype(np.float32)

    def weight(self, name: str) -> Weight:
        return PlainWeight(self.tensor(name), "f32")

    def kind(self, name: str) -> WeightKind:
        return "f32"


class Nvfp4Model(HashedModel):
    """The model with matrices in NVFP4: those that `kind` says, in a subclass. `tensor` gives what they stand for."""

    def input_scale(self, name: str) -> np.float32 | None:
        return None

    def tensor(self, name: str) -> Array:
        value = super().tensor(name)
        return nvfp4(value)[3] if self.kind(name) == "nvfp4" else value

    def weight(self, name: str) -> Weight:
        if self.kind(name) != "nvfp4":
            return super().weight(name)
        packed, scales, factor, _ = nvfp4(HashedModel.tensor(self, name))
        return Nvfp4Weight(Nvfp4(packed, scales, factor), self.input_scale(name))


def _uniform(count: int, seed: int) -> NDArray[np.float64]:
    """Numbers in (-1, 1): the splitmix64 generator."""
    z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-52 - 1.0


def tokens(count: int, vocab: int, seed: int) -> NDArray[np.int64]:
    """Random token ids, the same with every version of NumPy."""
    return ((_uniform(count, seed) + 1) / 2 * vocab).astype(np.int64)


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Graphs:
    """Sessions of one folder of graphs, opened when they are first used."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.folder, self.spec = folder, spec
        self._sessions: dict[str, ort.InferenceSession] = {}

    def __getitem__(self, name: str) -> ort.InferenceSession:
        if name not in self._sessions:
            self._sessions[name] = session(self.folder / f"{name}.onnx")
        return self._sessions[name]


class Slot:
    """One sequence over the ONNX Runtime graphs, its state bound in place; `rows` are those of the KV caches."""

    def __init__(self, graphs: Graphs, rows: int = CACHE_ROWS) -> None:
        spec = graphs.spec
        linear, attention = spec.linear, spec.attention
        self.graphs, self.length = graphs, 0
        self.state: dict[str, Array] = {}
        for i in spec.linear_layers:
            self.state[f"conv_{i}"] = zeros(1, linear.conv_kernel - 1, linear.conv_channels)
            self.state[f"state_{i}"] = zeros(1, linear.value_heads, linear.key_dim, linear.value_dim)
        for name in [f"{part}_{i}" for i in spec.full_layers for part in "kv"] + ["mtp_k", "mtp_v"]:
            self.state[name] = zeros(1, attention.kv_heads, rows, attention.head_dim)
        self.hidden: Array = zeros(1, 0, spec.hidden)
        self._tree: dict[str, Array] = {}
        self._parents: Sequence[int] = ()

    def advance(self, ids: Sequence[int] | Array) -> Array:
        """Commit tokens; logits [n, vocab]."""
        out = self.run("advance", self._feeds(ids, self.length + np.arange(len(ids))))
        self.length += len(ids)
        self.hidden = out["hidden"]
        return out["logits"]

    def verify(self, ids: Sequence[int] | Array, parents: Sequence[int]) -> Array:
        """Logits [n, vocab] of tree nodes."""
        index = tree_index(parents, self.graphs.spec.linear.conv_kernel)
        feeds = self._feeds(ids, self.length + index.depths)
        feeds |= {
            "attn_bias": attention_bias(self.length, index.mask),
            "tree_mask": index.mask[None, None],
            "conv_idx": index.conv,
        }
        self._tree, self._parents = self.run("verify", feeds), parents
        return self._tree["logits"]

    def commit(self, path: Sequence[int]) -> None:
        """Commit a path of the last verified tree."""
        accept = zeros(1, 1, 1, len(self._parents), 1)
        accept[0, 0, 0, list(path)] = 1
        rows = commit_rows(path, self.graphs.spec.linear.conv_kernel)
        self.run("commit", {**self._tree, "accept": accept, "leaf": np.array([path[-1]]), "conv_rows": rows})
        for i in self.graphs.spec.full_layers:
            for cache in (self.state[f"k_{i}"], self.state[f"v_{i}"]):
                cache[:, :, self.length : self.length + len(path)] = cache[:, :, [self.length + p for p in path]]
        self.length += len(path)

    def draft(self, ids: Sequence[int] | Array, hidden: Array, start: int) -> dict[str, Array]:
        """Run the MTP layer over a chain of rows start … that all are scored."""
        feeds = self._feeds(ids, start + np.arange(len(ids)), start)
        mask = np.where(np.tri(len(ids)) > 0, 0, -1e30).astype(np.float32)
        return self.run("mtp", {**feeds, "hidden_in": hidden[None], "attn_bias": attention_bias(start, mask)})

    def _feeds(self, ids: Sequence[int] | Array, positions: Array, past: int | None = None) -> dict[str, Array]:
        past = self.length if past is None else past
        return {
            "input_ids": np.asarray(ids, np.int64)[None],
            "positions": np.asarray(positions, np.int64)[None],
            "seqlens_k": np.array([past + len(ids) - 1], np.int32),
            "total_seqlen": np.array(past + len(ids), np.int32),
            "logit_rows": np.arange(len(ids)),
        }

    def run(self, name: str, feeds: dict[str, Array]) -> dict[str, Array]:
        """Run a graph with this slot's state; outputs that are state stay in place and are left out."""
        graph = self.graphs[name]
        binding = graph.io_binding()
        bound = {key: ort.OrtValue.ortvalue_from_numpy(value) for key, value in self.state.items()}
        given = {key: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for key, value in feeds.items()}
        for item in graph.get_inputs():
            binding.bind_ortvalue_input(item.name, bound.get(item.name) or given[item.name])
        for item in graph.get_outputs():
            place = bound.get(item.name.replace("_out_", "_").removesuffix("_out"))
            if place is not None and "_out" in item.name:
                binding.bind_ortvalue_output(item.name, place)
            else:
                binding.bind_output(item.name)
        graph.run_with_iobinding(binding)
        names = [item.name for item in graph.get_outputs()]
        values = dict(zip(names, binding.get_outputs(), strict=True))
        return {key: value.numpy() for key, value in values.items() if key == "hidden_out" or "_out" not in key}


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Nodes from the root to `node`."""
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def leaves(parents: Sequence[int]) -> list[int]:
    return [node for node in range(len(parents)) if node not in parents]
