"""Token strings as bytes, and the hashes that name paths.

What must stay true: byte order is token order (big-endian, four bytes a token), so that siblings can be kept sorted
and found by bisection; a hash says nothing about the salt or the tokens, and differs when either does.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH = 4  # bytes of a token

assert array("I").itemsize == WIDTH


class TokenKey:
    """Token ids packed for the cache. Making one costs the most of a look-up: pack a long prompt once and pass it.

    Args:
        tokens: ids in [0, 2**32), any sequence of ints or an integer array.

    Raises:
        OverflowError, TypeError: an id is negative, too large or not an integer.
    """

    __slots__ = ("data",)

    def __init__(self, tokens: Sequence[int] | NDArray[np.integer] | TokenKey) -> None:
        if isinstance(tokens, TokenKey):
            self.data: bytes = tokens.data
            return
        if isinstance(tokens, np.ndarray):
            if not np.issubdtype(tokens.dtype, np.integer):
                raise TypeError(f"tokens have dtype {tokens.dtype}, not an integer one")
            if tokens.size and (tokens.min() < 0 or tokens.max() > 0xFFFFFFFF):
                raise OverflowError("a token id is negative or too large")
            self.data = tokens.astype(">u4").tobytes()
            return
        packed = array("I", tokens)
        if sys.byteorder == "little":
            packed.byteswap()
        self.data = packed.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> TokenKey:
        """From big-endian bytes, four a token."""
        if len(data) % WIDTH:
            raise ValueError(f"{len(data)} bytes are not whole tokens")
        key = cls(())
        key.data = data
        return key

    def __len__(self) -> int:
        return len(self.data) // WIDTH

    def __getitem__(self, part: slice) -> bytes:
        """Bytes of tokens [part.start, part.stop)."""
        start = 0 if part.start is None else part.start
        stop = len(self) if part.stop is None else part.stop
        return self.data[start * WIDTH : stop * WIDTH]

    def tokens(self) -> tuple[int, ...]:
        return unpack(self.data)


Tokens = Sequence[int] | NDArray[np.integer] | TokenKey


def unpack(data: bytes) -> tuple[int, ...]:
    """Token ids of packed bytes."""
    return tuple(np.frombuffer(data, ">u4").tolist())


def common_tokens(a: bytes, b: bytes) -> int:
    """Tokens that two packed strings have in common from the start."""
    size = min(len(a), len(b))
    differ = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (8 * size - differ.bit_length()) // (8 * WIDTH)


def salt_digest(salt: str) -> bytes:
    """What stands for a salt inside the cache and on disk: 16 bytes; the empty salt is 16 zero bytes."""
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest() if salt else bytes(16)


def path_hash(parent: bytes, data: bytes) -> bytes:
    """Eight bytes that name the path `parent` extended by packed tokens; the first parent is a salt's digest."""
    return hashlib.blake2b(parent + data, digest_size=8).digest()
