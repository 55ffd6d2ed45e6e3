"""The shape of edge-tiny: the family's structure at 4.6 M parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "vocab_size": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e5,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "mtp_num_hidden_layers": 1,
}
