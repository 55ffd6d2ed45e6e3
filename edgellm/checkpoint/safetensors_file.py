"""The safetensors file format: checked, memory-mapped reading and streamed writing.

Layout: 8 bytes little-endian header length, a JSON header (name → dtype, shape, data_offsets), then the tensors' bytes.
Own code rather than the safetensors package because its numpy interface cannot give bfloat16 lazily.
What must stay true: `TensorFile.open` proves the whole layout from the header and the file size alone (nothing
truncated, overlapping, out of range or left over), so reading a tensor later cannot fail; nothing is copied or read
before it is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgellm.errors import CheckpointError

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype("<f8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER: Final = 100_000_000  # bytes; the limit of the reference implementation


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies. `start` and `stop` are byte offsets from the start of the file."""

    dtype: str  # the format's name, a key of DTYPES
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A checked safetensors file, memory-mapped."""

    path: Path
    entries: Mapping[str, TensorEntry]
    _bytes: NDArray[np.uint8]

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """Map `path` and check its header against its size.

        Raises:
            CheckpointError: the file is missing, truncated, has a malformed header, or tensors that overlap, leave
                gaps or reach past the end.
        """
        size = _size(path)
        if size < 8:
            raise CheckpointError(f"{path.name} is truncated: {size} bytes, a safetensors header needs at least 8")
        data = _map(path)
        length = int.from_bytes(data[:8].tobytes(), "little")
        if length > _MAX_HEADER:
            raise CheckpointError(f"{path.name}: header length {length} is over {_MAX_HEADER}: not a safetensors file")
        if 8 + length > size:
            raise CheckpointError(f"{path.name} is truncated: its header ends at byte {8 + length} of {size}")
        header = _decode_header(path.name, data[8 : 8 + length].tobytes())
        entries = {name: _entry(path.name, name, value, 8 + length) for name, value in header.items()}
        _check_layout(path.name, entries, 8 + length, size)
        return cls(path, entries, data)

    def tensor(self, name: str) -> NDArray[Any]:
        """Read-only view [*shape] of tensor `name` (a copy only where the file leaves it unaligned)."""
        entry = self.entries[name]
        array = self._bytes[entry.start : entry.stop].view(np.ndarray).view(DTYPES[entry.dtype]).reshape(entry.shape)
        if array.flags.aligned:
            return array
        array = array.copy()
        array.flags.writeable = False
        return array


def write_safetensors(
    path: Path, layout: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], tensors: Iterable[NDArray[Any]]
) -> None:
    """Write `tensors`, one at a time in the order of `layout`, so that memory holds one tensor.

    Args:
        path: file to create.
        layout: name → (dtype, shape) of every tensor, in the order they come.
        tensors: the arrays; each must have exactly the dtype and shape announced.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in layout.items():
        stop = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    blob = json.dumps(header, separators=(",", ":")).encode()
    blob += b" " * (-len(blob) % 64)  # aligns the first tensor
    with path.open("wb") as file:
        file.write(len(blob).to_bytes(8, "little"))
        file.write(blob)
        for (name, (dtype, shape)), array in zip(layout.items(), tensors, strict=True):
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{name}: got {array.dtype}{array.shape}, announced {dtype}{shape}")
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(file)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error


def _decode_header(file: str, blob: bytes) -> dict[str, Any]:
    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{file}: the header names {twice!r} twice")
        return result

    try:
        header = json.loads(blob, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: the header is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _entry(file: str, name: str, value: object, base: int) -> TensorEntry:
    where = f"{file}: tensor {name!r}"
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: the header entry is not an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{where}: dtype {dtype!r:.40} is not known")
    if not _naturals(shape):
        raise CheckpointError(f"{where}: shape {shape!r:.60} is not a list of non-negative integers")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets {offsets!r:.60} are not [start, stop] with start <= stop")
    size = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != size:
        raise CheckpointError(f"{where}: {offsets[1] - offsets[0]} bytes, but {dtype} {shape} needs {size}")
    return TensorEntry(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**48 for n in value)


def _check_layout(file: str, entries: Mapping[str, TensorEntry], base: int, size: int) -> None:
    end, previous = base, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.stop > size:
            raise CheckpointError(f"{file} is truncated: tensor {name!r} ends at byte {entry.stop} of {size}")
        if entry.start < end:
            raise CheckpointError(f"{file}: tensor {name!r} overlaps {previous!r}")
        if entry.start > end:
            raise CheckpointError(f"{file}: {entry.start - end} unused bytes before tensor {name!r}")
        end, previous = entry.stop, name
    if end != size:
        raise CheckpointError(f"{file}: {size - end} unused bytes after the last tensor")
