"""ModelSpec: what config.json says is what the spec holds, and nothing else is let through."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.errors import CheckpointError

# The 27B member of the family, as its multimodal config.json states it.
LARGE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "vocab_size": 248320,
    },
    "vision_config": {"hidden_size": 1152},
}


def text(**changes: Any) -> dict[str, Any]:
    """The 27B text config at top level, with `changes`; a value of `...` removes the field."""
    config = copy.deepcopy(LARGE["text_config"]) | changes
    return {name: value for name, value in config.items() if value is not ...}


def test_the_27b_config() -> None:
    spec = ModelSpec.from_config(LARGE)
    assert (spec.hidden, spec.intermediate, spec.vocab, len(spec.layers)) == (5120, 17408, 248320, 64)
    assert spec.full_layers == tuple(range(3, 64, 4))
    assert len(spec.linear_layers) == 48
    assert (spec.attention.heads, spec.attention.kv_heads, spec.attention.head_dim) == (24, 4, 256)
    assert (spec.attention.rotary_dim, spec.attention.rope_theta) == (64, 1e7)
    assert spec.linear.conv_channels == 2 * 16 * 128 + 48 * 128
    assert (spec.tied_embeddings, spec.mtp_layers, spec.max_positions) == (False, 1, 262144)


def test_the_27b_tensors() -> None:
    shapes = ModelSpec.from_config(LARGE).expected_tensors()
    assert sum(name.startswith("mtp.") for name in shapes) == 15
    assert shapes["layers.3.self_attn.q_proj.weight"] == (2 * 24 * 256, 5120)
    assert shapes["layers.0.linear_attn.conv1d.weight"] == (10240, 1, 4)
    assert shapes["mtp.fc.weight"] == (5120, 10240)
    assert 26e9 < sum(math.prod(s) for n, s in shapes.items() if not n.startswith("mtp.")) < 28e9
    assert "lm_head.weight" in shapes
    tied = replace(ModelSpec.from_config(LARGE), tied_embeddings=True, mtp_layers=0).expected_tensors()
    assert set(shapes) - set(tied) == {"lm_head.weight", *(n for n in shapes if n.startswith("mtp."))}


def test_layouts_that_mean_the_same() -> None:
    spec = ModelSpec.from_config(LARGE)
    flat = {"rope_parameters": ..., "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    for config in (
        text(),
        text(**flat),
        text(**flat, rope_scaling=None),
        text(**flat, rope_scaling={"type": "default", "mrope_section": [11, 11, 10]}),
        text(rope_parameters={"rope_type": "default", "rope_theta": 1e7}, partial_rotary_factor=0.25),
        text(rope_parameters={"rope_theta": 1e7}),  # the family's default fraction
        text(layer_types=...),
        text(layer_types=None),
        text(full_attention_interval=...),
        text(mamba_ssm_dtype="bfloat16"),
        text(sliding_window=None, use_sliding_window=False, num_experts=0),
        text(sliding_window=4096, use_sliding_window=False),
        text(tie_word_embeddings=False),
    ):
        assert ModelSpec.from_config(config) == spec
    assert ModelSpec.from_config({"model_type": "qwen3_5", "text_config": text(model_type=...)}) == spec


def test_tied_at_either_level() -> None:
    for outer, inner, tied in ((True, ..., True), (..., True, True), (True, True, True), (..., ..., False)):
        config = {"model_type": "qwen3_5", "text_config": text(tie_word_embeddings=inner)}
        if outer is not ...:
            config["tie_word_embeddings"] = outer
        assert ModelSpec.from_config(config).tied_embeddings is tied
    with pytest.raises(CheckpointError, match="tie_word_embeddings"):
        ModelSpec.from_config(
            {"model_type": "qwen3_5", "tie_word_embeddings": False, "text_config": text(tie_word_embeddings=True)}
        )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "5120"}, "hidden_size must be an integer"),
        ({"hidden_size": 5120.0}, "hidden_size must be an integer"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"hidden_size": 0}, "hidden_size must be between"),
        ({"vocab_size": -1}, "vocab_size must be between"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be between"),
        ({"num_hidden_layers": 10**5000}, "num_hidden_layers must be between"),
        ({"num_attention_heads": 25}, "num_attention_heads .* not a multiple of num_key_value_heads"),
        ({"linear_num_value_heads": 40}, "linear_num_value_heads .* not a multiple of linear_num_key_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"num_hidden_layers": 63}, "layer_types has 64 entries"),
        ({"layer_types": ["full_attention"] * 63 + ["sliding_attention"]}, r"layer_types\[63\] 'sliding_attention'"),
        ({"layer_types": "full_attention"}, "layer_types must be an array"),
        ({"layer_types": ..., "full_attention_interval": ...}, "full_attention_interval is missing"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps must be between"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be between"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type 'yarn' is not supported"),
        ({"rope_parameters": ..., "rope_theta": 1e7, "rope_scaling": {"type": "linear"}}, "'linear' is not supported"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.012}}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": "11"}}, "mrope_section"),
        ({"rope_parameters": []}, "rope_parameters must be a JSON object"),
        ({"num_experts": 128}, "num_experts is set: mixture-of-experts"),
        ({"moe_intermediate_size": 512}, "moe_intermediate_size is set: mixture-of-experts"),
        ({"model_type": "qwen3_5_moe_text"}, "model_type 'qwen3_5_moe_text' is not supported"),
        ({"model_type": ...}, "model_type is missing"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"attn_output_gate": False}, "attn_output_gate is false"),
        ({"sliding_window": 4096}, "sliding_window is set"),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers must be between 0 and 1"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings is true"),
        ({"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype 'int8'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_refusals_name_the_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        ModelSpec.from_config(text(**changes))
    with pytest.raises(CheckpointError):
        ModelSpec.from_config({"model_type": "qwen3_5", "text_config": text(**changes) | {"model_type": "no"}})


def test_not_an_object() -> None:
    for config in (None, [], "qwen3_5", {"model_type": "qwen3_5", "text_config": None}, {}):
        with pytest.raises(CheckpointError):
            ModelSpec.from_config(config)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
def test_round_trip_through_json(preset: str) -> None:
    spec = ModelSpec.from_config(PRESETS[preset].config)
    assert ModelSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@given(head_dim=st.integers(2, 1024), data=st.data())
def test_any_rotary_dim_round_trips(head_dim: int, data: st.DataObject) -> None:
    rotary = 2 * data.draw(st.integers(1, head_dim // 2))
    spec = ModelSpec.from_config(LARGE)
    spec = replace(spec, attention=replace(spec.attention, head_dim=head_dim, rotary_dim=rotary))
    assert ModelSpec.from_dict(spec.to_dict()) == spec


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**4000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), nested=st.booleans())
def test_any_mutation_is_a_spec_or_a_checkpoint_error(data: st.DataObject, nested: bool) -> None:
    config = copy.deepcopy(LARGE) if nested else text()
    for _ in range(data.draw(st.integers(1, 3))):
        target = config.get("text_config", config) if data.draw(st.booleans()) else config
        if not isinstance(target, dict):
            continue
        rope = target.get("rope_parameters")
        if isinstance(rope, dict) and data.draw(st.integers(0, 3)) == 0:
            target = rope
        name = data.draw(st.sampled_from(sorted(target)) if target else st.text())
        if data.draw(st.booleans()):
            target.pop(name, None)
        else:
            target[name] = data.draw(JSON)
    try:
        spec = ModelSpec.from_config(config)
    except CheckpointError:
        return
    assert spec.attention.heads % spec.attention.kv_heads == 0
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    assert all(size > 0 for shape in spec.expected_tensors().values() for size in shape)
