"""Recipes: how a checkpoint becomes a bundle. TOML in, a frozen and validated `Recipe` out.

What must stay true: every key of a recipe file is known and in range, and an unknown or wrong one is refused by name.
The recipes that ship with the package are in `edgellm.engines`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args

from edgellm.decode.params import SpeculationParams
from edgellm.errors import ConfigError, RequestError
from edgellm.graph.encodings import Activations, Precision, WeightFormat
from edgellm.graph.tree import MAX_TREE

Target = Literal["ort-cpu"]
KvForm = Literal["f32", "fp8"]
MAX_CONTEXT: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Recipe:
    """What `build_bundle` makes.

    Raises:
        ConfigError: a field is out of range; the message names it.
    """

    target: Target = "ort-cpu"
    precision: Precision = "f32"  # of the large matrices
    block_size: int = 32  # columns that share a scale (int8, int4)
    accuracy_level: int = 4  # 4: products on activations rounded to int8 (fast); 0: on float32 activations
    activations: Activations = "f32"  # "nvfp4": rounded as a device that computes in W4A4 rounds them
    kv: KvForm = "f32"  # "fp8": rows of the KV caches have the values that an FP8 cache holds (stored as float32)
    block_tokens: int = 64  # tokens of a cache block
    tree_nodes: int = 16  # most nodes of one verify, root included
    prefill_chunk: int = 1024  # most tokens of one advance
    context: int | None = None  # longest context; None: the checkpoint's max_position_embeddings
    speculation: SpeculationParams = field(default_factory=SpeculationParams)  # default of a server on this bundle

    def __post_init__(self) -> None:
        _choice("target", self.target, get_args(Target))
        _choice("precision", self.precision, get_args(Precision))
        _choice("activations", self.activations, get_args(Activations))
        _choice("kv", self.kv, get_args(KvForm))
        _choice("block_size", self.block_size, (16, 32, 64, 128, 256))
        _choice("accuracy_level", self.accuracy_level, (0, 4))
        _integer("block_tokens", self.block_tokens, 1, 4096)
        _integer("tree_nodes", self.tree_nodes, 1, MAX_TREE)
        _integer("prefill_chunk", self.prefill_chunk, 1, 8192)
        if self.context is not None:
            _integer("context", self.context, 1, MAX_CONTEXT)
        self.weight_format()

    def weight_format(self) -> WeightFormat:
        """How the matrices are stored and multiplied."""
        return WeightFormat(self.precision, self.block_size, self.accuracy_level, self.activations)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Recipe:
        """Build from a decoded TOML file; `where` names it in errors. Raises `ConfigError`."""
        known = {entry.name for entry in fields(cls)}
        _refuse_unknown(values, known, where)
        given = dict(values)
        try:
            if "speculation" in given:
                given["speculation"] = _speculation(given["speculation"], where)
            return cls(**given)
        except (ConfigError, RequestError) as error:
            raise ConfigError(f"{where}: {error}") from error


def load_recipe(name: str | Path) -> Recipe:
    """The recipe `name`: one that ships with the package (``cpu-int8``), or the path of a TOML file.

    Raises:
        ConfigError: there is no such recipe, it is not TOML, or a key is unknown or out of range.
    """
    path = Path(name)
    shipped = {entry.name.removesuffix(".toml"): entry for entry in _shipped()}
    if str(name) in shipped:
        text, where = shipped[str(name)].read_text(encoding="utf-8"), f"recipe {name}"
    elif path.is_file():
        try:
            text, where = path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"recipe {path} cannot be read: {error}") from error
    else:
        raise ConfigError(f"no recipe {str(name)!r}: neither a TOML file nor one of {', '.join(sorted(shipped))}")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    return Recipe.from_mapping(values, where)


def _shipped() -> list[Any]:
    return [entry for entry in resources.files("edgellm.engines").iterdir() if entry.name.endswith(".toml")]


def _speculation(values: Any, where: str) -> SpeculationParams:
    if not isinstance(values, Mapping):
        raise ConfigError("speculation must be a table")
    _refuse_unknown(values, {entry.name for entry in fields(SpeculationParams)}, f"{where}: [speculation]")
    return SpeculationParams(**values)


def _refuse_unknown(values: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r} (known: {', '.join(sorted(known))})")


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be an integer from {low} to {high}, got {value!r}")
