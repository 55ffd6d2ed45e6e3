"""`make_checkpoint`: write a random-weight checkpoint that is, file for file, one of the family.

For tests, speed measurements and the first start; see `presets`. What must stay true: the folder appears whole or not
at all; the same arguments give the same bytes; `Checkpoint.open` accepts the result without a warning.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from edgellm.checkpoint.presets import PRESETS, Layout, Preset
from edgellm.checkpoint.random_weights import RandomWeights
from edgellm.checkpoint.reader import INDEX_FILE, SINGLE_FILE
from edgellm.checkpoint.safetensors_file import DTYPES, write_safetensors
from edgellm.checkpoint.small_tokenizer import END_OF_TEXT, END_OF_TURN, write_small_tokenizer
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.staging import new_folder
from edgellm.checkpoint.tokenizer_files import TOKENIZER_FILES, read_json
from edgellm.errors import ConfigError

DTypeName = Literal["bf16", "f16", "f32"]
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {"bf16": DTYPES["BF16"], "f16": DTYPES["F16"], "f32": DTYPES["F32"]}
_SAMPLING: Final = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}
_CONFIG_DTYPES: Final = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def make_checkpoint(
    preset: str,
    out_dir: str | Path,
    seed: int = 0,
    tokenizer_dir: str | Path | None = None,
    *,
    dtype: DTypeName = "bf16",
    layout: Layout | None = None,
    shards: int = 1,
    **overrides: Any,
) -> Path:
    """Write the checkpoint `preset` to `out_dir`, which must not exist or be empty.

    Args:
        preset: a key of `PRESETS`.
        out_dir: folder to create.
        seed: of the weights.
        tokenizer_dir: folder whose tokenizer files (and chat template, if it has one) are copied instead of made.
        dtype: of every tensor.
        layout: tensor names and config.json as in a text-only or a multimodal file; the preset's by default.
        shards: number of weight files; more than one adds the index.
        overrides: config.json fields of the text model to change, e.g. ``num_hidden_layers=8``.

    Returns:
        `out_dir` as a path.

    Raises:
        ConfigError: an unknown preset or option, a tokenizer that does not fit, or a folder in use.
        CheckpointError: the overrides do not make a valid model.
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r} (known: {', '.join(PRESETS)})")
    if dtype not in _DTYPES or shards < 1 or seed < 0:
        raise ConfigError(f"dtype {dtype!r}, shards {shards} or seed {seed} is out of range")
    chosen = PRESETS[preset]
    if unknown := sorted(overrides.keys() - chosen.config.keys()):
        raise ConfigError(f"unknown config field {unknown[0]!r} (known: {', '.join(chosen.config)})")
    spec = ModelSpec.from_config({**chosen.config, **overrides})
    out = Path(out_dir)
    with new_folder(out) as scratch:
        _write_tokenizer(scratch, chosen, spec, None if tokenizer_dir is None else Path(tokenizer_dir))
        write_configs(scratch, spec, layout or chosen.layout, dtype, _SAMPLING)
        _write_weights(scratch, spec, layout or chosen.layout, dtype, shards, _weights(scratch, spec, seed, chosen))
    return out


def _write_tokenizer(folder: Path, preset: Preset, spec: ModelSpec, source: Path | None) -> None:
    if source is not None:
        if not (source / "tokenizer.json").is_file():
            raise ConfigError(f"{source} has no tokenizer.json")
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
    elif preset.tokenizer == "qwen36":
        from edgellm.checkpoint.qwen_vocab import write_qwen36_tokenizer

        write_qwen36_tokenizer(folder)
    else:
        write_small_tokenizer(folder, spec.vocab)
    highest = max(_added_tokens(folder).values(), default=0)
    if highest >= spec.vocab:
        raise ConfigError(f"the tokenizer has a token of id {highest}, the model's vocabulary is {spec.vocab}")
    if not (folder / "chat_template.jinja").exists():
        (folder / "chat_template.jinja").write_text(family_template(), encoding="utf-8")


def family_template() -> str:
    """Source of the chat template that checkpoints made here carry: the family's format."""
    return resources.files("edgellm.checkpoint").joinpath("chat_template.jinja").read_text(encoding="utf-8")


def _added_tokens(folder: Path) -> dict[str, int]:
    return {token["content"]: token["id"] for token in read_json(folder / "tokenizer.json").get("added_tokens", [])}


def _weights(folder: Path, spec: ModelSpec, seed: int, preset: Preset) -> RandomWeights:
    ordinary = min(_added_tokens(folder).values(), default=spec.vocab)
    return RandomWeights(spec, seed, follow=preset.follow, ordinary=ordinary)


def write_configs(
    folder: Path, spec: ModelSpec, layout: Layout, dtype: DTypeName, sampling: Mapping[str, float]
) -> None:
    """Write config.json and generation_config.json beside the tokenizer files in `folder`.

    `sampling`: what generation_config.json recommends; empty: greedy.
    """
    ids = _added_tokens(folder)
    end_of_text, end_of_turn = ids.get(END_OF_TEXT), ids.get(END_OF_TURN)
    text = spec.to_dict()
    half = spec.attention.rotary_dim // 2
    text["rope_parameters"] |= {
        "mrope_interleaved": True,
        "mrope_section": [half // 3 + (i < half % 3) for i in range(3)],
    }
    text |= {"dtype": _CONFIG_DTYPES[dtype], "eos_token_id": end_of_text, "pad_token_id": end_of_text}
    if layout == "text":
        config = {"architectures": ["Qwen3_5ForCausalLM"], **text}
    else:
        config = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": text,
            "tie_word_embeddings": spec.tied_embeddings,
        }
    stops = [token for token in (end_of_turn, end_of_text) if token is not None]
    generation = {"do_sample": bool(sampling), "eos_token_id": stops, **sampling}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")


def _write_weights(
    folder: Path, spec: ModelSpec, layout: Layout, dtype: DTypeName, shards: int, weights: RandomWeights
) -> None:
    shapes = spec.expected_tensors()
    names = list(shapes)
    if shards > len(names):
        raise ConfigError(f"{shards} shards for {len(names)} tensors")
    prefix = "model." if layout == "text" else "model.language_model."
    kind = _DTYPES[dtype]

    def in_file(name: str) -> str:
        return name if name.startswith(("lm_head.", "mtp.")) else prefix + name

    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        file = SINGLE_FILE if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        entries = {in_file(name): (kind, shapes[name]) for name in part}
        write_safetensors(folder / file, entries, (weights.tensor(name, kind) for name in part))
        weight_map.update(dict.fromkeys(entries, file))
    if shards > 1:
        size = sum(int(np.prod(shape)) for shape in shapes.values()) * kind.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n")
