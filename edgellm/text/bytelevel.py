"""The byte-level alphabet: how a vocabulary spells the 256 bytes with printable characters.

Printable Latin-1 characters stand for themselves; the other bytes, in order, are spelt U+0100, U+0101, …
"""

from __future__ import annotations

from typing import Final

_SHOWN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN: Final = tuple(byte for byte in range(256) if byte not in _SHOWN)
_BYTE_OF: Final = {chr(byte): byte for byte in _SHOWN} | {chr(0x100 + n): byte for n, byte in enumerate(_HIDDEN)}


def token_bytes(token: str) -> bytes:
    """Bytes of a token as the vocabulary spells it; a token with a foreign character stands for its own UTF-8."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode("utf-8")
