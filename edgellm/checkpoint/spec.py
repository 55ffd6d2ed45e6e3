"""`ModelSpec`: the shape of a Qwen3.5/3.6-type hybrid text model, read from ``config.json``.

Everything downstream (graph, executor, cache sizes, simulator) takes its sizes from here; nothing is hard-coded.
What must stay true: a spec that exists is consistent (every divisibility and range holds), and `expected_tensors` is
exactly the set of tensors that a checkpoint of that spec holds, in canonical names (no ``model.`` prefix).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from edgellm.checkpoint.fields import Fields

LayerKind = Literal["linear_attention", "full_attention"]

TEXT_MODEL_TYPE = "qwen3_5_text"
MULTIMODAL_MODEL_TYPE = "qwen3_5"
MAX_LAYERS = 4096

# Fields whose presence means a structure that the graph does not have.
_MOE_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
# The fraction of a head that RoPE turns when config.json does not say (the reference implementation's default).
_DEFAULT_PARTIAL_ROTARY = 0.25


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Gated full attention (also the shape of the MTP layer)."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # leading dims of a head that RoPE turns
    rope_theta: float


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """Gated DeltaNet."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: q, k (key heads) and v (value heads)."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Frozen description of one model. `layers[i]` is the kind of decoder layer i."""

    model_type: str
    hidden: int
    intermediate: int
    vocab: int
    layers: tuple[LayerKind, ...]
    rms_eps: float
    tied_embeddings: bool
    max_positions: int
    attention: AttentionSpec
    linear: LinearSpec
    mtp_layers: int  # 0 or 1

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of full-attention layers."""
        return tuple(i for i, k in enumerate(self.layers) if k == "full_attention")

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of Gated DeltaNet layers."""
        return tuple(i for i, k in enumerate(self.layers) if k == "linear_attention")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Read a decoded ``config.json``, text-only or multimodal (``text_config``).

        Raises:
            CheckpointError: a field is missing, of the wrong type, out of range, contradicts another, or asks for
                something that edgellm does not implement; the message names the field.
        """
        top = Fields(config, "config.json")
        text = Fields(config["text_config"], "config.json: text_config", top) if "text_config" in config else top
        _refuse_unsupported(top, text)
        return cls(
            model_type=TEXT_MODEL_TYPE,
            hidden=text.integer("hidden_size"),
            intermediate=text.integer("intermediate_size"),
            vocab=text.integer("vocab_size"),
            layers=_layer_kinds(text),
            rms_eps=text.number("rms_norm_eps", low=0.0, high=1.0),
            tied_embeddings=_tied(top, text),
            max_positions=text.integer("max_position_embeddings"),
            attention=_attention(text),
            linear=_linear(text),
            mtp_layers=text.integer("mtp_num_hidden_layers", 0, low=0, high=1),
        )

    def to_dict(self) -> dict[str, Any]:
        """The spec as the fields of a text-only ``config.json``; `from_dict` reads it back to an equal spec."""
        return {
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "num_hidden_layers": len(self.layers),
            "layer_types": list(self.layers),
            "rms_norm_eps": self.rms_eps,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied_embeddings,
            "max_position_embeddings": self.max_positions,
            "num_attention_heads": self.attention.heads,
            "num_key_value_heads": self.attention.kv_heads,
            "head_dim": self.attention.head_dim,
            "attention_bias": False,
            "attn_output_gate": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.attention.rope_theta,
                "partial_rotary_factor": _rotary_factor(self.attention.rotary_dim, self.attention.head_dim),
            },
            "linear_num_key_heads": self.linear.key_heads,
            "linear_num_value_heads": self.linear.value_heads,
            "linear_key_head_dim": self.linear.key_dim,
            "linear_value_head_dim": self.linear.value_dim,
            "linear_conv_kernel_dim": self.linear.conv_kernel,
            "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": self.mtp_layers,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSpec:
        """Inverse of `to_dict`. Raises `CheckpointError` like `from_config`."""
        return cls.from_config(values)

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name → shape of every tensor of the text model and its MTP head, in layer order.

        Linear weights are [out, in]. `q_proj` holds, per head, the query rows and then the gate rows.
        """
        shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (self.vocab, self.hidden)}
        for i, kind in enumerate(self.layers):
            mixer = self._attention_tensors() if kind == "full_attention" else self._linear_tensors()
            shapes.update((f"layers.{i}.{name}", shape) for name, shape in self._layer_tensors(mixer))
        shapes["norm.weight"] = (self.hidden,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        if self.mtp_layers:
            shapes["mtp.fc.weight"] = (self.hidden, 2 * self.hidden)
            for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
                shapes[f"mtp.{name}.weight"] = (self.hidden,)
            mtp_layer = self._layer_tensors(self._attention_tensors())
            shapes.update((f"mtp.layers.0.{name}", shape) for name, shape in mtp_layer)
        return shapes

    def _layer_tensors(self, mixer: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "input_layernorm.weight", (self.hidden,)
        yield from mixer.items()
        yield "post_attention_layernorm.weight", (self.hidden,)
        yield "mlp.gate_proj.weight", (self.intermediate, self.hidden)
        yield "mlp.up_proj.weight", (self.intermediate, self.hidden)
        yield "mlp.down_proj.weight", (self.hidden, self.intermediate)

    def _attention_tensors(self) -> dict[str, tuple[int, ...]]:
        a = self.attention
        return {
            "self_attn.q_proj.weight": (2 * a.heads * a.head_dim, self.hidden),
            "self_attn.k_proj.weight": (a.kv_heads * a.head_dim, self.hidden),
            "self_attn.v_proj.weight": (a.kv_heads * a.head_dim, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, a.heads * a.head_dim),
            "self_attn.q_norm.weight": (a.head_dim,),
            "self_attn.k_norm.weight": (a.head_dim,),
        }

    def _linear_tensors(self) -> dict[str, tuple[int, ...]]:
        g = self.linear
        value_rows = g.value_heads * g.value_dim
        return {
            "linear_attn.in_proj_qkv.weight": (g.conv_channels, self.hidden),
            "linear_attn.in_proj_z.weight": (value_rows, self.hidden),
            "linear_attn.in_proj_b.weight": (g.value_heads, self.hidden),
            "linear_attn.in_proj_a.weight": (g.value_heads, self.hidden),
            "linear_attn.conv1d.weight": (g.conv_channels, 1, g.conv_kernel),
            "linear_attn.A_log": (g.value_heads,),
            "linear_attn.dt_bias": (g.value_heads,),
            "linear_attn.norm.weight": (g.value_dim,),
            "linear_attn.out_proj.weight": (self.hidden, value_rows),
        }


def _refuse_unsupported(top: Fields, text: Fields) -> None:
    _check_model_type(top, (MULTIMODAL_MODEL_TYPE, TEXT_MODEL_TYPE))
    if text is not top and text.values.get("model_type") is not None:
        _check_model_type(text, (TEXT_MODEL_TYPE,))
    for name in _MOE_FIELDS:
        if text.get(name) not in (None, 0):
            raise text.error(name, "is set: mixture-of-experts models are not supported")
    if text.get("sliding_window") is not None and text.get("use_sliding_window") is not False:
        raise text.error("sliding_window", "is set: sliding-window attention is not supported")
    if text.boolean("use_sliding_window", False):
        raise text.error("use_sliding_window", "is true: sliding-window attention is not supported")
    activation = text.text("hidden_act", "silu")
    if activation != "silu":
        raise text.error("hidden_act", f"{activation!r} is not supported (supported: silu)")
    if text.boolean("attention_bias", False):
        raise text.error("attention_bias", "is true: attention biases are not supported")
    if not text.boolean("attn_output_gate", True):
        raise text.error("attn_output_gate", "is false: attention without an output gate is not supported")
    if text.boolean("mtp_use_dedicated_embeddings", False):
        raise text.error("mtp_use_dedicated_embeddings", "is true: MTP must share the model's embeddings")
    # The recurrence is always computed in float32; a narrower declared dtype only says how others store the state.
    state_dtype = text.text("mamba_ssm_dtype", "float32")
    if state_dtype not in ("float32", "bfloat16", "float16"):
        raise text.error("mamba_ssm_dtype", f"{state_dtype!r} is not a float dtype")


def _check_model_type(fields: Fields, supported: tuple[str, ...]) -> None:
    model_type = fields.text("model_type")
    if model_type not in supported:
        raise fields.error("model_type", f"{model_type!r:.60} is not supported (supported: {', '.join(supported)})")


def _layer_kinds(text: Fields) -> tuple[LayerKind, ...]:
    """`layer_types` when given (it wins, as in the reference), else every `full_attention_interval`-th is full."""
    count = text.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = text.get("layer_types")
    if kinds is None:
        interval = text.integer("full_attention_interval")
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(count))
    if not isinstance(kinds, (list, tuple)):
        raise text.error("layer_types", "must be an array")
    if len(kinds) != count:
        raise text.error("layer_types", f"has {len(kinds)} entries but num_hidden_layers is {count}")
    for i, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in get_args(LayerKind):
            raise text.error(f"layer_types[{i}]", f"{kind!r:.60} is not one of {', '.join(get_args(LayerKind))}")
    return tuple(kinds)


def _tied(top: Fields, text: Fields) -> bool:
    outer, inner = top.get("tie_word_embeddings"), text.get("tie_word_embeddings")
    if outer is not None and inner is not None and outer != inner:
        raise top.error("tie_word_embeddings", f"is {outer!r:.60} but text_config.tie_word_embeddings is {inner!r:.60}")
    return text.boolean("tie_word_embeddings", False)


def _attention(text: Fields) -> AttentionSpec:
    heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    if heads % kv_heads:
        raise text.error("num_attention_heads", f"({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    head_dim = text.integer("head_dim")
    theta, factor = _rope(text)
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2:
        raise text.error(
            "partial_rotary_factor", f"{factor} of head_dim {head_dim} is {rotary_dim}: not even, positive"
        )
    return AttentionSpec(heads, kv_heads, head_dim, rotary_dim, theta)


def _rope(text: Fields) -> tuple[float, float]:
    """(theta, fraction of the head that RoPE turns), from `rope_parameters` or the older flat fields."""
    rope = text.child("rope_parameters") or text.child("rope_scaling") or Fields({}, text.where)
    for key in ("rope_type", "type"):  # older files say "type"
        kind = rope.text(key, "default")
        if kind != "default":
            raise rope.error(key, f"{kind!r} is not supported (supported: default)")
    # Text has three equal position streams, so the split of the rotary dims among them changes nothing.
    section = rope.get("mrope_section")
    if section is not None and not (
        isinstance(section, list) and all(type(n) is int and 0 <= n <= 4096 for n in section)
    ):
        raise rope.error("mrope_section", "must be an array of non-negative integers")
    fields = Fields(rope.values, rope.where, text)
    theta = fields.number("rope_theta", low=0.0, high=1e30)
    factor = fields.number("partial_rotary_factor", _DEFAULT_PARTIAL_ROTARY, low=0.0, high=math.nextafter(1.0, 2.0))
    return theta, factor


def _rotary_factor(rotary_dim: int, head_dim: int) -> float:
    """The fraction that `_attention` turns back into `rotary_dim`."""
    factor = rotary_dim / head_dim
    return factor if int(head_dim * factor) == rotary_dim else math.nextafter(factor, 1.0)


def _linear(text: Fields) -> LinearSpec:
    key_heads, value_heads = text.integer("linear_num_key_heads"), text.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise text.error(
            "linear_num_value_heads", f"({value_heads}) is not a multiple of linear_num_key_heads ({key_heads})"
        )
    return LinearSpec(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=text.integer("linear_key_head_dim"),
        value_dim=text.integer("linear_value_head_dim"),
        conv_kernel=text.integer("linear_conv_kernel_dim", low=2),
    )
