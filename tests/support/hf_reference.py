"""transformers' Qwen3_5ForCausalLM over one of our checkpoints, float32. Needs the `parity` extra."""

from __future__ import annotations

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
    model = Qwen3_5ForCausalLM(config).eval().float()
    weights = {
        name if name.startswith("lm_head") else f"model.{name}": torch.tensor(
            np.asarray(checkpoint.tensor(name), np.float32)
        )
        for name in checkpoint.names
        if not name.startswith("mtp.")
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


def parallel(model: Qwen3_5ForCausalLM) -> Forward:
    """Whole sequences at once (the reference's chunked DeltaNet)."""

    def forward(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.no_grad():
            return model(torch.tensor(tokens[None])).logits[0].numpy()

    return forward


def sequential(model: Qwen3_5ForCausalLM) -> Forward:
    """Token by token with its cache (the reference's recurrent DeltaNet).

    On long repetitions this is the accurate one: the chunked form solves a badly conditioned triangular system.
    """
    known: dict[bytes, NDArray[np.float32]] = {}

    def forward(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        key = tokens.tobytes()
        if key not in known:
            rows, cache = [], None
            with torch.no_grad():
                for token in tokens:
                    step = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                    cache = step.past_key_values
                    rows.append(step.logits[0, 0].numpy())
            known[key] = np.stack(rows)
        return known[key]

    return forward
