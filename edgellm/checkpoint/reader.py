"""`Checkpoint`: a Hugging Face folder of the family, checked whole when opened and read lazily.

Owns the mapping from file tensor names to canonical names (no ``model.`` or ``model.language_model.`` prefix).
What must stay true: after `Checkpoint.open` returned, every tensor of `spec.expected_tensors()` exists with the right
shape and a readable dtype, and no text-model tensor is left over. The vision tower is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.assembly import Located, Matrix, assemble, some
from edgellm.checkpoint.module_patterns import canonical
from edgellm.checkpoint.quant_check import check_claim
from edgellm.checkpoint.quant_config import DEFAULT_TILE, read_quant_config
from edgellm.checkpoint.safetensors_file import TensorFile
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.tokenizer_files import chat_template, eos_token_ids, read_json, tokenizer_files
from edgellm.checkpoint.weights import Weight, WeightKind
from edgellm.errors import CheckpointError

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
QUANT_FILE: Final = "hf_quant_config.json"
_VISION: Final = ("model.visual.", "visual.")
_HASH_CHUNK: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint. Tensors are views of memory-mapped files: reading one touches only its pages."""

    path: Path
    spec: ModelSpec
    config: Mapping[str, Any]  # config.json, decoded
    generation_config: Mapping[str, Any]  # generation_config.json, decoded; empty when the file is absent
    tokenizer_files: tuple[Path, ...]
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    warnings: tuple[str, ...]  # what was accepted but is worth telling
    weight_files: tuple[Path, ...]
    kv_scales: Mapping[str, tuple[np.float32, np.float32]]  # see `Assembly`
    _matrices: Mapping[str, Matrix]  # by canonical name
    _tile: tuple[int, int]  # of block FP8

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Open the checkpoint folder `path` and check everything that can be checked without reading weights.

        Raises:
            CheckpointError: naming the file, field or tensor that is missing, extra, truncated or misshapen.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a checkpoint folder")
        config = read_json(folder / "config.json")
        warnings: list[str] = []
        claimed = folder / QUANT_FILE
        quantization = read_quant_config(config, read_json(claimed) if claimed.is_file() else None, warnings)
        spec = ModelSpec.from_config(config)
        files = _open_files(folder)
        tensors = _canonical(files)
        spec = _match_mtp(spec, config, tensors, warnings)
        _drop_tied_head(spec, tensors, warnings)
        assembly = assemble(spec.expected_tensors(), tensors)
        check_claim(quantization, assembly, {canonical(name) for file in files for name in file.entries}, warnings)
        generation = folder / "generation_config.json"
        tokenizer = tokenizer_files(folder)
        if folder / "tokenizer.json" not in tokenizer:
            warnings.append("the checkpoint has no tokenizer.json")
        template = chat_template(folder)
        if template is None:
            warnings.append("the checkpoint has no chat template")
        return cls(
            path=folder,
            spec=spec,
            config=config,
            generation_config=read_json(generation) if generation.is_file() else {},
            tokenizer_files=tokenizer,
            chat_template=template,
            eos_token_ids=eos_token_ids(folder, config, spec.vocab),
            warnings=tuple(warnings),
            weight_files=tuple(file.path for file in files),
            kv_scales=assembly.kv_scales,
            _matrices=assembly.matrices,
            _tile=DEFAULT_TILE if quantization is None else quantization.tile,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Canonical names of all tensors, in layer order."""
        return tuple(self.spec.expected_tensors())

    @property
    def matrices(self) -> tuple[str, ...]:
        """Canonical names of the tensors of two dimensions, in layer order."""
        return tuple(name for name, shape in self.spec.expected_tensors().items() if len(shape) == 2)

    def tensor(self, name: str) -> NDArray[Any]:
        """Read-only array of the unquantized tensor `name` (canonical) in its stored dtype and shape.

        Raises:
            CheckpointError: the model has no such tensor, or it is quantized.
        """
        matrix = self._matrix(name)
        if matrix.form != "plain":
            raise CheckpointError(f"tensor {name!r} is quantized ({matrix.form})")
        file, file_name = matrix.weight
        return file.tensor(file_name)

    def weight(self, name: str) -> Weight:
        """The matrix [out, in] called `name`, e.g. ``layers.0.mlp.up_proj.weight``.

        Raises:
            CheckpointError: the model has no such tensor, it is no matrix, or a scale of it is wrong.
        """
        matrix = self._matrix(name)
        if len(matrix.shape) != 2:
            raise CheckpointError(f"tensor {name!r} has shape {matrix.shape}: not a matrix")
        return matrix.load(self._tile)

    def kind(self, name: str) -> WeightKind:
        """How the matrix `name` is stored."""
        return self._matrix(name).kind

    def _matrix(self, name: str) -> Matrix:
        if name not in self._matrices:
            raise CheckpointError(f"the checkpoint has no tensor {name!r}")
        return self._matrices[name]

    def content_hash(self, progress: Callable[[int, int], None] | None = None) -> str:
        """SHA-256 (hex) over names, sizes and contents of the config, tokenizer and weight files, sorted by name.

        Args:
            progress: called with (bytes hashed, bytes in all) after each piece of at most 16 MiB.
        """
        extra = [self.path / name for name in ("config.json", "generation_config.json", QUANT_FILE, INDEX_FILE)]
        files = {path.name: path for path in (*extra, *self.tokenizer_files, *self.weight_files) if path.is_file()}
        total = sum(path.stat().st_size for path in files.values())
        digest, done = hashlib.sha256(), 0
        for name, path in sorted(files.items()):
            digest.update(name.encode() + b"\0" + path.stat().st_size.to_bytes(8, "little"))
            with path.open("rb") as stream:
                while piece := stream.read(_HASH_CHUNK):
                    digest.update(piece)
                    done += len(piece)
                    if progress is not None:
                        progress(done, total)
        return digest.hexdigest()


def _open_files(folder: Path) -> list[TensorFile]:
    """The checkpoint's weight files: one file, or every shard that the index names and exactly its tensors."""
    if (folder / SINGLE_FILE).is_file():
        return [TensorFile.open(folder / SINGLE_FILE)]
    if not (folder / INDEX_FILE).is_file():
        raise CheckpointError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX_FILE}: weight_map is missing, empty or not an object")
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or Path(shard).name != shard:
            raise CheckpointError(f"{INDEX_FILE}: {tensor!r} is in {shard!r:.60}, which is not a plain file name")
        shards.setdefault(shard, set()).add(tensor)
    for shard, named in sorted(shards.items()):
        if not (folder / shard).is_file():
            raise CheckpointError(f"shard {shard} is missing ({len(named)} tensors, e.g. {min(named)!r})")
    files = []
    for shard, named in sorted(shards.items()):
        file = TensorFile.open(folder / shard)
        if missing := sorted(named - file.entries.keys()):
            raise CheckpointError(f"{shard} lacks {some(missing)}, which {INDEX_FILE} places there")
        if extra := sorted(file.entries.keys() - named):
            raise CheckpointError(f"{shard} holds {some(extra)}, which {INDEX_FILE} does not place there")
        files.append(file)
    return files


def _canonical(files: list[TensorFile]) -> dict[str, Located]:
    tensors: dict[str, Located] = {}
    for file in files:
        for name in file.entries:
            if name.startswith(_VISION):
                continue
            bare = canonical(name)
            if bare in tensors:
                raise CheckpointError(f"tensor {bare!r} is there twice: {tensors[bare][1]!r} and {name!r}")
            tensors[bare] = (file, name)
    return tensors


def _match_mtp(
    spec: ModelSpec, config: Mapping[str, Any], tensors: dict[str, Located], warnings: list[str]
) -> ModelSpec:
    """Settle `mtp_layers` where config.json and the tensors disagree.

    Fine-tuning tools drop the MTP tensors and keep the config, or the reverse. All tensors absent: no MTP. Present
    though the config says 0: ignored. Some present and some absent stays an error (`_check_tensors`).
    """
    present = [name for name in tensors if name.startswith("mtp.")]
    if spec.mtp_layers and not present:
        warnings.append("config.json says mtp_num_hidden_layers 1 but there are no mtp.* tensors: no MTP drafting")
        return replace(spec, mtp_layers=0)
    if present and not spec.mtp_layers:
        text = config.get("text_config", config)
        if text.get("mtp_num_hidden_layers") is None:
            return replace(spec, mtp_layers=1)
        warnings.append(f"config.json says mtp_num_hidden_layers 0: {len(present)} mtp.* tensors are ignored")
        for name in present:
            del tensors[name]
    return spec


def _drop_tied_head(spec: ModelSpec, tensors: dict[str, Located], warnings: list[str]) -> None:
    """Some exporters store the tied head a second time: accepted when it is bit-equal to the embedding."""
    if not spec.tied_embeddings or "lm_head.weight" not in tensors or "embed_tokens.weight" not in tensors:
        return
    head, embedding = (file.tensor(name) for file, name in (tensors["lm_head.weight"], tensors["embed_tokens.weight"]))
    same = head.dtype == embedding.dtype and head.shape == embedding.shape
    if not same or not np.array_equal(head.view(np.uint8), embedding.view(np.uint8)):
        raise CheckpointError("tie_word_embeddings is true but lm_head.weight differs from embed_tokens.weight")
    del tensors["lm_head.weight"]
    warnings.append("lm_head.weight repeats the tied embed_tokens.weight and is ignored")
