"""Block hashes as NVIDIA Dynamo's router and request traces compute them from token ids.

local[i] = XXH3-64(seed 1337) over the block's tokens as little-endian u32; sequence[0] = local[0];
sequence[i] = XXH3-64(seed 1337) over the little-endian u64 pair (sequence[i-1], local[i]).
Source: Dynamo 1.6.1, `compute_block_hash_for_seq`, and 52 of its trace records. Hashes are unsigned 64-bit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import xxhash

_SEED = 1337


def local_hashes(tokens: Sequence[int], block_tokens: int, *, partial: bool = False) -> list[int]:
    """One hash per block of `block_tokens` tokens. `partial`: also of a last block that is not full (traces do so)."""
    data = np.asarray(tokens, dtype="<u4").tobytes()
    width = 4 * block_tokens
    end = len(data) if partial else len(data) // width * width
    return [xxhash.xxh3_64_intdigest(data[start : start + width], seed=_SEED) for start in range(0, end, width)]


def sequence_hashes(local: Sequence[int]) -> list[int]:
    """Chained over the local hashes of a prompt's blocks from its start."""
    chained: list[int] = []
    for number in local:
        if chained:
            number = xxhash.xxh3_64_intdigest(struct.pack("<QQ", chained[-1], number), seed=_SEED)
        chained.append(number)
    return chained
