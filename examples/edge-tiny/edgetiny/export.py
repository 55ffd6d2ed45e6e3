"""The network as a checkpoint folder of the family, and back.

What must stay true: the folder opens with edgellm and with transformers; weights are bfloat16.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from edgellm.checkpoint.reader import SINGLE_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import DTYPES, write_safetensors
from edgellm.checkpoint.synth import write_configs
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
    write_configs(out, model.spec, "text", "bf16", {})  # greedy: function calls have one right answer


def load_weights(model: EdgeTiny, folder: Path) -> None:
    """Give `model` the weights of a checkpoint of its shape."""
    checkpoint = Checkpoint.open(folder)
    names = {name if name.startswith("mtp.") else f"model.{name}": name for name in checkpoint.names}
    weights = {key: torch.from_numpy(np.asarray(checkpoint.tensor(name), np.float32)) for key, name in names.items()}
    model.load_state_dict(weights)
