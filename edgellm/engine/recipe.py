"""Recipes: how a checkpoint becomes a bundle. TOML in, a frozen and validated `Recipe` out.

What must stay true: every key of a recipe file is known and in range, and an unknown or wrong one is refused by name.
The recipes that ship with the package are in `edgellm.engines`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args

from edgellm.decode.params import SpeculationParams
from edgellm.errors import ConfigError, RequestError
from edgellm.graph.encodings import Activations, Precision, WeightFormat
from edgellm.graph.lowering.block_chain import CHAIN_BLOCK
from edgellm.graph.tree import MAX_TREE

Target = Literal["ort-cpu", "tensorrt", "tensorrt-rtx"]
KvForm = Literal["f32", "fp8", "bf16", "f16"]
HalfPrecision = Literal["bf16", "f16"]
EngineForm = Literal["whole", "split", "plugins"]
MAX_CONTEXT: Final = 1 << 24
PAGE_TILE: Final = 32  # tokens that attention kernels read at a time
_ALIGNED_NODES: Final = 4  # capsules of so many nodes and any multiple of 16 value heads start on 256 bytes
_ORT_ONLY: Final = ("precision", "block_size", "accuracy_level", "activations")


@dataclass(frozen=True, slots=True)
class TensorRtRecipe:
    """What only the targets tensorrt and tensorrt-rtx have: matrices stay as the checkpoint stores them.

    Raises:
        ConfigError: a field is out of range; the message names it.
    """

    compute_capability: str  # of the GPU that runs the engines, "SM110"
    # "whole": one engine per graph, TensorRT's own kernels only; "split": an engine between any two token mixings, with
    # this library's kernels there, which is what the device executor runs; "plugins": the same, and one engine for the
    # step over a tree, which has its kernels as plugins.
    form: EngineForm = "whole"
    activations: HalfPrecision = "bf16"  # and the residual stream, and matrices that are not quantized
    profiles: tuple[int, ...] = (2, MAX_TREE)  # tokens of a verify or draft that kernels are chosen for
    side_by_side_fusion: bool = True  # False: what TensorRT 10.13 needs on sm_110
    splits: int = 10  # parts that attention cuts a context into (split form): with the KV heads, twice the GPU's SMs

    def __post_init__(self) -> None:
        _choice("tensorrt.form", self.form, get_args(EngineForm))
        _integer("tensorrt.splits", self.splits, 1, 64)
        _choice("tensorrt.activations", self.activations, get_args(HalfPrecision))
        if not isinstance(self.compute_capability, str) or not re.fullmatch(r"SM\d{2,3}", self.compute_capability):
            raise ConfigError(
                f"tensorrt.compute_capability must have the form 'SM110', got {self.compute_capability!r}"
            )
        if not self.profiles or list(self.profiles) != sorted(set(self.profiles)):
            raise ConfigError(f"tensorrt.profiles must be ascending numbers of tokens, got {list(self.profiles)}")
        for tokens in self.profiles:
            _integer("tensorrt.profiles", tokens, 1, MAX_TREE)
        if not isinstance(self.side_by_side_fusion, bool):
            raise ConfigError(f"tensorrt.side_by_side_fusion must be true or false, got {self.side_by_side_fusion!r}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What `build_bundle` makes.

    Raises:
        ConfigError: a field is out of range; the message names it.
    """

    target: Target = "ort-cpu"
    # Of ort-cpu alone:
    precision: Precision = "f32"  # of the large matrices
    block_size: int = 32  # columns that share a scale (int8, int4)
    accuracy_level: int = 4  # 4: products on activations rounded to int8 (fast); 0: on float32 activations
    activations: Activations = "f32"  # "nvfp4": rounded as a device that computes in W4A4 rounds them
    # Of all targets:
    kv: KvForm = "f32"  # "fp8": rows of the KV caches have the values that an FP8 cache holds (stored as float32)
    block_tokens: int = 64  # tokens of a cache block
    tree_nodes: int = 16  # most nodes of one verify, root included
    prefill_chunk: int = 1024  # most tokens of one advance
    context: int | None = None  # longest context; None: the checkpoint's max_position_embeddings
    speculation: SpeculationParams = field(default_factory=SpeculationParams)  # default of a server on this bundle
    tensorrt: TensorRtRecipe | None = None

    def __post_init__(self) -> None:
        _choice("target", self.target, get_args(Target))
        _choice("precision", self.precision, get_args(Precision))
        _choice("activations", self.activations, get_args(Activations))
        _choice("block_size", self.block_size, (16, 32, 64, 128, 256))
        _choice("accuracy_level", self.accuracy_level, (0, 4))
        _integer("block_tokens", self.block_tokens, 1, 4096)
        _integer("tree_nodes", self.tree_nodes, 1, MAX_TREE)
        _integer("prefill_chunk", self.prefill_chunk, 1, 8192)
        if self.context is not None:
            _integer("context", self.context, 1, MAX_CONTEXT)
        if self.target == "ort-cpu":
            _choice("kv", self.kv, ("f32", "fp8"))
            if self.tensorrt is not None:
                raise ConfigError("[tensorrt] is not used by target ort-cpu")
            self.weight_format()
        else:
            self._check_tensorrt()

    def _check_tensorrt(self) -> None:
        form = self.tensorrt
        if form is None:
            raise ConfigError(f"target {self.target} needs the table [tensorrt] with compute_capability")
        for entry in fields(self):
            if entry.name in _ORT_ONLY and getattr(self, entry.name) != entry.default:
                raise ConfigError(_unused(entry.name, self.target))
        if form.form != "whole":
            self._check_split(form)
        elif self.kv != form.activations:
            raise ConfigError(
                f"kv must be {form.activations}, as tensorrt.activations are, got {self.kv!r}: TensorRT's attention "
                "takes rows of one dtype and has no kernel for rows in FP8"
            )
        if self.tree_nodes != form.profiles[-1]:
            raise ConfigError(
                f"tree_nodes must be the largest of tensorrt.profiles, {form.profiles[-1]}, got {self.tree_nodes}"
            )
        if self.prefill_chunk % CHAIN_BLOCK:
            raise ConfigError(f"prefill_chunk must be a multiple of {CHAIN_BLOCK}, got {self.prefill_chunk}")

    def _check_split(self, form: TensorRtRecipe) -> None:
        if form.form == "plugins" and self.target != "tensorrt":
            raise ConfigError(f"tensorrt.form plugins needs target tensorrt: {self.target} has no plugins from Python")
        if form.form == "plugins" and self.tree_nodes % _ALIGNED_NODES:
            raise ConfigError(
                f"tree_nodes must be a multiple of {_ALIGNED_NODES} in the form plugins, got {self.tree_nodes}: what a "
                "tree leaves behind for each layer is bound to the engine, which takes aligned addresses alone"
            )
        if self.kv != "fp8":
            raise ConfigError(f"kv must be fp8 in the form {form.form}, whose kernels read it, got {self.kv!r}")
        if form.profiles not in ((1, self.tree_nodes), (1,)):
            raise ConfigError(
                f"tensorrt.profiles must be [1, {self.tree_nodes}] in the form {form.form}, one token and tree_nodes, "
                f"got {list(form.profiles)}"
            )
        if self.block_tokens % PAGE_TILE:
            raise ConfigError(
                f"block_tokens must be a multiple of {PAGE_TILE} in the form {form.form}, got {self.block_tokens}"
            )

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
            _choice("target", given.get("target", "ort-cpu"), get_args(Target))
            if given.get("target", "ort-cpu") != "ort-cpu":
                for name in _ORT_ONLY:
                    if name in given:
                        raise ConfigError(_unused(name, given["target"]))
            if "tensorrt" in given:
                given["tensorrt"] = _tensorrt(given["tensorrt"])
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


def _tensorrt(values: Any) -> TensorRtRecipe:
    if not isinstance(values, Mapping):
        raise ConfigError("tensorrt must be a table")
    _refuse_unknown(values, {entry.name for entry in fields(TensorRtRecipe)}, "[tensorrt]")
    given = dict(values)
    if "compute_capability" not in given:
        raise ConfigError("tensorrt.compute_capability is missing")
    if not isinstance(given.get("profiles", []), list):
        raise ConfigError(f"tensorrt.profiles must be an array, got {given['profiles']!r}")
    if "profiles" in given:
        given["profiles"] = tuple(given["profiles"])
    return TensorRtRecipe(**given)


def _unused(name: str, target: str) -> str:
    return f"{name} is not used by target {target}: its matrices stay as the checkpoint stores them"


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
