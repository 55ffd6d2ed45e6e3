"""What a checkpoint says of its own quantization: ``hf_quant_config.json`` and ``config.json``'s `quantization_config`.

It is a claim to be compared with the tensors, which decide. What must stay true: a method, algorithm or field value
that is not known is refused by name; where the two files contradict each other, both are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edgellm.checkpoint.fields import Fields
from edgellm.errors import CheckpointError

# ModelOpt's names of what a linear layer may be, by ours. Weight-only and activation forms store weights alike.
_ALGORITHMS: Final = {
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_PB_REAL_QUANT": "fp8_block",
}
_MIXED: Final = "MIXED_PRECISION"
_KV: Final = {"FP8": "fp8"}
_COMPRESSED: Final = {
    "nvfp4-pack-quantized": "nvfp4",
    "float-quantized": "fp8",
    "mixed-precision": None,
}
DEFAULT_TILE: Final = (128, 128)


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """One file's claim.

    Attributes:
        where: the file and field it stands in.
        kind: stored form of every linear layer that is not excluded; None: each its own (mixed precision).
        layers: with mixed precision, the stored form of the modules that have one, where the file lists them.
        excluded: patterns of modules that are not quantized.
        kv: "fp8" when the KV cache is to be kept in FP8.
        tile: rows and columns that share a scale, of block FP8.
    """

    where: str
    kind: str | None
    layers: Mapping[str, str]
    excluded: tuple[str, ...]
    kv: str | None
    tile: tuple[int, int] = DEFAULT_TILE


def read_quant_config(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, warnings: list[str]
) -> QuantConfig | None:
    """The claim of both files; None for a checkpoint that makes none.

    Args:
        config: config.json.
        hf_quant_config: hf_quant_config.json; None when there is no such file. It goes first.
        warnings: gets what is worth telling.

    Raises:
        CheckpointError: something is unknown, of the wrong type, or the files contradict each other.
    """
    text = config.get("text_config")
    own = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, Mapping) else None)
    second = None if own is None else _from_config(Fields(own, "config.json.quantization_config"))
    if hf_quant_config is None:
        return second
    outer = Fields(hf_quant_config, "hf_quant_config.json").child("quantization")
    if outer is None:
        raise CheckpointError("hf_quant_config.json.quantization is missing")
    first = _modelopt(outer, outer.get("exclude_modules"), _kv_name(outer, outer.get("kv_cache_quant_algo")))
    return first if second is None else _agreed(first, second, warnings)


def _agreed(first: QuantConfig, second: QuantConfig, warnings: list[str]) -> QuantConfig:
    for name, one, other in (("the form of weights", first.kind, second.kind), ("KV", first.kv, second.kv)):
        if one is not None and other is not None and one != other:
            raise CheckpointError(f"{first.where} and {second.where} contradict each other on {name}: {one}, {other}")
    if first.kv is None and second.kv is not None:
        warnings.append(f"{first.where} says nothing of the KV cache: {second.where} says {second.kv}")
    if second.excluded and set(first.excluded) != set(second.excluded):
        warnings.append(f"{first.where} and {second.where} exclude different modules: the tensors decide")
    return QuantConfig(
        where=first.where,
        kind=first.kind,
        layers=first.layers,
        excluded=first.excluded,
        kv=first.kv or second.kv,
        tile=second.tile,
    )


def _from_config(own: Fields) -> QuantConfig:
    method = own.text("quant_method", "modelopt" if own.get("quant_algo") is not None else "")
    match method:
        case "modelopt" | "modelopt_fp4" | "modelopt_mixed":
            return _modelopt(own, own.get("ignore") or own.get("exclude_modules"), _scheme_kv(own))
        case "compressed-tensors":
            form = own.text("format")
            if form not in _COMPRESSED:
                raise own.error("format", f"is {form!r:.60}; known are {', '.join(_COMPRESSED)}")
            ignored = _patterns(own, "ignore", own.get("ignore"))
            return QuantConfig(own.where, _COMPRESSED[form], {}, ignored, _scheme_kv(own))
        case "fp8":
            tile = own.get("weight_block_size")
            ignored = _patterns(own, "modules_to_not_convert", own.get("modules_to_not_convert"))
            if tile is None:
                return QuantConfig(own.where, "fp8", {}, ignored, None)
            return QuantConfig(own.where, "fp8_block", {}, ignored, None, _tile(own, tile))
        case "":
            raise own.error("quant_method", "is missing")
        case _:
            raise own.error("quant_method", f"is {method!r:.60}; known are modelopt, compressed-tensors and fp8")


def _modelopt(given: Fields, excluded: Any, kv: str | None) -> QuantConfig:
    patterns = _patterns(given, "exclude_modules", excluded)
    name = given.text("quant_algo")
    if name != _MIXED:
        return QuantConfig(given.where, _algorithm(given, name), {}, patterns, kv)
    layers: dict[str, str] = {}
    if (listed := given.child("quantized_layers")) is not None:
        for module in listed.values:
            if (layer := listed.child(module)) is not None:
                layers[module] = _algorithm(layer, layer.text("quant_algo"))
    return QuantConfig(given.where, None, layers, patterns, kv)


def _algorithm(given: Fields, name: str) -> str:
    if name not in _ALGORITHMS:
        raise given.error("quant_algo", f"is {name!r:.60}; known are {', '.join((*_ALGORITHMS, _MIXED))}")
    group = given.get("group_size")
    if _ALGORITHMS[name] == "nvfp4" and group not in (None, 16):
        raise given.error("group_size", f"is {group!r:.40}; NVFP4 has blocks of 16")
    return _ALGORITHMS[name]


def _kv_name(given: Fields, name: Any) -> str | None:
    if name is None:
        return None
    if name not in _KV:
        raise given.error("kv_cache_quant_algo", f"is {name!r:.60}; known is {', '.join(_KV)}")
    return _KV[name]


def _scheme_kv(given: Fields) -> str | None:
    if given.get("kv_cache_scheme") is None or isinstance(given.get("kv_cache_scheme"), str):
        return _kv_name(given, given.get("kv_cache_scheme") or given.get("kv_cache_quant_algo"))
    scheme = Fields(given.get("kv_cache_scheme"), f"{given.where}.kv_cache_scheme")
    if scheme.integer("num_bits") != 8 or scheme.text("type") != "float":
        raise scheme.error("type", "must be float of 8 bits: other KV forms are not supported")
    return "fp8"


def _tile(given: Fields, value: Any) -> tuple[int, int]:
    match value:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise given.error("weight_block_size", f"must be two positive integers, not {value!r:.60}")


def _patterns(given: Fields, name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise given.error(name, "must be an array of strings that are not empty")
    return tuple(value)
