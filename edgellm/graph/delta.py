"""Gated DeltaNet: the chain form (recurrent kernel, state in place) and the tree form (WY, state read-only).

Per token, with decay e^g and rate beta:  S <- e^g S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q.
Tree form, G = sum of g over a node and its ancestors, for strict ancestors j of i:
(I + L) U = beta (V - e^G K S0),  L_ij = beta_i e^(G_i - G_j) k_i·k_j;
O = e^G Q S0 + A U,  A_ij = e^(G_i - G_j) q_i·k_j (ancestors and self).
(k, U, G) of a node is its capsule. The triangular solve goes by two blocks of eight nodes: inside a block three
doublings are exact (a path has at most eight nodes there); longer doubling explodes on equal keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from edgellm.checkpoint.spec import LinearSpec, ModelSpec
from edgellm.graph.builder import MS, Dim, GraphBuilder
from edgellm.graph.layers import Layers

TREE_BLOCK = 8
MAX_TREE = 2 * TREE_BLOCK
_DOUBLINGS = 3


@dataclass(frozen=True, slots=True)
class Projections:
    """Raw projections of one layer: qkv [B,S,C], z [B,S,Hv*dv], b and a [B,S,Hv]."""

    qkv: str
    z: str
    b: str
    a: str


@dataclass(frozen=True, slots=True)
class TreeInputs:
    """Values that every tree layer shares."""

    taps: tuple[str, ...]  # i64 [S] for each kernel tap: row of concat(conv state, new rows)
    include: str  # f32 [1,1,1,S,S]: 1 for ancestors and self
    bias: str  # f32 [1,1,1,S,S]: 0 for ancestors and self, else -1e30
    strict: str  # the same without self

    @classmethod
    def declare(cls, g: GraphBuilder, spec: LinearSpec) -> Self:
        index = g.input("conv_idx", np.int64, ["S", spec.conv_kernel])
        mask = g.input("tree_mask", np.float32, [1, 1, "S", "S"])
        columns = g.split(index, [1] * spec.conv_kernel, axis=1)
        taps = tuple(g.reshape(column, [-1]) for column in columns)
        bias = g.op("Unsqueeze", [mask, g.const([1])])
        include = g.op("Exp", [bias])
        # Self is the only included column of a row that is not a strict ancestor: EyeLike by comparing indices.
        size = g.op("Shape", [index], start=0, end=1)
        order = g.op("Range", [g.const(0), g.op("Squeeze", [size, g.const([0])]), g.const(1)])
        same = g.op("Equal", [g.op("Unsqueeze", [order, g.const([1])]), g.op("Unsqueeze", [order, g.const([0])])])
        strict = g.op("Where", [same, g.const(-1e30, np.float32), bias])
        return cls(taps, include, bias, strict)


def chain(g: GraphBuilder, layers: Layers, x: str, i: int) -> str:
    """DeltaNet over consecutive tokens; conv_{i} and state_{i} become the state after them."""
    model = layers.checkpoint.spec
    spec, kernel = model.linear, model.linear.conv_kernel
    conv, state = _state_inputs(g, model, i, "B")
    p = _project(layers, x, i)
    rows = g.op("Concat", [conv, p.qkv], axis=1)
    length = g.op("Shape", [p.qkv], start=1, end=2)
    taps = [
        g.op("Slice", [rows, g.const([j]), g.op("Add", [length, g.const([j])]), g.const([1])]) for j in range(kernel)
    ]
    g.op(
        "Slice",
        [rows, g.const([1 - kernel]), g.const([2**31 - 1]), g.const([1])],
        output=g.output(f"conv_out_{i}", np.float32, ["B", kernel - 1, spec.conv_channels]),
    )
    q, k, v = _qkv(layers, _convolve(layers, taps, i), spec)
    log_decay, beta = g.ops("LinearAttentionGate", [p.a, _dt_bias(layers, i), _decay(layers, i), p.b], 2, domain=MS)
    out = g.output(f"state_out_{i}", np.float32, ["B", spec.value_heads, spec.key_dim, spec.value_dim])
    y = g.ops(
        "LinearAttention",
        [_l2(g, q, spec), _l2(g, k, spec), v, state, log_decay, beta],
        [f"layers.{i}.delta", out],
        domain=MS,
        q_num_heads=spec.key_heads,
        kv_num_heads=spec.value_heads,
        update_rule="gated_delta",
    )[0]
    return _finish(layers, y, p.z, i)


def tree(g: GraphBuilder, layers: Layers, x: str, i: int, index: TreeInputs) -> str:
    """DeltaNet over a tree of at most 16 nodes; writes capsules instead of the state."""
    model = layers.checkpoint.spec
    spec = model.linear
    ratio = spec.value_heads // spec.key_heads
    conv, state = _state_inputs(g, model, i, 1)
    p = _project(layers, x, i, qkv_output=g.output(f"cap_c_{i}", np.float32, [1, "S", spec.conv_channels]))
    rows = g.op("Concat", [conv, p.qkv], axis=1)
    q, k, v = _qkv(layers, _convolve(layers, [g.op("Gather", [rows, tap], axis=1) for tap in index.taps], i), spec)

    def heads(value: str, groups: int, size: int, output: str | None = None) -> str:  # [1,S,·] -> [1,Hk,groups,S,size]
        return g.op(
            "Transpose", [g.reshape(value, [0, 0, spec.key_heads, groups, size])], perm=[0, 2, 3, 1, 4], output=output
        )

    q5 = heads(_l2(g, q, spec), 1, spec.key_dim)
    k5 = heads(
        _l2(g, k, spec), 1, spec.key_dim, g.output(f"cap_k_{i}", np.float32, [1, spec.key_heads, 1, "S", spec.key_dim])
    )
    v5 = heads(v, ratio, spec.value_dim)
    log_decay, beta = g.ops("LinearAttentionGate", [p.a, _dt_bias(layers, i), _decay(layers, i), p.b], 2, domain=MS)
    total = g.op(
        "MatMul",
        [index.include, heads(log_decay, ratio, 1)],
        output=g.output(f"cap_g_{i}", np.float32, [1, spec.key_heads, ratio, "S", 1]),
    )
    beta5 = heads(beta, ratio, 1)
    decay = g.op("Exp", [total])
    difference = g.op("Sub", [total, g.op("Transpose", [total], perm=[0, 1, 2, 4, 3])])
    both = g.op("Concat", [k5, q5], axis=3)
    keys = g.op("Transpose", [k5], perm=[0, 1, 2, 4, 3])
    kk, qk = g.ops("Split", [g.op("MatMul", [both, keys])], 2, axis=3, num_outputs=2)
    state5 = g.reshape(state, [0, spec.key_heads, ratio, spec.key_dim, spec.value_dim])
    ks, qs = g.ops("Split", [g.op("MatMul", [both, state5])], 2, axis=3, num_outputs=2)
    rhs = g.op("Mul", [beta5, g.op("Sub", [v5, g.op("Mul", [decay, ks])])])
    lower = g.op("Mul", [g.op("Mul", [beta5, g.op("Exp", [g.op("Add", [difference, index.strict])])]), kk])
    capsule = g.output(f"cap_d_{i}", np.float32, [1, spec.key_heads, ratio, "S", spec.value_dim])
    u = _solve(g, lower, rhs, capsule)
    weights = g.op("Mul", [g.op("Exp", [g.op("Add", [difference, index.bias])]), qk])
    y = g.op("Add", [g.op("Mul", [decay, qs]), g.op("MatMul", [weights, u])])
    y = g.op("Mul", [y, g.const(1 / math.sqrt(spec.key_dim), np.float32)])
    flat = g.reshape(g.op("Transpose", [y], perm=[0, 3, 1, 2, 4]), [0, 0, spec.value_heads * spec.value_dim])
    return _finish(layers, flat, p.z, i)


def _solve(g: GraphBuilder, lower: str, rhs: str, output: str) -> str:
    """U of (I + lower) U = rhs, [.., S, S] and [.., S, dv], in two blocks of eight rows."""
    end = g.const([2**31 - 1])

    def part(value: str, axis: int, second: bool) -> str:
        bounds = [g.const([TREE_BLOCK]), end] if second else [g.const([0]), g.const([TREE_BLOCK])]
        return g.op("Slice", [value, *bounds, g.const([axis])])

    top, bottom = part(lower, 3, False), part(lower, 3, True)
    first = _double(g, part(top, 4, False), part(rhs, 3, False))
    carried = g.op("Sub", [part(rhs, 3, True), g.op("MatMul", [part(bottom, 4, False), first])])
    second = _double(g, part(bottom, 4, True), carried)
    return g.op("Concat", [first, second], axis=3, output=output)


def _double(g: GraphBuilder, lower: str, rhs: str) -> str:
    """(I + lower)^-1 rhs by doubling: exact when lower^8 = 0."""
    power = g.op("Neg", [lower])
    for step in range(_DOUBLINGS):
        rhs = g.op("Add", [rhs, g.op("MatMul", [power, rhs])])
        if step < _DOUBLINGS - 1:
            power = g.op("MatMul", [power, power])
    return rhs


def _state_inputs(g: GraphBuilder, model: ModelSpec, i: int, batch: Dim) -> tuple[str, str]:
    spec = model.linear
    conv = g.input(f"conv_{i}", np.float32, [batch, spec.conv_kernel - 1, spec.conv_channels])
    return conv, g.input(f"state_{i}", np.float32, [batch, spec.value_heads, spec.key_dim, spec.value_dim])


def _project(layers: Layers, x: str, i: int, qkv_output: str | None = None) -> Projections:
    spec, hidden = layers.checkpoint.spec.linear, layers.checkpoint.spec.hidden
    name = f"layers.{i}.linear_attn"
    sizes = [spec.conv_channels, spec.value_heads * spec.value_dim, spec.value_heads, spec.value_heads]
    parts = [f"{name}.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")]
    big = layers.linear(x, f"{name}.in", parts, sum(sizes), hidden)
    g = layers.g
    names = [qkv_output or f"{name}.qkv", f"{name}.z", f"{name}.b", f"{name}.a"]
    return Projections(*g.ops("Split", [big, g.const(sizes)], names, axis=-1))


def _convolve(layers: Layers, taps: list[str], i: int) -> str:
    """silu(sum over taps of row * weight), depthwise."""
    g, name = layers.g, f"layers.{i}.linear_attn.conv1d.weight"
    total = ""
    for j, tap in enumerate(taps):
        weight = g.weight(f"{name}.{j}", lambda j=j: np.ascontiguousarray(layers.tensor(name)[:, 0, j]))  # type: ignore[misc]
        term = g.op("Mul", [tap, weight])
        total = g.op("Add", [total, term]) if total else term
    return layers.silu(total)


def _qkv(layers: Layers, mixed: str, spec: LinearSpec) -> list[str]:
    keys = spec.key_heads * spec.key_dim
    return layers.g.split(mixed, [keys, keys, spec.value_heads * spec.value_dim])


def _l2(g: GraphBuilder, x: str, spec: LinearSpec) -> str:
    """x / sqrt(sum x² + 1e-6) per head, as an RMSNorm with scale 1/sqrt(d) and eps/d: the same function."""
    scale = g.const(np.full(spec.key_dim, 1 / math.sqrt(spec.key_dim)), np.float32)
    split = g.reshape(x, [0, 0, spec.key_heads, spec.key_dim])
    normed = g.op("RMSNormalization", [split, scale], axis=-1, epsilon=1e-6 / spec.key_dim)
    return g.reshape(normed, [0, 0, spec.key_heads * spec.key_dim])


def _dt_bias(layers: Layers, i: int) -> str:
    name = f"layers.{i}.linear_attn.dt_bias"
    return layers.g.weight(name, lambda: layers.tensor(name))


def _decay(layers: Layers, i: int) -> str:
    name = f"layers.{i}.linear_attn.A_log"
    return layers.g.weight(f"{name}.decay", lambda: -np.exp(layers.tensor(name)))


def _finish(layers: Layers, y: str, z: str, i: int) -> str:
    """out_proj(w · rms(y) per value head · silu(z))."""
    g, model = layers.g, layers.checkpoint.spec
    spec, name = model.linear, f"layers.{i}.linear_attn"
    width = spec.value_heads * spec.value_dim
    weight = g.weight(f"{name}.norm.weight", lambda: layers.tensor(f"{name}.norm.weight"))
    normed = g.op(
        "RMSNormalization",
        [g.reshape(y, [0, 0, spec.value_heads, spec.value_dim]), weight],
        axis=-1,
        epsilon=model.rms_eps,
    )
    gated = g.op("Mul", [g.reshape(normed, [0, 0, width]), layers.silu(z)])
    return layers.linear(gated, f"{name}.out_proj", [f"{name}.out_proj.weight"], model.hidden, width)
