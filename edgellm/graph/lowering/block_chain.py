"""Gated DeltaNet over a long chain of tokens in standard operators: blocks whose state goes from one to the next.

A block is a tree that is a chain (see `tree`); with T = (I + L)^-1, which needs no state,
  U = T (beta V) - (T beta e^G K) S,   O = (e^G Q) S + A U,   S' = e^(G_last) S + (e^(G_last - G) K)^T U.
All but the products with S are made for all blocks at once; those are three per block, in sequence. The substitution
in T is by halves as in `tree`: stable for equal keys in blocks of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from edgellm.checkpoint.spec import LinearSpec
from edgellm.errors import ConfigError
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.lowering.base import DeltaWeights, Ops
from edgellm.graph.tree import Masks, chain_masks, convolve, couple, declare_state, scaled_rows

CHAIN_BLOCK: Final = 64  # tokens


@dataclass(frozen=True, slots=True)
class BlockChain:
    """`DeltaForm` over a chunk of a fixed number of consecutive tokens, of which the last ones may be padding.

    Inputs: live f32 [1, S, 1] (1 for tokens, 0 for padding behind them), conv_rows i64 [K-1] (rows of concat(conv
    state, new rows) that become the conv state, see `indices.commit_rows`); per layer conv_{i} f32 [1, K-1, channels]
    and state_{i} f32 [1, Hv, dk, dv]. Outputs: conv_out_{i} and state_out_{i}: the states after the last live token.
    """

    tokens: int
    live: str
    conv_rows: str
    masks: Masks

    @classmethod
    def declare(cls, g: GraphBuilder, spec: LinearSpec, tokens: int) -> Self:
        """Declare the inputs that all layers share.

        Raises:
            ConfigError: `tokens` is not a multiple of `CHAIN_BLOCK`.
        """
        if tokens < CHAIN_BLOCK or tokens % CHAIN_BLOCK:
            raise ConfigError(f"a prefill chunk must be a multiple of {CHAIN_BLOCK} tokens, not {tokens}")
        live = g.input("live", np.float32, [1, "S", 1])
        conv_rows = g.input("conv_rows", np.int64, [spec.conv_kernel - 1])
        return cls(tokens, live, conv_rows, chain_masks(g, CHAIN_BLOCK))

    def name_qkv(self, g: GraphBuilder, spec: LinearSpec, layer: int) -> str:
        """See `DeltaForm`."""
        return ""

    def mix(self, g: GraphBuilder, ops: Ops, layer: int, qkv: str, b: str, a: str, weights: DeltaWeights) -> str:
        """See `DeltaForm`."""
        spec = ops.source.spec.linear
        conv, state = declare_state(g, spec, layer, 1)
        rows = g.op("Concat", [conv, qkv], axis=1)
        conv_out = g.output(f"conv_out_{layer}", np.float32, [1, spec.conv_kernel - 1, spec.conv_channels])
        g.op("Gather", [rows, self.conv_rows], axis=1, output=conv_out)
        taps = [
            g.op("Slice", [rows, g.const([j]), g.const([j + self.tokens]), g.const([1])])
            for j in range(spec.conv_kernel)
        ]
        # A token with log decay 0 and rate 0 leaves the state as it is.
        gates = [g.op("Mul", [gate, self.live]) for gate in ops.gates(g, a, b, weights.decay, weights.bias)]
        mixed = self._blocks(g, convolve(g, ops, taps, weights), spec.conv_channels)
        log_decay, beta = (self._blocks(g, gate, spec.value_heads) for gate in gates)
        return self._recurrence(g, ops, layer, state, mixed, log_decay, beta)

    def _blocks(self, g: GraphBuilder, x: str, width: int) -> str:
        """[1, S, width] -> [blocks, CHAIN_BLOCK, width]."""
        return g.reshape(x, [self.tokens // CHAIN_BLOCK, CHAIN_BLOCK, width])

    def _recurrence(
        self, g: GraphBuilder, ops: Ops, layer: int, state: str, mixed: str, log_decay: str, beta: str
    ) -> str:
        spec, blocks = ops.source.spec.linear, self.tokens // CHAIN_BLOCK
        nodes = couple(g, ops, self.masks, mixed, log_decay, beta)
        last = g.op("Gather", [nodes.total, g.const([CHAIN_BLOCK - 1])], axis=3)
        kept = g.op("Exp", [last])
        to_state = g.op("Mul", [nodes.k, g.op("Exp", [g.op("Sub", [last, nodes.total])])])
        to_state = g.op("Transpose", [to_state], perm=[0, 1, 2, 4, 3])  # [blocks, Hk, r, dk, CHAIN_BLOCK]
        own = g.op("MatMul", [nodes.inverse, g.op("Mul", [nodes.beta, nodes.v])])
        seen = g.op("Mul", [g.op("Mul", [nodes.beta, nodes.grown]), nodes.k])
        seen = g.op("Concat", [g.op("MatMul", [nodes.inverse, seen]), g.op("Mul", [nodes.grown, nodes.q])], axis=3)
        each = [
            g.ops("Split", [value], blocks, axis=0, num_outputs=blocks)
            for value in (own, seen, nodes.attention, kept, to_state)
        ]
        shape = [1, spec.key_heads, spec.value_heads // spec.key_heads, spec.key_dim, spec.value_dim]
        state, outputs = g.reshape(state, shape), []
        for own, seen, attention, kept, to_state in zip(*each, strict=True):
            k_s, q_s = g.ops("Split", [g.op("MatMul", [seen, state])], 2, axis=3, num_outputs=2)
            u = g.op("Sub", [own, k_s])
            outputs.append(g.op("Add", [q_s, g.op("MatMul", [attention, u])]))
            state = g.op("Add", [g.op("Mul", [kept, state]), g.op("MatMul", [to_state, u])])
        whole = [1, spec.value_heads, spec.key_dim, spec.value_dim]
        state_out = g.output(f"state_out_{layer}", np.float32, whole)
        g.op("Reshape", [state, g.const(whole)], output=state_out)
        y = outputs[0] if blocks == 1 else g.op("Concat", outputs, axis=0)
        return g.reshape(scaled_rows(g, spec, y), [1, self.tokens, spec.value_heads * spec.value_dim])
