"""The shapes of the random-weight checkpoints: small to very small members of the family.

A preset is a set of ``config.json`` fields and how its file is laid out. `tiny` is for tests of everything above the
graph, `mid` for speed, `qwen36-vocab` for true prompt token counts, `qwen36-27b` for what a model of that size needs of
a machine, the parity shapes for the arithmetic: equal and unequal key and value heads, tied and untied, text-only and
multimodal names, sizes that are multiples of nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Layout = Literal["text", "multimodal"]  # names under "model." or under "model.language_model."


@dataclass(frozen=True, slots=True)
class Preset:
    """How to make one checkpoint. `config` holds text-config fields; `follow` is explained in `RandomWeights`."""

    config: Mapping[str, Any]
    layout: Layout
    tokenizer: Literal["small", "qwen36"] = "small"
    follow: float = 0.0


def _config(
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    vocab: int,
    heads: tuple[int, int, int],  # query heads, KV heads, head dim
    linear: tuple[int, int, int, int],  # key heads, value heads, key dim, value dim
    tied: bool,
    context: int = 32768,
    rope_theta: float = 1e7,
) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
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
        "rope_theta": rope_theta,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": tied,
        "max_position_embeddings": context,
        "mtp_num_hidden_layers": 1,
    }


PRESETS: Final[Mapping[str, Preset]] = {
    "tiny": Preset(
        _config(
            hidden=128,
            intermediate=256,
            layers=4,
            vocab=1024,
            heads=(4, 2, 64),
            linear=(2, 4, 32, 32),
            tied=False,
        ),
        "multimodal",
        follow=1.2,
    ),
    "mid": Preset(
        _config(
            hidden=1024,
            intermediate=3584,
            layers=24,
            vocab=32768,
            heads=(8, 2, 256),
            linear=(16, 16, 128, 128),
            tied=False,
        ),
        "text",
        follow=1.2,
    ),
    "qwen36-vocab": Preset(
        _config(
            hidden=64,
            intermediate=128,
            layers=4,
            vocab=248320,
            heads=(2, 1, 64),
            linear=(2, 4, 16, 16),
            tied=True,
            context=262144,
        ),
        "multimodal",
        tokenizer="qwen36",
    ),
    "qwen36-27b": Preset(
        _config(
            hidden=5120,
            intermediate=17408,
            layers=64,
            vocab=248320,
            heads=(24, 4, 256),
            linear=(16, 48, 128, 128),
            tied=False,
            context=262144,
        ),
        "multimodal",
        tokenizer="qwen36",
    ),
    "parity-equal": Preset(
        _config(
            hidden=128,
            intermediate=256,
            layers=8,
            vocab=512,
            heads=(4, 2, 64),
            linear=(4, 4, 32, 32),
            tied=True,
        ),
        "text",
    ),
    "parity-grouped": Preset(
        _config(
            hidden=96,
            intermediate=224,
            layers=8,
            vocab=640,
            heads=(6, 2, 32),
            linear=(2, 6, 32, 32),
            tied=False,
        ),
        "multimodal",
    ),
    "parity-odd": Preset(
        _config(
            hidden=80,
            intermediate=184,
            layers=5,
            vocab=509,
            heads=(3, 1, 32),
            linear=(3, 6, 24, 40),
            tied=False,
            rope_theta=10000.0,
        ),
        "text",
    ),
}
