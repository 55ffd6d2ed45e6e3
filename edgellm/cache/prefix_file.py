"""One shared prefix as one file: header, tokens, blocks, snapshot.

Layout: magic, header length (u32 little-endian), SHA-256 of the header, header (JSON), then the parts that the header
lists with their sizes and SHA-256: the tokens (big-endian u32), each block, the snapshot.

What must stay true: a file appears under its name only when it is complete; nothing is handed out before everything in
it has been verified; every way in which a file can be wrong raises BadPrefixFile with a reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from edgellm.cache.keys import TokenKey

MAGIC = b"edgellm prefix 1\n"
SUFFIX = ".prefix"
_HEAD = len(MAGIC) + 4 + 32
_MAX_HEADER = 64 << 20
_CHUNK = 1 << 20

Reason = Literal["unreadable", "not a prefix file", "truncated", "corrupt", "foreign", "too big", "does not fit"]


class BadPrefixFile(Exception):
    """A file that is not loaded: `reason` in one word or two, and what was found."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Part:
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says about itself."""

    fingerprint: str  # of the executor that made it
    namespace: str  # the salt's digest in hex; the salt itself is not written
    length: int  # tokens
    block_tokens: int
    priority: int
    expires_unix: float | None  # when the priority reverts to the default
    parts: tuple[Part, ...]  # tokens, blocks, snapshot


def file_name(fingerprint: str, namespace: bytes, key: TokenKey) -> str:
    """One name per executor, salt and token string."""
    digest = hashlib.sha256()
    for part in (fingerprint.encode(), namespace, key.data):
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.hexdigest()[:40] + SUFFIX


def write_file(path: Path, header: Header, parts: Sequence[bytes]) -> int:
    """Write next to `path`, then rename: readers see the whole file or none. Returns its size in bytes."""
    body = json.dumps(asdict(header), separators=(",", ":")).encode()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(MAGIC + struct.pack("<I", len(body)) + hashlib.sha256(body).digest() + body)
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return size


class PrefixFile:
    """An open, fully verified file. Use as a context manager.

    Raises:
        BadPrefixFile: see `Reason`.
    """

    def __init__(self, path: Path, *, fingerprint: str, block_tokens: int) -> None:
        try:
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise BadPrefixFile("unreadable", str(error)) from error
        try:
            self.header, self._offsets = self._read_header(fingerprint, block_tokens)
            for index, part in enumerate(self.header.parts):
                if self._digest(index) != part.sha256:
                    raise BadPrefixFile("corrupt", f"part {index} has another SHA-256 than its header says")
            self.key = TokenKey.from_bytes(self._part(0))
        except OSError as error:
            self._file.close()
            raise BadPrefixFile("unreadable", str(error)) from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> PrefixFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def block(self, index: int) -> bytes:
        return self._part(1 + index)

    def snapshot(self) -> bytes:
        return self._part(len(self.header.parts) - 1)

    def _read_header(self, fingerprint: str, block_tokens: int) -> tuple[Header, list[int]]:
        size = os.fstat(self._file.fileno()).st_size
        head = self._file.read(_HEAD)
        if not head.startswith(MAGIC[: len(head)]) or not head:
            raise BadPrefixFile("not a prefix file", "it starts with other bytes")
        if len(head) < _HEAD:
            raise BadPrefixFile("truncated", f"{len(head)} bytes")
        (length,) = struct.unpack_from("<I", head, len(MAGIC))
        if length > _MAX_HEADER:
            raise BadPrefixFile("corrupt", f"a header of {length} bytes")
        body = self._file.read(length)
        if len(body) < length:
            raise BadPrefixFile("truncated", f"{size} bytes, the header alone has {length}")
        if hashlib.sha256(body).digest() != head[-32:]:
            raise BadPrefixFile("corrupt", "the header has another SHA-256")
        header = _parse(body)
        if header.fingerprint != fingerprint:
            raise BadPrefixFile("foreign", f"made by {header.fingerprint!r}, this is {fingerprint!r}")
        if header.block_tokens != block_tokens:
            raise BadPrefixFile("foreign", f"blocks of {header.block_tokens} tokens, not {block_tokens}")
        blocks = -(-header.length // block_tokens)
        if header.length < 1 or len(header.parts) != blocks + 2 or header.parts[0].bytes != 4 * header.length:
            raise BadPrefixFile("corrupt", f"{len(header.parts)} parts for {header.length} tokens")
        offsets = [_HEAD + length]
        for part in header.parts:
            offsets.append(offsets[-1] + part.bytes)
        if offsets[-1] != size:
            reason: Reason = "truncated" if size < offsets[-1] else "corrupt"
            raise BadPrefixFile(reason, f"{size} bytes instead of {offsets[-1]}")
        return header, offsets

    def _part(self, index: int) -> bytes:
        self._file.seek(self._offsets[index])
        return self._file.read(self.header.parts[index].bytes)

    def _digest(self, index: int) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(index):
            digest.update(chunk)
        return digest.hexdigest()

    def _chunks(self, index: int) -> Iterator[bytes]:
        self._file.seek(self._offsets[index])
        left = self.header.parts[index].bytes
        while left > 0:
            chunk = self._file.read(min(left, _CHUNK))
            if not chunk:
                raise BadPrefixFile("truncated", f"part {index} ends early")
            left -= len(chunk)
            yield chunk


def _parse(body: bytes) -> Header:
    """The header is covered by its own hash: what is wrong here was written wrong."""
    try:
        raw = json.loads(body)
        parts = tuple(Part(int(part["bytes"]), str(part["sha256"])) for part in raw["parts"])
        expires = raw["expires_unix"]
        header = Header(
            str(raw["fingerprint"]),
            str(raw["namespace"]),
            int(raw["length"]),
            int(raw["block_tokens"]),
            int(raw["priority"]),
            None if expires is None else float(expires),
            parts,
        )
        if len(bytes.fromhex(header.namespace)) != 16 or not 0 <= header.priority <= 100:
            raise ValueError("namespace or priority out of range")
    except (ValueError, KeyError, TypeError) as error:
        raise BadPrefixFile("corrupt", f"header: {error!r}") from error
    if any(part.bytes < 0 for part in parts):
        raise BadPrefixFile("corrupt", "header: a negative size")
    return header
