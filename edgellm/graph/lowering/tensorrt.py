"""Lowering for TensorRT in operators that it compiles to kernels of its own: no plugins.

Activations and the residual stream are 16 bits wide; norms, RoPE, the delta rule and logits are computed in float32.
An NVFP4 matrix is multiplied with activations rounded to NVFP4 on the way in (W4A4), which TensorRT does in one FP4
product. What must stay true: values that are graph outputs are float32 but for rows of the attention caches, whatever
the activations are; with ``matrices="decoded"`` the graph has standard operators only, so that any runtime computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgellm.checkpoint.nvfp4 import BLOCK, E4M3, Nvfp4
from edgellm.checkpoint.quantized_weights import Fp8Weight, Nvfp4Weight
from edgellm.checkpoint.spec import LinearSpec
from edgellm.checkpoint.weights import Rows
from edgellm.errors import ConfigError
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.lowering.base import DeltaForm, DeltaWeights, Ops
from edgellm.graph.lowering.standard import StandardOps
from edgellm.graph.source import Part
from edgellm.graph.weight_file import FP4

Activations = Literal["bf16", "f16", "f32"]
Matrices = Literal["native", "decoded"]
TRT: Final = "trt"  # TensorRT's own operators

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}


@dataclass(frozen=True, slots=True)
class TensorRtForm:
    """How numbers are kept.

    Attributes:
        activations: dtype of activations, of the residual stream and of matrices that are not quantized. TensorRT has
            no attention kernel for "f32", which is for comparing numbers on another runtime.
        matrices: "native" keeps quantized matrices as they are; "decoded" stores the values they stand for.
    """

    activations: Activations = "bf16"
    matrices: Matrices = "native"

    def __post_init__(self) -> None:
        if self.activations not in get_args(Activations):
            raise ConfigError(
                f"activations must be one of {', '.join(get_args(Activations))}, not {self.activations!r}"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the activations."""
        return _DTYPES[self.activations]


class _Stored(NamedTuple):
    """How a matrix is stored; matrices that are alike can be one product."""

    kind: Literal["plain", "nvfp4", "fp8"] = "plain"
    weight_scale: float = 1.0  # of the whole matrix
    input_scale: float = 1.0  # of the activations


@dataclass(frozen=True)
class TensorRtOps(StandardOps):
    """`Ops` for TensorRT: activations [1, tokens, width] of the form's dtype; graph outputs float32.

    Raises:
        ConfigError: (its methods) a matrix is stored in a form that cannot be multiplied natively; it is named.
    """

    form: TensorRtForm = TensorRtForm()

    def embed(self, g: GraphBuilder, ids: str) -> str:
        return g.op(
            "Gather", [self._plain(g, "embed_tokens", [Part("embed_tokens.weight", self.source.spec.vocab)]), ids]
        )

    def project(
        self, g: GraphBuilder, x: str, name: str, parts: Sequence[Part], outputs: Sequence[str] = ()
    ) -> list[str]:
        results: list[str] = []
        for stored, group in groupby(parts, self._stored):
            fused = list(group)
            # The first group has the projection's name; a later one cannot be fused with it and is numbered.
            stem = f"{name}.{len(results)}" if results else name
            product = self._product(g, x, stem, fused, stored)
            results += [product] if len(fused) == 1 else g.split(product, [part.rows for part in fused])
        for value, output in zip(results, outputs, strict=False):
            if output:
                g.cast(value, np.float32, output)
        return results

    def logits(self, g: GraphBuilder, rows: str, part: Part, output: str | None = None) -> str:
        stem = part.tensor.removesuffix(".weight") + ("" if part.index is None else ".some")
        product = self._product(g, g.cast(rows, self.form.dtype), stem, [part], self._stored(part))
        return g.cast(product, np.float32, output)

    def norm(self, g: GraphBuilder, x: str, scale: str, *, epsilon: float | None = None) -> str:
        normed = StandardOps.norm(self, g, g.cast(x, np.float32), scale, epsilon=epsilon)
        return g.cast(normed, self.form.dtype)

    def add_norm(self, g: GraphBuilder, x: str, y: str, scale: str, output: str | None = None) -> tuple[str, str]:
        total, epsilon = g.op("Add", [x, y]), self.source.spec.rms_eps
        wide = g.cast(total, np.float32)
        normed = g.op("RMSNormalization", [wide, scale], output=output, axis=-1, epsilon=epsilon)
        return total, g.cast(normed, self.form.dtype)

    def _stored(self, part: Part) -> _Stored:
        kind = self.source.kind(part.tensor)
        if self.form.matrices == "decoded" or kind in ("bf16", "f16", "f32"):
            return _Stored()
        weight = self.source.weight(part.tensor)
        if isinstance(weight, Nvfp4Weight):
            if weight.input_scale is None:
                raise ConfigError(
                    f"{part.tensor} is NVFP4 without an input_scale (W4A16): TensorRT would decode it in every run; "
                    "quantize the checkpoint with texts to calibrate on"
                )
            return _Stored("nvfp4", float(_global_scale(weight.matrix)), float(weight.input_scale))
        if isinstance(weight, Fp8Weight) and len(weight.scales) == 1 and weight.input_scale is not None:
            return _Stored("fp8", float(weight.scales[0, 0]), float(weight.input_scale))
        lacking = isinstance(weight, Fp8Weight) and weight.input_scale is None
        problem = "without an input_scale" if lacking else "with a scale per row or tile"
        raise ConfigError(f"{part.tensor} is {kind} {problem}: TensorRT has no product for it")

    def _product(self, g: GraphBuilder, x: str, stem: str, parts: Sequence[Part], stored: _Stored) -> str:
        match stored.kind:
            case "plain":
                weight = self._plain(g, stem, parts)
            case "nvfp4":
                x, weight = self._rounded_to_nvfp4(g, x, stored), self._nvfp4(g, stem, parts, stored)
            case "fp8":
                x, weight = self._rounded_to_fp8(g, x, stored), self._fp8(g, stem, parts, stored)
        return g.op("MatMul", [x, g.op("Transpose", [weight], perm=[1, 0])])

    def _rounded_to_nvfp4(self, g: GraphBuilder, x: str, stored: _Stored) -> str:
        factor = g.const(stored.input_scale, np.float32)
        kinds = {"axis": -1, "block_size": BLOCK, "scale_type": TensorProto.FLOAT8E4M3FN}
        codes, scales = g.ops("TRT_FP4DynamicQuantize", [x, factor], 2, domain=TRT, **kinds)
        return self._decoded(g, codes, scales, factor)

    def _nvfp4(self, g: GraphBuilder, stem: str, parts: Sequence[Part], stored: _Stored) -> str:
        def packed() -> Iterator[NDArray[Any]]:
            for matrix, rows in self._nvfp4_pieces(parts):
                yield matrix.packed[rows]

        def scales() -> Iterator[NDArray[Any]]:
            for matrix, rows in self._nvfp4_pieces(parts):
                yield matrix.block_scales[rows]

        rows, columns = self._shape(parts)
        codes = g.stream(f"{stem}.e2m1", FP4, [rows, columns], packed)
        blocks = g.stream(f"{stem}.scales", E4M3, [rows, columns // BLOCK], scales)
        return self._decoded(g, codes, blocks, g.const(stored.weight_scale, np.float32))

    def _decoded(self, g: GraphBuilder, codes: str, scales: str, factor: str) -> str:
        """codes * (scales * factor): the form of NVFP4 that TensorRT takes into a product. The factor stays float32:
        float16 has no normal numbers as small as it is."""
        whole = g.op("DequantizeLinear", [scales, factor])
        return g.cast(g.op("DequantizeLinear", [codes, whole], axis=-1, block_size=BLOCK), self.form.dtype)

    def _nvfp4_pieces(self, parts: Sequence[Part]) -> Iterator[tuple[Nvfp4, Rows]]:
        for part in parts:
            weight = self.source.weight(part.tensor)
            if not isinstance(weight, Nvfp4Weight):
                raise TypeError(f"{part.tensor} is {weight.kind}, not NVFP4")
            for rows in part.selections(weight):
                yield weight.matrix, rows

    def _rounded_to_fp8(self, g: GraphBuilder, x: str, stored: _Stored) -> str:
        factor = g.const(stored.input_scale, np.float32)
        codes = g.op("QuantizeLinear", [g.cast(x, np.float32), factor], output_dtype=TensorProto.FLOAT8E4M3FN)
        return g.cast(g.op("DequantizeLinear", [codes, factor]), self.form.dtype)

    def _fp8(self, g: GraphBuilder, stem: str, parts: Sequence[Part], stored: _Stored) -> str:
        def codes() -> Iterator[NDArray[Any]]:
            for part in parts:
                weight = self.source.weight(part.tensor)
                if not isinstance(weight, Fp8Weight):
                    raise TypeError(f"{part.tensor} is {weight.kind}, not FP8")
                for rows in part.selections(weight):
                    yield weight.data[rows]

        name = g.stream(f"{stem}.e4m3", E4M3, self._shape(parts), codes)
        return g.cast(g.op("DequantizeLinear", [name, g.const(stored.weight_scale, np.float32)]), self.form.dtype)

    def _plain(self, g: GraphBuilder, stem: str, parts: Sequence[Part]) -> str:
        """Initializer [rows, in] of the activations' dtype."""
        dtype = self.form.dtype

        def pieces() -> Iterator[NDArray[Any]]:
            for part in parts:
                for piece in part.pieces(self.source):
                    yield piece.astype(dtype)

        return g.stream(f"{stem}.{self.form.activations}", dtype, self._shape(parts), pieces)

    def _shape(self, parts: Sequence[Part]) -> list[int]:
        """(rows, columns) of the stacked parts."""
        return [sum(part.rows for part in parts), self.source.spec.expected_tensors()[parts[0].tensor][1]]


def _global_scale(matrix: Nvfp4) -> np.float32:
    """What block scales are multiplied with. Of a scale stored as its reciprocal it is rounded once more."""
    return np.float32(1) / matrix.global_scale if matrix.divides else matrix.global_scale


@dataclass(frozen=True, slots=True)
class FloatDelta:
    """`DeltaForm` that runs `inner` in float32 whatever the activations are."""

    inner: DeltaForm

    def name_qkv(self, g: GraphBuilder, spec: LinearSpec, layer: int) -> str:
        return self.inner.name_qkv(g, spec, layer)

    def mix(self, g: GraphBuilder, ops: Ops, layer: int, qkv: str, b: str, a: str, weights: DeltaWeights) -> str:
        qkv, b, a = (g.cast(value, np.float32) for value in (qkv, b, a))
        return self.inner.mix(g, StandardOps(ops.source), layer, qkv, b, a, weights)
