"""The model, described once: embedding, decoder layers, final norm, logits.

Lowerings decide how each step is expressed and what state a graph reads and writes; see `lowering.base`. Every weight
gets its name here, from the checkpoint tensor it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgellm.graph.builder import Dim, GraphBuilder
from edgellm.graph.lowering.base import DeltaWeights, Lowering
from edgellm.graph.source import Part, Source, attention_parts, vector


def add_decoder(g: GraphBuilder, lowering: Lowering, batch: Dim) -> None:
    """Add the decoder to `g`.

    Inputs besides those of the lowering: input_ids i64 [batch, S], logit_rows i64 [R] (rows of the flattened tokens).
    Outputs: logits f32 [R, vocab], hidden f32 [batch, S, hidden] (after the final norm).
    """
    ops = lowering.ops
    spec = ops.source.spec
    ids = g.input("input_ids", np.int64, [batch, "S"])
    rows = g.input("logit_rows", np.int64, ["R"])
    residual, update = ops.embed(g, ids), ""
    for layer in range(len(spec.layers)):
        residual, update = decoder_layer(g, lowering, layer, residual, update)
    hidden = g.output("hidden", np.float32, [batch, "S", spec.hidden])
    add_norm(g, lowering, residual, update, "norm.weight", hidden)
    picked = g.op("Gather", [g.reshape(hidden, [-1, spec.hidden]), rows], axis=0)
    ops.logits(g, picked, head_part(ops.source), g.output("logits", np.float32, ["R", spec.vocab]))


def decoder_layer(g: GraphBuilder, lowering: Lowering, layer: int, residual: str, update: str) -> tuple[str, str]:
    """One layer: its sum is residual + update, before and after; `update` is empty before the first layer."""
    name = f"layers.{layer}"
    residual, x = add_norm(g, lowering, residual, update, f"{name}.input_layernorm.weight")
    if lowering.ops.source.spec.layers[layer] == "full_attention":
        update = attention(g, lowering, f"{name}.self_attn", (f"k_{layer}", f"v_{layer}"), x)
    else:
        update = delta_net(g, lowering, layer, x)
    residual, x = add_norm(g, lowering, residual, update, f"{name}.post_attention_layernorm.weight")
    return residual, mlp(g, lowering, f"{name}.mlp", x)


def add_norm(
    g: GraphBuilder, lowering: Lowering, residual: str, update: str, name: str, output: str | None = None
) -> tuple[str, str]:
    """(residual + update, its norm by the weight `name`); `update` is empty before the first layer."""
    scale = norm_scale(g, lowering.ops.source, name)
    if not update:
        return residual, lowering.ops.norm(g, residual, scale)
    return lowering.ops.add_norm(g, residual, update, scale, output)


def norm_scale(g: GraphBuilder, source: Source, name: str) -> str:
    """The family's norms multiply by 1 + w."""
    return g.weight(name, lambda: np.float32(1) + vector(source, name))


class AttentionInputs(NamedTuple):
    """Raw projections of a gated-attention layer, [batch, tokens, width] each."""

    q: str
    gate: str
    k: str
    v: str


class DeltaInputs(NamedTuple):
    """Raw projections of a Gated DeltaNet layer, [batch, tokens, width] each."""

    qkv: str
    z: str
    b: str
    a: str


def attention(g: GraphBuilder, lowering: Lowering, name: str, cache: tuple[str, str], x: str) -> str:
    """Gated attention: o_proj(softmax(q k^T / sqrt(head_dim)) v * sigmoid(gate))."""
    if lowering.attention is None:
        raise TypeError(f"the lowering of graph {g.name!r} has no form for the attention layer {name}")
    inputs = attention_inputs(g, lowering, name, x)
    context = lowering.attention.attend(
        g, lowering.ops, cache, (inputs.q, inputs.k, inputs.v), attention_scales(g, lowering.ops.source, name)
    )
    return attention_output(g, lowering, name, context, inputs.gate)


def attention_inputs(
    g: GraphBuilder, lowering: Lowering, name: str, x: str, outputs: Sequence[str] = ()
) -> AttentionInputs:
    """The projections of `x`; `outputs` names them."""
    parts = attention_parts(lowering.ops.source.spec.attention, name)
    return AttentionInputs(*lowering.ops.project(g, x, f"{name}.in_proj", parts, outputs))


def attention_scales(g: GraphBuilder, source: Source, name: str) -> tuple[str, str]:
    """Scales of the query and the key norm."""
    return norm_scale(g, source, f"{name}.q_norm.weight"), norm_scale(g, source, f"{name}.k_norm.weight")


def attention_output(g: GraphBuilder, lowering: Lowering, name: str, context: str, gate: str) -> str:
    """o_proj(context * sigmoid(gate))."""
    gated = g.op("Mul", [context, g.op("Sigmoid", [gate])])
    part = Part(f"{name}.o_proj.weight", lowering.ops.source.spec.hidden)
    return lowering.ops.project(g, gated, f"{name}.o_proj", [part])[0]


def delta_net(g: GraphBuilder, lowering: Lowering, layer: int, x: str) -> str:
    """Gated DeltaNet: out_proj(w * rms(delta rule(silu(conv(qkv)))) * silu(z)), the norm per value head."""
    ops = lowering.ops
    if lowering.delta is None:
        raise TypeError(f"the lowering of graph {g.name!r} has no form for the DeltaNet layer {layer}")
    outputs = [lowering.delta.name_qkv(g, ops.source.spec.linear, layer), "", "", ""]
    qkv, z, b, a = delta_inputs(g, lowering, layer, x, outputs)
    y = lowering.delta.mix(g, ops, layer, qkv, b, a, delta_weights(g, ops.source, layer))
    return delta_output(g, lowering, layer, y, z)


def delta_inputs(g: GraphBuilder, lowering: Lowering, layer: int, x: str, outputs: Sequence[str] = ()) -> DeltaInputs:
    """The projections of `x`; `outputs` names them."""
    spec, name = lowering.ops.source.spec.linear, f"layers.{layer}.linear_attn"
    width = spec.value_heads * spec.value_dim
    sizes = {"qkv": spec.conv_channels, "z": width, "b": spec.value_heads, "a": spec.value_heads}
    parts = [Part(f"{name}.in_proj_{part}.weight", size) for part, size in sizes.items()]
    return DeltaInputs(*lowering.ops.project(g, x, f"{name}.in_proj", parts, outputs))


def delta_output(g: GraphBuilder, lowering: Lowering, layer: int, y: str, z: str) -> str:
    """out_proj(w * rms(y) * silu(z)) for the output y [batch, tokens, value heads * value dim] of the recurrence."""
    ops, name = lowering.ops, f"layers.{layer}.linear_attn"
    model = ops.source.spec
    spec = model.linear
    scale = g.weight(f"{name}.norm.weight", lambda: vector(ops.source, f"{name}.norm.weight"))
    normed = ops.norm(g, g.reshape(y, [0, 0, spec.value_heads, spec.value_dim]), scale)
    gated = g.op("Mul", [g.reshape(normed, [0, 0, spec.value_heads * spec.value_dim]), ops.silu(g, z)])
    return ops.project(g, gated, f"{name}.out_proj", [Part(f"{name}.out_proj.weight", model.hidden)])[0]


def delta_weights(g: GraphBuilder, source: Source, layer: int) -> DeltaWeights:
    """Initializers of the layer's convolution and gates."""
    name = f"layers.{layer}.linear_attn"
    conv = f"{name}.conv1d.weight"  # [channels, 1, kernel]

    def tap(j: int) -> str:
        return g.weight(f"{conv}.{j}", lambda: np.ascontiguousarray(vector(source, conv)[:, 0, j]))

    return DeltaWeights(
        taps=tuple(tap(j) for j in range(source.spec.linear.conv_kernel)),
        decay=g.weight(f"{name}.decay", lambda: -np.exp(vector(source, f"{name}.A_log"))),
        bias=g.weight(f"{name}.dt_bias", lambda: vector(source, f"{name}.dt_bias")),
    )


def mlp(g: GraphBuilder, lowering: Lowering, name: str, x: str) -> str:
    """SwiGLU: down(silu(gate(x)) * up(x))."""
    ops = lowering.ops
    spec = ops.source.spec
    parts = [Part(f"{name}.{part}_proj.weight", spec.intermediate) for part in ("gate", "up")]
    gate, up = ops.project(g, x, f"{name}.in_proj", parts)
    product = g.op("Mul", [ops.silu(g, gate), up])
    return ops.project(g, product, f"{name}.down_proj", [Part(f"{name}.down_proj.weight", spec.hidden)])[0]


def head_part(source: Source) -> Part:
    """The output head: its own matrix, or the embedding when they are tied."""
    name = "embed_tokens.weight" if source.spec.tied_embeddings else "lm_head.weight"
    return Part(name, source.spec.vocab)
