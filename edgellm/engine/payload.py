"""Bytes of published blocks and snapshots for persistence: a JSON header line, then raw arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.errors import BundleError


def pack(fingerprint: str, arrays: Mapping[str, NDArray[Any]], length: int = 0) -> bytes:
    """Serialize arrays with the identity of the executor they belong to."""
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    header = json.dumps({"fingerprint": fingerprint, "length": length, "arrays": shapes}).encode()
    return b"\n".join([header, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())])


def unpack(fingerprint: str, data: bytes) -> tuple[dict[str, NDArray[Any]], int]:
    """Arrays and length of `pack`.

    Raises:
        BundleError: the payload is of another bundle or layout, or its size does not match its header.
    """
    header, _, body = data.partition(b"\n")
    fields = json.loads(header)
    if fields["fingerprint"] != fingerprint:
        raise BundleError(f"cached prefix belongs to {fields['fingerprint']}, this executor is {fingerprint}")
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for name, (dtype, shape) in fields["arrays"].items():
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if offset + size > len(body):
            raise BundleError(f"cached prefix is truncated in {name!r}")
        arrays[name] = np.frombuffer(body, dtype, int(np.prod(shape)), offset).reshape(shape)
        offset += size
    return arrays, int(fields["length"])
