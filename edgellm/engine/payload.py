"""Published blocks and snapshots as bytes, for prefixes that survive a restart.

A JSON header line (kind, fingerprint, length, shapes), then the float32 values. What must stay true: bytes of another
bundle, layout or size are refused before anything is made of them. Content is not hashed here: whoever stores does it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.engine.ort_memory import Block, Pools, Snapshot
from edgellm.errors import BundleError

F32 = NDArray[np.float32]
Shape = tuple[int, ...]


def pack_block(fingerprint: str, block: Block) -> bytes:
    """Bytes of a block."""
    return _pack("block", fingerprint, block.tokens, [block.rows])


def pack_snapshot(fingerprint: str, kept: Snapshot) -> bytes:
    """Bytes of a snapshot."""
    return _pack("snapshot", fingerprint, kept.length, [kept.conv, kept.state, kept.hidden])


def unpack_block(fingerprint: str, data: bytes, pools: Pools, block_tokens: int) -> Block:
    """Inverse of `pack_block`.

    Raises:
        BundleError: the bytes are not a block of this bundle and layout.
    """
    fields, body = _open("block", fingerprint, data)
    tokens = _length(fields, block_tokens)
    parts, _, heads, _, dim = pools.kv.shape
    rows = _arrays(fields, body, [(parts, heads, tokens, dim)])[0]
    block = pools.new_block(tokens)
    block.rows[...] = rows
    return block


def unpack_snapshot(fingerprint: str, data: bytes, pools: Pools, hidden: int) -> Snapshot:
    """Inverse of `pack_snapshot`; `hidden` is the size of the boundary row. Raises like `unpack_block`."""
    fields, body = _open("snapshot", fingerprint, data)
    length = _length(fields, 1 << 40)
    conv, state = (_without_slots(array.shape) for array in (pools.conv, pools.state))
    arrays = _arrays(fields, body, [conv, state, (hidden,)])
    return Snapshot(length, *(array.copy() for array in arrays))


def _pack(kind: str, fingerprint: str, length: int, arrays: Sequence[F32]) -> bytes:
    header = {"kind": kind, "fingerprint": fingerprint, "length": length, "shapes": [array.shape for array in arrays]}
    return b"\n".join([json.dumps(header).encode(), b"".join(array.tobytes() for array in arrays)])


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


def _arrays(fields: Mapping[str, Any], body: memoryview, shapes: Sequence[Shape]) -> list[F32]:
    if fields.get("shapes") != [list(shape) for shape in shapes]:
        raise BundleError(f"stored {fields['kind']}: shapes {fields.get('shapes')!r:.200} are not {shapes}")
    sizes = [math.prod(shape) for shape in shapes]
    if len(body) != 4 * sum(sizes):
        raise BundleError(f"stored {fields['kind']}: {len(body)} bytes of values, {4 * sum(sizes)} expected")
    values = np.frombuffer(body, np.float32)  # may be unaligned: it stands behind the header
    ends = np.cumsum(sizes)
    return [values[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]


def _without_slots(shape: Shape) -> Shape:
    return shape[0], *shape[2:]
