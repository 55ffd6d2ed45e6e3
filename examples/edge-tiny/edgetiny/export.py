"""The network as a checkpoint folder of the family, and back.

What must stay true: the folder opens with edgellm and with transformers; weights are bfloat16.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgellm.checkpoint.reader import SINGLE_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import DTYPES, write_safetensors
from edgellm.checkpoint.small_tokenizer import END_OF_TEXT, END_OF_TURN
from edgellm.text.tokenizer import Tokenizer
from edgetiny.model import EdgeTiny


def export(model: EdgeTiny, tokenizer: Path, out: Path) -> None:
    """Write the checkpoint `out`, a new folder."""
    out.mkdir(parents=True)
    for file in tokenizer.iterdir():
        shutil.copyfile(file, out / file.name)
    kind = DTYPES["BF16"]
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    entries = {name: (kind, array.shape) for name, array in weights.items()}
    write_safetensors(out / SINGLE_FILE, entries, (array.astype(kind) for array in weights.values()))
    loaded = Tokenizer.load(tokenizer)
    end_of_text, end_of_turn = (loaded.encode(name, allow_special=True)[0] for name in (END_OF_TEXT, END_OF_TURN))
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        **model.spec.to_dict(),
        "dtype": "bfloat16",
        "eos_token_id": end_of_text,
        "pad_token_id": end_of_text,
    }
    half = model.spec.attention.rotary_dim // 2
    section = [half // 3 + (i < half % 3) for i in range(3)]
    config["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": section}
    # Greedy by default: function calls have one right answer.
    generation = {"do_sample": False, "eos_token_id": [end_of_turn, end_of_text]}
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", generation)


def load_weights(model: EdgeTiny, folder: Path) -> None:
    """Give `model` the weights of a checkpoint of its shape."""
    checkpoint = Checkpoint.open(folder)
    names = {name if name.startswith("mtp.") else f"model.{name}": name for name in checkpoint.names}
    weights = {key: torch.from_numpy(np.asarray(checkpoint.tensor(name), np.float32)) for key, name in names.items()}
    model.load_state_dict(weights)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
