"""`WeightFile`: the one file of raw tensors that all graphs of a bundle refer to as ONNX external data.

What must stay true: a name is written once, whichever graph asks for it first; every tensor starts at a multiple of
4096 bytes, so that a runtime can map it; memory holds one weight, or one piece of a streamed weight, at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto

ALIGNMENT: Final = 4096
AnyArray = NDArray[Any]
FP4: Final = np.dtype(ml_dtypes.float4_e2m1fn)  # pieces are u8, two values per byte, the even column low

_TENSOR_TYPES: Final[dict[np.dtype[Any], int]] = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(ml_dtypes.bfloat16): TensorProto.BFLOAT16,
    np.dtype(ml_dtypes.float8_e4m3fn): TensorProto.FLOAT8E4M3FN,
    FP4: TensorProto.FLOAT4E2M1,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}


def tensor_type(dtype: DTypeLike) -> int:
    """The ONNX element type of a NumPy dtype."""
    return _TENSOR_TYPES[np.dtype(dtype)]


class WeightFile:
    """Append-only. Use as a context manager; the file is complete when it is left.

    Args:
        path: file to create, beside the graphs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors: dict[str, TensorProto] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # name → offset, bytes
        self._file: BinaryIO = path.open("wb")
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, name: str, load: Callable[[], AnyArray]) -> TensorProto:
        """The tensor `name`; `load` makes it when it is not in the file yet."""
        if name in self._tensors:
            return self._tensors[name]
        array = load()
        return self.stream(name, array.dtype, array.shape, lambda: [array])

    def stream(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], pieces: Callable[[], Iterable[AnyArray]]
    ) -> TensorProto:
        """The tensor `name` of `shape`; `pieces` makes it in order, piece by piece, when it is not in the file yet.

        A tensor of dtype `FP4` is made of u8 pieces with two values per byte.
        """
        if name not in self._tensors:
            self._write(b"\0" * (-self._end % ALIGNMENT))
            start, packed = self._end, np.dtype(dtype) == FP4
            stored = np.dtype(np.uint8 if packed else dtype)
            for piece in pieces():
                if piece.dtype != stored:
                    raise TypeError(f"weight {name!r} is declared {np.dtype(dtype)} but a piece is {piece.dtype}")
                if piece.size:
                    self._write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
            size = int(np.prod(shape, dtype=np.int64)) * stored.itemsize // (2 if packed else 1)
            if self._end - start != size:
                raise ValueError(f"weight {name!r} {tuple(shape)} takes {size} bytes but {self._end - start} were made")
            self._spans[name] = (start, size)
            self._tensors[name] = self._reference(name, tensor_type(dtype), shape, start, size)
        return self._tensors[name]

    def view(self, name: str, of: str, shape: Sequence[int]) -> TensorProto:
        """A tensor over the bytes of `of` with another shape of as many elements."""
        if np.prod(shape, dtype=np.int64) != np.prod(self._tensors[of].dims, dtype=np.int64):
            raise ValueError(f"{name!r} {tuple(shape)} does not have as many elements as {of!r}")
        return self._reference(name, self._tensors[of].data_type, shape, *self._spans[of])

    def _write(self, data: bytes | memoryview) -> None:
        self._end += self._file.write(data)

    def _reference(self, name: str, kind: int, shape: Sequence[int], offset: int, size: int) -> TensorProto:
        tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.path.name), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
