"""What stands beside the matrices in the folder of a quantized checkpoint, whoever quantized it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from edgellm.checkpoint.assembly import PLAIN
from edgellm.checkpoint.module_patterns import canonical
from edgellm.checkpoint.reader import INDEX_FILE, QUANT_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import TensorFile
from edgellm.errors import ConfigError

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MADE_ANEW: Final = ("config.json", INDEX_FILE, QUANT_FILE)


def refuse_quantized(checkpoint: Checkpoint) -> None:
    """See that every matrix is plain.

    Raises:
        ConfigError: names the first that is not.
    """
    for name in checkpoint.matrices:
        if (kind := checkpoint.kind(name)) not in PLAIN.values():
            raise ConfigError(f"{checkpoint.path} is quantized already: {name} is {kind}")


def spared_modules(checkpoint: Checkpoint, quantized: Collection[str]) -> list[str]:
    """Modules that have a matrix (or a convolution) and are left alone, as the files name them, other models included.

    A tied output head, which has no tensor of its own, is one of them.

    Args:
        quantized: canonical names.
    """
    found = [
        name.removesuffix(".weight")
        for path in checkpoint.weight_files
        for name, entry in TensorFile.open(path).entries.items()
        if name.endswith(".weight")
        and len(entry.shape) > 1
        and canonical(name.removesuffix(".weight")) not in quantized
    ]
    if checkpoint.spec.tied_embeddings and "lm_head" not in found:
        found.append("lm_head")
    return found


def copy_other_files(checkpoint: Checkpoint, out: Path) -> None:
    """Copy everything but the weights and what describes them: tokenizer, templates, generation_config, processors."""
    for path in sorted(checkpoint.path.iterdir()):
        if path.is_file() and path.suffix not in _WEIGHTS and path.name not in _MADE_ANEW:
            shutil.copyfile(path, out / path.name)


def write_index(out: Path, names: Mapping[str, Iterable[str]]) -> None:
    """Write the index of the shards in `out`: file name → names of its tensors."""
    weight_map = {name: shard for shard, inside in names.items() for name in inside}
    size = sum((out / shard).stat().st_size for shard in names)
    write_json(out / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": weight_map})


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file for people to read too."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
