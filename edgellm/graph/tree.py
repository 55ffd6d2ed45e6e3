"""Gated DeltaNet over a tree of tokens, in standard operators: the WY form with an ancestor mask.

Per token with log decay g and rate beta: S <- e^g S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q.
With G = sum of g over a node and its ancestors and j running over ancestors of i:
  (I + L) U = beta (V - e^G K S0),  L_ij = beta_i e^(G_i - G_j) k_i.k_j  (strict ancestors)
  O = e^G Q S0 + A U,               A_ij = e^(G_i - G_j) q_i.k_j         (ancestors and self)
No state of a node is ever formed: S0 is read once, and (U, K, G) of the nodes is the capsule that `commit` needs.

Parents come before children, so I + L is triangular. Its inverse is made by halves, T <- T - T L' T where L' couples
the two halves of a block of 2, 4, 8 and 16 nodes: exact for every tree and, like substitution and unlike repeated
squaring of L, stable for equal keys, where powers of L grow without bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import LinearSpec
from edgellm.graph.builder import Dim, GraphBuilder
from edgellm.graph.indices import MASKED
from edgellm.graph.lowering.base import DeltaWeights, Ops

MAX_TREE: Final = 16  # nodes, root included


class Masks(NamedTuple):
    """Values made from the tree mask, shared by all layers."""

    include: str  # f32 [S, S]: 1 for ancestors and self, else 0
    bias: str  # f32 [1, 1, 1, S, S]: 0 for ancestors and self, else -1e30
    identity: str  # f32 [S, S]
    halves: tuple[str, ...]  # f32 [S, S] each: -1 where the two halves of a block of 2, 4, … nodes meet, else 0


def tree_masks(g: GraphBuilder, tree_mask: str) -> Masks:
    """From tree_mask f32 [1, 1, S, S], 0 for ancestors and self and -1e30 elsewhere, S <= MAX_TREE."""
    size = g.op("Shape", [tree_mask], start=2, end=3)
    table = _half_masks(MAX_TREE)
    ends = g.op("Concat", [size, size], axis=0)
    cut = g.op("Slice", [g.const(table, np.float32), g.const([0, 0]), ends, g.const([1, 2])])
    parts = g.split(cut, [1] * len(table), axis=0)
    identity, *halves = (g.op("Squeeze", [part, g.const([0])]) for part in parts)
    include = g.op("Exp", [g.op("Squeeze", [tree_mask, g.const([0, 1])])])
    return Masks(include, g.op("Unsqueeze", [tree_mask, g.const([0])]), identity, tuple(halves))


def chain_masks(g: GraphBuilder, size: int) -> Masks:
    """The masks of a chain of `size` nodes, a power of two, as constants."""
    include = np.tri(size, dtype=np.float32)
    identity, *halves = (g.const(table, np.float32) for table in _half_masks(size))
    bias = g.const(np.where(include > 0, 0, MASKED)[None, None, None], np.float32)
    return Masks(g.const(include, np.float32), bias, identity, tuple(halves))


def _half_masks(size: int) -> NDArray[np.float32]:
    """[1 + log2 size, size, size]: the identity, then `Masks.halves`."""
    i, j = np.indices((size, size))
    levels = range(size.bit_length() - 1)
    halves = [-((i > j) & (i >> n + 1 == j >> n + 1) & (i >> n != j >> n)).astype(np.float32) for n in levels]
    return np.stack([np.eye(size, dtype=np.float32), *halves])


class Capsule(NamedTuple):
    """What `commit` needs of the nodes of one layer; Hk key heads, r value heads per key head."""

    u: str  # f32 [1, Hk, r, S, dv]
    k: str  # f32 [1, Hk, 1, S, dk]
    total: str  # f32 [1, Hk, r, S, 1]: G


def declare_capsule(g: GraphBuilder, spec: LinearSpec, layer: int) -> Capsule:
    """Graph outputs of one layer."""
    heads, ratio = spec.key_heads, spec.value_heads // spec.key_heads
    return Capsule(
        g.output(f"cap_d_{layer}", np.float32, [1, heads, ratio, "S", spec.value_dim]),
        g.output(f"cap_k_{layer}", np.float32, [1, heads, 1, "S", spec.key_dim]),
        g.output(f"cap_g_{layer}", np.float32, [1, heads, ratio, "S", 1]),
    )


class Coupled(NamedTuple):
    """Nodes of n trees of S nodes each and what they have to do with each other; no state yet."""

    qk: str  # f32 [n, Hk, 1, 2S, dk]: queries, then keys, of length 1
    q: str  # f32 [n, Hk, 1, S, dk]
    k: str  # f32 [n, Hk, 1, S, dk]
    v: str  # f32 [n, Hk, r, S, dv]
    beta: str  # f32 [n, Hk, r, S, 1]
    total: str  # f32 [n, Hk, r, S, 1]: G
    grown: str  # f32 [n, Hk, r, S, 1]: e^G
    attention: str  # f32 [n, Hk, r, S, S]: A
    inverse: str  # f32 [n, Hk, r, S, S]: (I + L)^-1


def couple(
    g: GraphBuilder,
    ops: Ops,
    masks: Masks,
    mixed: str,
    log_decay: str,
    beta: str,
    names: tuple[str, str] | None = None,
) -> Coupled:
    """Values of the nodes.

    Args:
        mixed: what the convolution gave, f32 [n, S, channels].
        log_decay, beta: f32 [n, S, Hv].
        names: for the values k and total.
    """
    spec = ops.source.spec.linear
    heads, ratio = spec.key_heads, spec.value_heads // spec.key_heads

    def by_head(x: str, size: int, output: str | None = None) -> str:  # [n, S, Hv * size] -> [n, Hk, r, S, size]
        return g.op("Transpose", [g.reshape(x, [0, 0, heads, ratio, size])], perm=[0, 2, 3, 1, 4], output=output)

    qk, v = g.split(mixed, [2 * heads * spec.key_dim, spec.value_heads * spec.value_dim])
    qk = g.op("Transpose", [unit_heads(g, ops, qk)], perm=[0, 3, 2, 1, 4])  # [n, Hk, 2, S, dk]
    qk = g.reshape(qk, [0, 0, 1, -1, spec.key_dim])  # [n, Hk, 1, 2S, dk]
    k, total = names or (f"{qk}_k", None)
    q, k = g.ops("Split", [qk], [f"{k}_q", k], axis=3, num_outputs=2)
    beta, total = by_head(beta, 1), by_head(g.op("MatMul", [masks.include, log_decay]), 1, total)
    grown = g.op("Exp", [total])
    between = g.op("Sub", [total, g.op("Transpose", [total], perm=[0, 1, 2, 4, 3])])
    between = g.op("Exp", [g.op("Add", [between, masks.bias])])  # e^(G_i - G_j) for ancestors and self, else 0
    q_k, k_k = _halves(g, g.op("MatMul", [qk, g.op("Transpose", [k], perm=[0, 1, 2, 4, 3])]))
    inverse = _inverse(g, masks, g.op("Mul", [g.op("Mul", [beta, between]), k_k]))
    attention = g.op("Mul", [between, q_k])
    return Coupled(qk, q, k, by_head(v, spec.value_dim), beta, total, grown, attention, inverse)


def tree_block(
    g: GraphBuilder,
    ops: Ops,
    masks: Masks,
    rows: list[str],
    a: str,
    b: str,
    state: str,
    weights: DeltaWeights,
    capsule: Capsule,
) -> str:
    """Add convolution and delta rule over a tree to `g`; the output [1, S, Hv * dv].

    Args:
        rows: for each tap of the convolution its input rows f32 [1, S, channels], oldest token first.
        a, b: raw projections f32 [1, S, Hv].
        state: S0, f32 [1, Hv, dk, dv].
        capsule: names for the capsule's values.
    """
    spec = ops.source.spec.linear
    heads, ratio = spec.key_heads, spec.value_heads // spec.key_heads
    log_decay, beta = ops.gates(g, a, b, weights.decay, weights.bias)
    mixed = convolve(g, ops, rows, weights)
    nodes = couple(g, ops, masks, mixed, log_decay, beta, (capsule.k, capsule.total))
    state = g.reshape(state, [0, heads, ratio, spec.key_dim, spec.value_dim])
    q_s, k_s = _halves(g, g.op("MatMul", [nodes.qk, state]))
    right = g.op("Mul", [nodes.beta, g.op("Sub", [nodes.v, g.op("Mul", [nodes.grown, k_s])])])
    u = g.op("MatMul", [nodes.inverse, right], output=capsule.u)
    return scaled_rows(g, spec, g.op("Add", [g.op("Mul", [nodes.grown, q_s]), g.op("MatMul", [nodes.attention, u])]))


def scaled_rows(g: GraphBuilder, spec: LinearSpec, y: str) -> str:
    """y / sqrt(dk) from [n, Hk, r, S, dv] to [n, S, Hv * dv]."""
    y = g.op("Mul", [y, g.const(1 / math.sqrt(spec.key_dim), np.float32)])
    return g.reshape(g.op("Transpose", [y], perm=[0, 3, 1, 2, 4]), [0, 0, spec.value_heads * spec.value_dim])


def _halves(g: GraphBuilder, x: str) -> list[str]:
    return g.ops("Split", [x], 2, axis=3, num_outputs=2)


def _inverse(g: GraphBuilder, masks: Masks, coupling: str) -> str:
    """(I + L)^-1 where L is the strict lower triangle of `coupling` [..., S, S]."""
    inverse = ""
    for half in masks.halves:  # -L' of this level
        step = g.op("Mul", [coupling, half])
        if inverse:
            step = g.op("MatMul", [g.op("MatMul", [inverse, step]), inverse])
        inverse = g.op("Add", [inverse or masks.identity, step])
    return inverse


def convolve(g: GraphBuilder, ops: Ops, rows: list[str], weights: DeltaWeights) -> str:
    """silu of the causal depthwise convolution: sum over the taps of rows * weight."""
    terms = [g.op("Mul", [row, tap]) for row, tap in zip(rows, weights.taps, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = g.op("Add", [total, term])
    return ops.silu(g, total)


def unit_heads(g: GraphBuilder, ops: Ops, qk: str) -> str:
    """Queries and keys [B, S, 2 * Hk * dk] with every head scaled to length 1: [B, S, 2, Hk, dk].

    x / sqrt(sum x² + 1e-6) is the RMS norm with scale 1/sqrt(dk) and epsilon 1e-6/dk.
    """
    spec = ops.source.spec.linear
    scale = g.const(np.full(spec.key_dim, spec.key_dim**-0.5), np.float32)
    return ops.norm(g, g.reshape(qk, [0, 0, 2, spec.key_heads, spec.key_dim]), scale, epsilon=1e-6 / spec.key_dim)


def tap_rows(g: GraphBuilder, rows: str, index: str, kernel: int) -> list[str]:
    """For each tap j the rows index[:, j] of `rows` f32 [1, n, channels]; index i64 [S, kernel]."""
    columns = g.split(index, [1] * kernel, axis=1)
    return [g.op("Gather", [rows, g.reshape(column, [-1])], axis=1) for column in columns]


class TreeInputs(NamedTuple):
    """Graph inputs of a tree."""

    conv_idx: str  # i64 [S, K]: rows of concat(conv state, new rows) that the taps of each node read
    tree_mask: str  # f32 [1, 1, S, S]: 0 for ancestors and self, else -1e30


def declare_tree(g: GraphBuilder, spec: LinearSpec) -> TreeInputs:
    """Declare the inputs that all layers share."""
    return TreeInputs(
        g.input("conv_idx", np.int64, ["S", spec.conv_kernel]),
        g.input("tree_mask", np.float32, [1, 1, "S", "S"]),
    )


def declare_state(g: GraphBuilder, spec: LinearSpec, layer: int, batch: Dim) -> tuple[str, str]:
    """Declare one layer's convolution state and recurrent state as inputs."""
    return (
        g.input(f"conv_{layer}", np.float32, [batch, spec.conv_kernel - 1, spec.conv_channels]),
        g.input(f"state_{layer}", np.float32, [batch, spec.value_heads, spec.key_dim, spec.value_dim]),
    )


@dataclass(frozen=True, slots=True)
class InlineTree:
    """`DeltaForm` over a tree that only reads the state, its nodes part of the graph.

    Inputs: `TreeInputs`; per layer conv_{i} f32 [1, K-1, channels] and state_{i} f32 [1, Hv, dk, dv].
    Outputs: per layer cap_c_{i} f32 [1, S, channels], the raw rows, and `Capsule`.
    """

    index: str
    masks: Masks

    @classmethod
    def declare(cls, g: GraphBuilder, spec: LinearSpec) -> Self:
        """Declare the inputs that all layers share."""
        inputs = declare_tree(g, spec)
        return cls(inputs.conv_idx, tree_masks(g, inputs.tree_mask))

    def name_qkv(self, g: GraphBuilder, spec: LinearSpec, layer: int) -> str:
        """See `DeltaForm`."""
        return g.output(f"cap_c_{layer}", np.float32, [1, "S", spec.conv_channels])

    def mix(self, g: GraphBuilder, ops: Ops, layer: int, qkv: str, b: str, a: str, weights: DeltaWeights) -> str:
        """See `DeltaForm`."""
        spec = ops.source.spec.linear
        conv, state = declare_state(g, spec, layer, 1)
        rows = tap_rows(g, g.op("Concat", [conv, qkv], axis=1), self.index, spec.conv_kernel)
        return tree_block(g, ops, self.masks, rows, a, b, state, weights, declare_capsule(g, spec, layer))
