"""The model cut where tokens are mixed: what runs between the kernels of convolution, delta rule and attention.

``embed`` makes embedding rows and ``head`` logits, for the model and for its MTP layer, which share these matrices.
Between them segment i starts behind the mixing of layer i - 1 and ends with the projections of layer i. A runtime
launches the mixing kernels between segments, so a segment has no state, no mask and no cache. What must stay true:
segments depend on a lowering's `Ops` only, and a value that crosses a boundary has the activations' dtype.

Names: ``embed`` takes ``input_ids`` i64 [1, S] and makes ``embedded``, the residual of segment 0. Segment i takes
``residual`` and, behind a mixing, ``mixed`` (what the kernels made: y or the attention context) and ``side`` (z or
gate); it makes ``residual_out`` (segment 0 does not change it) and the projections, named as in `AttentionInputs` and
`DeltaInputs`. The last segment makes ``hidden`` instead. ``head`` takes that and ``logit_rows`` i64 [R] and makes
``logits`` f32 [R, vocab]. Activations are [1, S, width]. The MTP layer is two segments: ``mtp_in`` takes ``embedded``
and a pool of hidden rows [T, H] of which ``hidden_rows`` i64 [S] are its input; ``mtp_out`` ends like the last segment,
its rows after the MTP norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors.numpy import save

from edgellm.checkpoint.spec import ModelSpec
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.decoder import (
    add_norm,
    attention_inputs,
    attention_output,
    delta_inputs,
    delta_output,
    head_part,
    mlp,
)
from edgellm.graph.lowering.base import Lowering, Ops
from edgellm.graph.mtp import mtp_pair
from edgellm.graph.rope import rope_angles
from edgellm.graph.source import Source, vector
from edgellm.graph.weight_file import WeightFile

EMBED: Final = "embed"
HEAD: Final = "head"
MTP_IN: Final = "mtp_in"
MTP_OUT: Final = "mtp_out"
KERNEL_WEIGHTS: Final = "kernels.safetensors"


def segment_name(index: int) -> str:
    """Name of segment `index`; there is one more than layers."""
    return f"segment_{index:02d}"


def is_result(segment: str, name: str) -> bool:
    """Whether the segment makes the tensor `name`, rather than takes it."""
    if segment == EMBED:
        return name == "embedded"
    if segment == HEAD:
        return name == "logits"
    return name not in ("residual", "mixed", "side", "embedded", "hidden_pool", "hidden_rows")


def mixer_widths(spec: ModelSpec, layer: int | None) -> dict[str, int]:
    """Name → width of what the segment before a layer's mixing makes; None is the MTP layer."""
    if layer is None or spec.layers[layer] == "full_attention":
        a = spec.attention
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        return {"q": queries, "gate": queries, "k": keys, "v": keys}
    d = spec.linear
    return {"qkv": d.conv_channels, "z": d.value_heads * d.value_dim, "b": d.value_heads, "a": d.value_heads}


def side_of(spec: ModelSpec, layer: int | None) -> str:
    """Which of them the segment behind the mixing takes as ``side``; its width is that of ``mixed`` too."""
    return "gate" if layer is None or spec.layers[layer] == "full_attention" else "z"


def add_embed(g: GraphBuilder, ops: Ops, dtype: DTypeLike) -> None:
    """Add the embedding to `g`; `dtype` of the activations."""
    rows = ops.embed(g, g.input("input_ids", np.int64, [1, "S"]))
    _result(g, rows, "embedded", ops.source.spec.hidden, dtype)


def add_head(g: GraphBuilder, ops: Ops, dtype: DTypeLike) -> None:
    """Add the output head."""
    spec = ops.source.spec
    hidden = g.input("hidden", dtype, [1, "S", spec.hidden])
    rows = g.input("logit_rows", np.int64, ["R"])
    picked = g.op("Gather", [g.reshape(hidden, [-1, spec.hidden]), rows], axis=0)
    ops.logits(g, picked, head_part(ops.source), g.output("logits", np.float32, ["R", spec.vocab]))


def add_segment(g: GraphBuilder, lowering: Lowering, index: int, dtype: DTypeLike) -> None:
    """Add segment `index` of the layers."""
    spec = lowering.ops.source.spec
    if index == 0:
        residual, update = g.input("residual", dtype, [1, "S", spec.hidden]), ""
    else:
        residual, update = _behind(g, lowering, index - 1, dtype)
    if index == len(spec.layers):
        _finish(g, lowering, residual, update, "norm.weight", dtype)
        return
    residual, x = add_norm(g, lowering, residual, update, f"layers.{index}.input_layernorm.weight")
    if index:
        _result(g, residual, "residual_out", spec.hidden, dtype)
    _project(g, lowering, index, x, dtype)


def add_mtp_in(g: GraphBuilder, lowering: Lowering, dtype: DTypeLike) -> None:
    """Add what stands before the MTP layer's attention."""
    spec = lowering.ops.source.spec
    embedded = g.input("embedded", dtype, [1, "S", spec.hidden])
    pool = g.input("hidden_pool", dtype, ["T", spec.hidden])
    rows = g.op("Gather", [pool, g.input("hidden_rows", np.int64, ["S"])], axis=0)
    residual = mtp_pair(g, lowering, embedded, g.reshape(rows, [1, -1, spec.hidden]))
    _result(g, residual, "residual_out", spec.hidden, dtype)
    x = add_norm(g, lowering, residual, "", "mtp.layers.0.input_layernorm.weight")[1]
    _project(g, lowering, None, x, dtype)


def add_mtp_out(g: GraphBuilder, lowering: Lowering, dtype: DTypeLike) -> None:
    """Add what stands behind it."""
    _finish(g, lowering, *_behind(g, lowering, None, dtype), "mtp.norm.weight", dtype)


def build_segments(ops: Ops, out_dir: Path, dtype: DTypeLike) -> tuple[Path, ...]:
    """Write all segments, over one weight file, into the existing folder `out_dir`; returns the graphs' paths."""
    spec, lowering = ops.source.spec, Lowering(ops)
    paths: list[Path] = []
    with WeightFile(out_dir / "weights.bin") as file:

        def save(name: str, add: Callable[[GraphBuilder], None]) -> None:
            g = GraphBuilder(name, file)
            add(g)
            paths.append(out_dir / f"{name}.onnx")
            g.save(paths[-1])

        save(EMBED, lambda g: add_embed(g, ops, dtype))
        for index in range(len(spec.layers) + 1):
            save(segment_name(index), partial(add_segment, lowering=lowering, index=index, dtype=dtype))
        save(HEAD, lambda g: add_head(g, ops, dtype))
        if spec.mtp_layers:
            save(MTP_IN, lambda g: add_mtp_in(g, lowering, dtype))
            save(MTP_OUT, lambda g: add_mtp_out(g, lowering, dtype))
    return tuple(paths)


def save_kernel_weights(
    source: Source, path: Path, positions: int, kv_scales: Mapping[str, tuple[np.float32, np.float32]]
) -> None:
    """Write what the mixing kernels read besides activations, all float32.

    Per DeltaNet layer ``taps.{i}`` [K, C] (oldest token first), ``decay.{i}`` and ``dt_bias.{i}`` [Hv]; per attention
    layer and for the MTP layer ``q_norm.{i}``, ``k_norm.{i}`` [head_dim] (1 + w) and ``kv_scale.{i}`` [2], i being
    ``mtp`` there; ``cos`` and ``sin`` [positions, rotary_dim / 2].

    Args:
        kv_scales: attention module (``layers.3.self_attn``) → scales of its keys and values; 1 where there are none.
    """
    spec = source.spec
    tensors: dict[str, NDArray[Any]] = {}
    for layer in spec.linear_layers:
        name = f"layers.{layer}.linear_attn"
        tensors[f"taps.{layer}"] = vector(source, f"{name}.conv1d.weight")[:, 0].T
        tensors[f"decay.{layer}"] = -np.exp(vector(source, f"{name}.A_log"))
        tensors[f"dt_bias.{layer}"] = vector(source, f"{name}.dt_bias")
    attention = {str(layer): f"layers.{layer}.self_attn" for layer in spec.full_layers}
    if spec.mtp_layers:
        attention["mtp"] = "mtp.layers.0.self_attn"
    one = np.float32(1)
    for key, name in attention.items():
        for norm in ("q_norm", "k_norm"):
            tensors[f"{norm}.{key}"] = one + vector(source, f"{name}.{norm}.weight")
        tensors[f"kv_scale.{key}"] = np.array(kv_scales.get(name, (one, one)), np.float32)
    angles = rope_angles(spec.attention, positions)
    tensors |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    path.write_bytes(save({name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}))


def _project(g: GraphBuilder, lowering: Lowering, layer: int | None, x: str, dtype: DTypeLike) -> None:
    spec = lowering.ops.source.spec
    if layer is None:
        values: tuple[str, ...] = attention_inputs(g, lowering, "mtp.layers.0.self_attn", x)
    elif spec.layers[layer] == "full_attention":
        values = attention_inputs(g, lowering, f"layers.{layer}.self_attn", x)
    else:
        values = delta_inputs(g, lowering, layer, x)
    for value, (name, width) in zip(values, mixer_widths(spec, layer).items(), strict=True):
        _result(g, value, name, width, dtype)


def _behind(g: GraphBuilder, lowering: Lowering, layer: int | None, dtype: DTypeLike) -> tuple[str, str]:
    """From ``residual``, ``mixed`` and ``side`` to the layer's end: its sum is the two results'."""
    spec = lowering.ops.source.spec
    width = mixer_widths(spec, layer)[side_of(spec, layer)]
    residual = g.input("residual", dtype, [1, "S", spec.hidden])
    mixed, side = (g.input(name, dtype, [1, "S", width]) for name in ("mixed", "side"))
    name = "mtp.layers.0" if layer is None else f"layers.{layer}"
    if layer is None or spec.layers[layer] == "full_attention":
        update = attention_output(g, lowering, f"{name}.self_attn", mixed, side)
    else:
        update = delta_output(g, lowering, layer, mixed, side)
    residual, x = add_norm(g, lowering, residual, update, f"{name}.post_attention_layernorm.weight")
    return residual, mlp(g, lowering, f"{name}.mlp", x)


def _finish(g: GraphBuilder, lowering: Lowering, residual: str, update: str, norm: str, dtype: DTypeLike) -> None:
    hidden = add_norm(g, lowering, residual, update, norm)[1]
    _result(g, hidden, "hidden", lowering.ops.source.spec.hidden, dtype)


def _result(g: GraphBuilder, value: str, name: str, width: int, dtype: DTypeLike) -> None:
    g.op("Identity", [value], output=g.output(name, dtype, [1, "S", width]))
