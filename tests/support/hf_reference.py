"""transformers' Qwen3_5ForCausalLM over one of our checkpoints. Needs the `parity` extra.

Run in float32 the reference's own rounding differs by 1e-4 between processors on a prompt of one repeated token, so
what is committed and compared is its code evaluated in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from golden import Forward
from numpy.typing import NDArray
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

from edgellm.checkpoint.reader import Checkpoint


def load_reference(checkpoint: Checkpoint) -> Qwen3_5ForCausalLM:
    """The model with the checkpoint's weights (MTP is not part of the reference)."""
    text = checkpoint.config.get("text_config", checkpoint.config)
    config = Qwen3_5TextConfig(**{key: value for key, value in text.items() if key != "model_type"})
    config._attn_implementation = "eager"
    with exact():
        model = Qwen3_5ForCausalLM(config).eval().double()
    weights = {
        name if name.startswith("lm_head") else f"model.{name}": torch.tensor(
            np.asarray(checkpoint.tensor(name), np.float64)
        )
        for name in checkpoint.names
        if not name.startswith("mtp.")
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


@contextmanager
def exact() -> Iterator[None]:
    """Inside, the reference's casts to float32 are casts to float64."""
    kind = mock.patch.object(torch, "float32", torch.float64)
    with kind, mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def logits(model: Qwen3_5ForCausalLM) -> Forward:
    """Whole sequences at once: tokens [n] -> logits [n, V]."""

    def forward(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        with torch.no_grad(), exact():
            return model(torch.tensor(tokens[None])).logits[0].numpy()

    return forward
