"""Published blocks and snapshots as bytes, for prefixes that survive a restart.

A JSON header line (kind, fingerprint, length, shapes), then the values. What must stay true: bytes of another bundle,
layout or size are refused before anything is made of them. Content is not hashed here: whoever stores does it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.ort_memory import Block, Pools, Snapshot
from edgellm.errors import BundleError

Array = NDArray[Any]
Shape = tuple[int, ...]
Form = tuple[Shape, np.dtype[Any]]


def pack_block(fingerprint: str, block: Block) -> bytes:
    """Bytes of a block of the ONNX Runtime executor."""
    return pack("block", fingerprint, block.tokens, [block.rows])


def pack_snapshot(fingerprint: str, kept: Snapshot) -> bytes:
    """Bytes of a snapshot of the ONNX Runtime executor."""
    return pack("snapshot", fingerprint, kept.length, [kept.conv, kept.state, kept.hidden])


def unpack_block(fingerprint: str, data: bytes, pools: Pools, block_tokens: int) -> Block:
    """Inverse of `pack_block`. Raises like `unpack`."""
    parts, _, heads, _, dim = pools.kv.shape

    def forms(tokens: int) -> list[Form]:
        return [((parts, heads, tokens, dim), pools.kv.dtype)]

    tokens, (rows,) = unpack("block", fingerprint, data, block_tokens, forms)
    block = pools.new_block(tokens)
    block.rows[...] = rows
    return block


def unpack_snapshot(fingerprint: str, data: bytes, pools: Pools, hidden: int) -> Snapshot:
    """Inverse of `pack_snapshot`; `hidden` is the size of the boundary row. Raises like `unpack`."""
    conv, state = ((array.shape[0], *array.shape[2:]) for array in (pools.conv, pools.state))
    forms: list[Form] = [(shape, pools.state.dtype) for shape in (conv, state, (hidden,))]
    length, arrays = unpack("snapshot", fingerprint, data, 1 << 40, lambda _: forms)
    return Snapshot(length, *(array.copy() for array in arrays))


def pack(kind: str, fingerprint: str, length: int, arrays: Sequence[Array]) -> bytes:
    """Bytes of `arrays`, which stand for `length` tokens."""
    header = {"kind": kind, "fingerprint": fingerprint, "length": length, "shapes": [array.shape for array in arrays]}
    return b"\n".join([json.dumps(header).encode(), b"".join(array.tobytes() for array in arrays)])


def unpack(
    kind: str, fingerprint: str, data: bytes, most: int, forms: Callable[[int], Sequence[Form]]
) -> tuple[int, list[Array]]:
    """Inverse of `pack`: (length, arrays over the memory of `data`).

    Args:
        most: the longest length.
        forms: length → shape and dtype of every array.

    Raises:
        BundleError: the bytes are not a `kind` of this bundle and layout.
    """
    fields, body = _open(kind, fingerprint, data)
    length = _length(fields, most)
    return length, _arrays(fields, body, forms(length))


def _open(kind: str, fingerprint: str, data: bytes) -> tuple[Mapping[str, Any], memoryview]:
    end = data.find(b"\n")
    try:
        fields = json.loads(data[: max(end, 0)])
    except (ValueError, RecursionError) as error:
        raise BundleError(f"stored {kind}: the header is not JSON") from error
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise BundleError(f"stored {kind}: the bytes are not a {kind}")
    if fields.get("fingerprint") != fingerprint:
        raise BundleError(f"stored {kind}: it belongs to {fields.get('fingerprint')!r:.90}, not to {fingerprint!r}")
    return fields, memoryview(data)[end + 1 :]


def _length(fields: Mapping[str, Any], most: int) -> int:
    length = fields.get("length")
    if type(length) is not int or not 1 <= length <= most:
        raise BundleError(f"stored {fields['kind']}: length {length!r:.40} is outside 1 to {most}")
    return length


def _arrays(fields: Mapping[str, Any], body: memoryview, forms: Sequence[Form]) -> list[Array]:
    shapes = [shape for shape, _ in forms]
    if fields.get("shapes") != [list(shape) for shape in shapes]:
        raise BundleError(f"stored {fields['kind']}: shapes {fields.get('shapes')!r:.200} are not {shapes}")
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in forms]
    if len(body) != sum(sizes):
        raise BundleError(f"stored {fields['kind']}: {len(body)} bytes of values, {sum(sizes)} expected")
    ends = np.cumsum(sizes)  # parts may be unaligned: they stand behind the header
    return [
        np.frombuffer(body[end - size : end], dtype).reshape(shape)
        for end, size, (shape, dtype) in zip(ends, sizes, forms, strict=True)
    ]
