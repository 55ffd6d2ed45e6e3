"""From the tensors of a checkpoint's files to the matrices of a model: which tensors belong together, and as what.

Decided for every matrix by the dtype of its weight and by the scales beside it, never by the config. What must stay
true: every tensor is used or named in an error; a weight that lacks a scale, or has one that its dtype has no use for,
is an error; parts that other runtimes fuse are quantized alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.module_patterns import FUSED
from edgellm.checkpoint.nvfp4 import BLOCK, Nvfp4
from edgellm.checkpoint.quantized_weights import Fp8BlockWeight, Fp8Weight, Nvfp4Weight
from edgellm.checkpoint.safetensors_file import TensorEntry, TensorFile
from edgellm.checkpoint.weights import PlainWeight, Weight, WeightKind
from edgellm.errors import CheckpointError

Located = tuple[TensorFile, str]  # a file and a tensor's name in it
Form = Literal["plain", "nvfp4", "nvfp4_ct", "fp8", "fp8_block"]  # _ct: as compressed-tensors writes it
PLAIN: Final[Mapping[str, WeightKind]] = {"BF16": "bf16", "F16": "f16", "F32": "f32"}

# Tensors beside a weight: (needed, allowed).
_SCALES: Final[Mapping[Form, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "plain": ((), ()),
    "nvfp4": (("weight_scale", "weight_scale_2"), ("input_scale",)),
    "nvfp4_ct": (("weight_scale", "weight_global_scale"), ("input_global_scale",)),
    "fp8": (("weight_scale",), ("input_scale",)),
    "fp8_block": (("weight_scale_inv",), ("input_scale",)),
}
_ALL_SCALES: Final = frozenset(leaf for needed, allowed in _SCALES.values() for leaf in (*needed, *allowed))
# Scales of the KV cache, as (module below self_attn, leaf): the spellings in use.
_KV_SPELLINGS: Final = {
    "k": ("k_proj.k_scale", "attn.k_scale", "k_scale"),
    "v": ("v_proj.v_scale", "attn.v_scale", "v_scale"),
    "q": ("q_proj.q_scale", "attn.q_scale", "q_scale"),
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight with the tensors that belong to it."""

    name: str  # canonical
    shape: tuple[int, ...]  # of the values
    form: Form
    weight: Located
    scales: Mapping[str, Located]

    @property
    def kind(self) -> WeightKind:
        """How it is stored."""
        match self.form:
            case "plain":
                return PLAIN[_entry(self.weight).dtype]
            case "nvfp4_ct":
                return "nvfp4"
            case form:
                return form

    def load(self, tile: tuple[int, int]) -> Weight:
        """The weight, its data still in the mapped file. `tile`: of block FP8.

        Raises:
            CheckpointError: a scale is not a positive number, or of a wrong shape.
        """
        data = _array(self.weight)
        match self.form:
            case "plain":
                return PlainWeight(data, self.kind)
            case "nvfp4":
                blocks, factor = _array(self.scales["weight_scale"]), _positive(self.scales["weight_scale_2"])
                return Nvfp4Weight(Nvfp4(data, blocks, factor), self._given("input_scale"))
            case "nvfp4_ct":
                inverse = self._given("input_global_scale")
                blocks, divisor = _array(self.scales["weight_scale"]), _positive(self.scales["weight_global_scale"])
                return Nvfp4Weight(
                    Nvfp4(data, blocks, divisor, divides=True), None if inverse is None else np.float32(1) / inverse
                )
            case "fp8":
                scales = _array(self.scales["weight_scale"]).astype(np.float32)
                if scales.size not in (1, self.shape[0]):
                    raise self._wrong("weight_scale", f"has shape {list(scales.shape)}: not one, nor one per row")
                return Fp8Weight(data, scales.reshape(-1, 1), self._given("input_scale"))
            case "fp8_block":
                scales = _array(self.scales["weight_scale_inv"]).astype(np.float32)
                rows, columns = self.shape
                if scales.shape != (-(-rows // tile[0]), -(-columns // tile[1])):
                    raise self._wrong("weight_scale_inv", f"has shape {list(scales.shape)} with tiles of {list(tile)}")
                return Fp8BlockWeight(data, scales, tile)

    def _given(self, leaf: str) -> np.float32 | None:
        return _positive(self.scales[leaf]) if leaf in self.scales else None

    def _wrong(self, leaf: str, problem: str) -> CheckpointError:
        file, name = self.scales[leaf]
        return CheckpointError(f"{file.path.name}: tensor {name!r} {problem}")


@dataclass(frozen=True, slots=True)
class Assembly:
    """All of a model's tensors.

    Attributes:
        matrices: every expected tensor by its canonical name.
        kv_scales: layer name (``layers.3.self_attn``) → (key, value) scales of an FP8 cache: value = e4m3 · scale.
    """

    matrices: Mapping[str, Matrix]
    kv_scales: Mapping[str, tuple[np.float32, np.float32]]

    @property
    def quantized(self) -> dict[str, Form]:
        """Modules that are not plain."""
        found = {name: matrix.form for name, matrix in self.matrices.items() if matrix.form != "plain"}
        return {name.removesuffix(".weight"): form for name, form in found.items()}


def assemble(expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Located]) -> Assembly:
    """Sort `tensors` (by canonical name) into the model that has the tensors `expected` (name → shape).

    Raises:
        CheckpointError: something is missing, left over, misshapen or of a dtype that has no meaning here.
    """
    left = dict(tensors)
    if missing := [name for name in expected if name not in left and f"{name}_packed" not in left]:
        raise CheckpointError(f"the checkpoint lacks {some(missing)}")
    matrices = {name: _take(name, shape, left) for name, shape in expected.items()}
    kv_scales = _take_kv_scales(expected, left)
    if left:
        names = [name for _, name in left.values()]
        raise CheckpointError(f"the checkpoint has tensors that the config does not account for: {some(names)}")
    _check_fused(matrices)
    return Assembly(matrices, kv_scales)


def some(names: list[str]) -> str:
    """The first names of a list and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more tensors"


def _take(name: str, shape: tuple[int, ...], left: dict[str, Located]) -> Matrix:
    """Take the weight `name` and its scales out of `left`."""
    packed = name not in left
    weight = left.pop(f"{name}_packed" if packed else name)
    module = name.removesuffix(".weight")
    beside = {leaf: left.pop(f"{module}.{leaf}") for leaf in _ALL_SCALES if f"{module}.{leaf}" in left}
    entry = _entry(weight)
    where = f"{weight[0].path.name}: tensor {weight[1]!r}"
    form = _form(entry.dtype, beside, packed=packed)
    if form is None:
        raise CheckpointError(f"{where} is {entry.dtype}; readable are {', '.join(PLAIN)}, NVFP4 (U8) and F8_E4M3")
    needed, allowed = _SCALES[form]
    if lacking := [leaf for leaf in needed if leaf not in beside]:
        raise CheckpointError(f"{where} is {entry.dtype} but has no {' and no '.join(lacking)}")
    if useless := [beside[leaf][1] for leaf in beside if leaf not in (*needed, *allowed)]:
        raise CheckpointError(f"{where} is {entry.dtype}: {some(useless)} beside it has no meaning")
    if form != "plain" and (len(shape) != 2 or name == "embed_tokens.weight"):
        raise CheckpointError(f"{where} is {entry.dtype}: this tensor is expected unquantized")
    _check_shapes(where, form, shape, entry, {leaf: _entry(located) for leaf, located in beside.items()})
    return Matrix(name, shape, form, weight, beside)


def _form(dtype: str, beside: Mapping[str, Located], *, packed: bool) -> Form | None:
    if packed:
        return "nvfp4_ct" if dtype == "U8" else None
    if dtype in PLAIN:
        return "plain"
    if dtype == "U8":
        return "nvfp4"
    if dtype == "F8_E4M3":
        return "fp8_block" if "weight_scale_inv" in beside else "fp8"
    return None


def _check_shapes(
    where: str, form: Form, shape: tuple[int, ...], entry: TensorEntry, beside: Mapping[str, TensorEntry]
) -> None:
    stored = shape
    if form.startswith("nvfp4"):
        rows, columns = shape
        if columns % BLOCK:
            raise CheckpointError(f"{where} has {columns} columns: NVFP4 needs a multiple of {BLOCK}")
        stored, scales = (rows, columns // 2), beside["weight_scale"]
        if scales.dtype != "F8_E4M3" or scales.shape != (rows, columns // BLOCK):
            wanted = [rows, columns // BLOCK]
            raise CheckpointError(
                f"{where}: its weight_scale is {scales.dtype} {list(scales.shape)}, not F8_E4M3 {wanted}"
            )
    if entry.shape != stored:
        raise CheckpointError(f"{where} has shape {list(entry.shape)}, config.json implies {list(stored)}")


def _take_kv_scales(
    expected: Mapping[str, tuple[int, ...]], left: dict[str, Located]
) -> dict[str, tuple[np.float32, np.float32]]:
    found: dict[str, tuple[np.float32, np.float32]] = {}
    layers = dict.fromkeys(name.rpartition(".k_proj.")[0] for name in expected if name.endswith(".k_proj.weight"))
    for layer in layers:
        scales = {}
        for part, spellings in _KV_SPELLINGS.items():
            names = [f"{layer}.{spelling}" for spelling in spellings if f"{layer}.{spelling}" in left]
            if len(names) > 1:
                raise CheckpointError(f"the {part} scale of {layer} is there under several names: {some(names)}")
            if names:
                scales[part] = _positive(left.pop(names[0]))
        if ("k" in scales) != ("v" in scales):
            raise CheckpointError(f"the checkpoint has only the {'k' if 'k' in scales else 'v'} scale of {layer}")
        if "k" in scales:
            found[layer] = (scales["k"], scales["v"])
    if 0 < len(found) < len(layers):
        lacking = [layer for layer in layers if layer not in found and not layer.startswith("mtp.")]
        if lacking:
            raise CheckpointError(f"the checkpoint has KV scales, but none for {some(lacking)}")
    return found


def _check_fused(matrices: Mapping[str, Matrix]) -> None:
    for parts in FUSED.values():
        first = f".{parts[0]}.weight"
        for stem in [name.removesuffix(first) for name in matrices if name.endswith(first)]:
            forms = {part: matrices[f"{stem}.{part}.weight"].form for part in parts}
            if len(set(forms.values())) > 1:
                shown = ", ".join(f"{part} {form}" for part, form in forms.items())
                raise CheckpointError(f"{stem} is quantized in part: {shown}. Parts that are fused must be alike")


def _positive(located: Located) -> np.float32:
    value = _array(located).astype(np.float32)
    if value.size != 1 or not (np.isfinite(value).all() and (value > 0).all()):
        file, name = located
        shown = value.ravel()[:4].tolist()
        raise CheckpointError(f"{file.path.name}: tensor {name!r} must be one positive number, not {shown}")
    return np.float32(value.reshape(()))


def _entry(located: Located) -> TensorEntry:
    file, name = located
    return file.entries[name]


def _array(located: Located) -> NDArray[Any]:
    file, name = located
    return file.tensor(name)
