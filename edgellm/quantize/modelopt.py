"""NVFP4 by NVIDIA's own quantizer: ModelOpt's default recipe, weights and activations (W4A4).

transformers runs the model, ModelOpt watches what goes into its matrices and exports it; the exported matrices then
take the places of the source's. What must stay true: everything else is the source's own, bit for bit (transformers
drops MTP and vision and rounds float32 vectors); the folder appears whole or not at all. Memory holds the whole model.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from edgellm.checkpoint.assembly import Located, some
from edgellm.checkpoint.module_patterns import canonical
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import INDEX_FILE, QUANT_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import DTYPES, TensorFile, write_safetensors
from edgellm.checkpoint.staging import new_folder
from edgellm.checkpoint.tokenizer_files import read_json
from edgellm.errors import CheckpointError, ConfigError
from edgellm.progress import Progress
from edgellm.quantize.folder import copy_other_files, refuse_quantized, spared_modules, write_index, write_json
from edgellm.quantize.texts import check_tokens

_LEAVES: Final = ("weight", "weight_scale", "weight_scale_2", "input_scale")


def quantize_with_modelopt(
    checkpoint: Path, out: Path, texts: Sequence[Sequence[int]], *, progress: Progress | None = None
) -> None:
    """Write the checkpoint folder `checkpoint` to the new folder `out` as ModelOpt's `NVFP4_DEFAULT_CFG` makes it.

    Runs on the first GPU that torch sees, else on the CPU.

    Args:
        texts: token ids of the texts to calibrate on, one or more, of two tokens at least.
        progress: called with ("calibrate", texts done, texts) and ("write", files done, files).

    Raises:
        CheckpointError: the source is broken, or what ModelOpt makes of it is (a matrix of zeros, say).
        ConfigError: ModelOpt, torch or transformers are missing, ModelOpt cannot quantize the model, the source is
            quantized already, `out` is in use, or a text is too short or has a token that the model lacks.
    """
    source = Checkpoint.open(checkpoint)
    refuse_quantized(source)
    if not texts:
        raise ConfigError("ModelOpt calibrates activations: it needs texts")
    check_tokens(texts, source.spec.vocab)
    with new_folder(out) as folder:
        made = folder / "exported"
        _export(source.path, made, texts, progress)
        exported = _tensors(made)
        quantized = {name.removesuffix(".weight_scale") for name in exported if name.endswith(".weight_scale")}
        _merge(source, exported, quantized, folder, progress)
        _describe(source, made, spared_modules(source, quantized), folder)
        rmtree(made)
        _check(folder, quantized)


def _export(source: Path, out: Path, texts: Sequence[Sequence[int]], progress: Progress | None) -> None:
    """Calibrate and let ModelOpt write what it makes of the text model."""
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
        quantization = import_module("modelopt.torch.quantization")
        export = import_module("modelopt.torch.export")
    except ImportError as error:
        raise ConfigError(f"ModelOpt cannot be imported ({error}): pip install 'edgellm[quantize]'") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = transformers.AutoModelForCausalLM
    model, loaded = loader.from_pretrained(source, dtype="auto", output_loading_info=True)
    if loaded["missing_keys"]:
        raise CheckpointError(f"transformers does not find {some(sorted(loaded['missing_keys']))} in {source}")
    model.config.architectures = [type(model).__name__]  # the exporter reads it; None where the source has vision too

    def forward(model: Any) -> None:
        for number, text in enumerate(texts, 1):
            model(torch.tensor([list(text)], device=device), use_cache=False, logits_to_keep=1)
            if progress is not None:
                progress("calibrate", number, len(texts))

    try:
        with redirect_stdout(sys.stderr):  # both print what they do
            quantized = quantization.quantize(model.to(device), quantization.NVFP4_DEFAULT_CFG, forward)
            export.export_hf_checkpoint(quantized, export_dir=out)
    except (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"ModelOpt cannot quantize {source}: {str(error).strip() or type(error).__name__}") from error


def _tensors(folder: Path) -> dict[str, Located]:
    """Canonical name → tensor, of all weight files in a folder."""
    files = map(TensorFile.open, sorted(folder.glob("*.safetensors")))
    return {canonical(name): (file, name) for file in files for name in file.entries}


def _merge(
    source: Checkpoint,
    exported: Mapping[str, Located],
    quantized: Collection[str],
    out: Path,
    progress: Progress | None,
) -> None:
    """The source's files with the exported tensors of the modules `quantized` (canonical) in the place of theirs."""
    shards: dict[str, list[str]] = {}
    for number, path in enumerate(source.weight_files, 1):
        file, placed = TensorFile.open(path), dict[str, Located]()
        for name in file.entries:
            stem = name.removesuffix(".weight")
            if canonical(stem) in quantized:
                found = {leaf: exported.get(f"{canonical(stem)}.{leaf}") for leaf in _LEAVES}
                placed |= {f"{stem}.{leaf}": tensor for leaf, tensor in found.items() if tensor is not None}
            else:
                placed[name] = (file, name)
        entries = {name: holder.entries[own] for name, (holder, own) in placed.items()}
        layout = {name: (DTYPES[entry.dtype], entry.shape) for name, entry in entries.items()}
        write_safetensors(out / path.name, layout, (holder.tensor(own) for holder, own in placed.values()))
        shards[path.name] = list(placed)
        if progress is not None:
            progress("write", number, len(source.weight_files))
    if (source.path / INDEX_FILE).is_file():
        write_index(out, shards)


def _describe(source: Checkpoint, made: Path, spared: list[str], out: Path) -> None:
    """Write what ModelOpt says of the quantization; all of the source that was left alone is excluded in it."""
    copy_other_files(source, out)
    claim, config = read_json(made / QUANT_FILE), read_json(made / "config.json")["quantization_config"]
    listed = claim["quantization"]["exclude_modules"]  # of the text model
    claim["quantization"]["exclude_modules"] = config["ignore"] = [*listed, *(m for m in spared if m not in listed)]
    write_json(out / QUANT_FILE, claim)
    write_json(out / "config.json", {**source.config, "quantization_config": config})


def _check(folder: Path, quantized: Collection[str]) -> None:
    """See that the result opens and that every scale of it is positive."""
    result = Checkpoint.open(folder)
    for module in sorted(quantized):
        weight = result.weight(f"{module}.weight")
        if not isinstance(weight, Nvfp4Weight) or weight.input_scale is None:
            raise CheckpointError(f"ModelOpt's {module} is no NVFP4 matrix with a scale for its inputs")
