"""One layer of a model as a graph of its own that also returns what goes into its matrices.

The same description and lowering as the executor's graphs, in float32. What must stay true: memory holds one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.nvfp4 import F32
from edgellm.engine.ort_session import open_session
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.decoder import decoder_layer
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.lowering.base import Lowering
from edgellm.graph.lowering.ort import Chain, OrtOps
from edgellm.graph.lowering.ort_attention import GroupedQuery, cache_output
from edgellm.graph.mtp import mtp_layer
from edgellm.graph.rope import rope_tables
from edgellm.graph.source import Part, Source
from edgellm.graph.weight_file import WeightFile


class Observed(NamedTuple):
    """Of one text of S tokens.

    Attributes:
        inputs: canonical names of the modules that share an input → f32 [S, in].
        caches: (keys after norm and RoPE, values), f32 [KV heads, S, head_dim]; None in a DeltaNet layer.
        out: f32 [S, hidden]; of the MTP layer after its norm.
    """

    inputs: dict[tuple[str, ...], F32]
    caches: tuple[F32, F32] | None
    out: F32


class LayerGraph:
    """A decoder layer, or the MTP layer, over whole texts.

    Args:
        source: the checkpoint.
        layer: number of the decoder layer; None for MTP.
        folder: an existing folder, for the graph and its weights.
        positions: tokens of the longest text.
    """

    def __init__(self, source: Source, layer: int | None, folder: Path, *, positions: int, threads: int) -> None:
        spec = source.spec
        self._spec, self._layer = spec, layer
        self._inputs: dict[str, list[str]] = {}
        attends = layer is None or spec.layers[layer] == "full_attention"
        self._cache = (("mtp_k", "mtp_v") if layer is None else (f"k_{layer}", f"v_{layer}")) if attends else None
        ops = _ObservedOps(source, WeightFormat(), self._inputs)
        with WeightFile(folder / "weights.bin") as file:
            g = GraphBuilder("layer", file)
            rope = rope_tables(g, spec.attention, positions)
            attention = GroupedQuery.declare(g, spec.attention, 1, rope, tree=False, cache=None, kv_scales=None)
            if layer is None:
                mtp_layer(g, Lowering(ops, attention))
            else:
                g.input("input_ids", np.int64, [1, "S"])
                x = g.input("hidden_in", np.float32, [1, "S", spec.hidden])
                delta = None if attends else Chain.declare(g, spec.linear)
                residual, update = decoder_layer(g, Lowering(ops, attention, delta), layer, x, "")
                g.op("Add", [residual, update], output=g.output("hidden_out", np.float32, [1, "S", spec.hidden]))
            for value, modules in self._inputs.items():
                g.output(value, np.float32, [1, "S", spec.expected_tensors()[f"{modules[0]}.weight"][1]])
            g.save(folder / "layer.onnx")
        self._session = open_session(folder / "layer.onnx", threads)
        self._needed = {value.name for value in self._session.get_inputs()}

    def run(self, hidden: F32, tokens: NDArray[np.int64]) -> Observed:
        """Run one text.

        Args:
            hidden: f32 [S, hidden]: into a decoder layer what the one before it returns; into MTP the decoder's rows
                after its norm.
            tokens: i64 [S]; used by MTP alone: to each row the token after it.
        """
        size = len(tokens)
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": tokens[None],
            "hidden_in": hidden[None],
            "positions": np.arange(size)[None],
            "seqlens_k": np.array([size - 1], np.int32),
            "total_seqlen": np.array(size, np.int32),
            **self._states(size),
        }
        caches = [cache_output(name) for name in self._cache or ()]
        names = [*self._inputs, "hidden_out", *caches]
        found = dict(zip(names, self._session.run(names, {name: feeds[name] for name in self._needed}), strict=True))
        return Observed(
            {tuple(modules): found[value][0] for value, modules in self._inputs.items()},
            (found[caches[0]][0], found[caches[1]][0]) if caches else None,
            found["hidden_out"][0],
        )

    def _states(self, size: int) -> dict[str, F32]:
        """Empty states and caches."""
        if self._cache is not None:
            attention = self._spec.attention
            empty = np.zeros((1, attention.kv_heads, size, attention.head_dim), np.float32)
            return dict.fromkeys(self._cache, empty)
        linear = self._spec.linear
        return {
            f"conv_{self._layer}": np.zeros((1, linear.conv_kernel - 1, linear.conv_channels), np.float32),
            f"state_{self._layer}": np.zeros((1, linear.value_heads, linear.key_dim, linear.value_dim), np.float32),
        }


@dataclass(frozen=True, slots=True)
class _ObservedOps(OrtOps):
    """Notes which value goes into which modules."""

    inputs: dict[str, list[str]] = field(default_factory=dict)

    def project(
        self, g: GraphBuilder, x: str, name: str, parts: Sequence[Part], outputs: Sequence[str] = ()
    ) -> list[str]:
        modules = self.inputs.setdefault(x, [])
        modules += dict.fromkeys(part.tensor.removesuffix(".weight") for part in parts)
        return OrtOps.project(self, g, x, name, parts, outputs)
