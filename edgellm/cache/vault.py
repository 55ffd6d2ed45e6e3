"""Bytes of dumped blocks and snapshots, in memory or in files of a folder.

What must stay true: what `read` gives is what `keep` was given, or `DamagedDump`; in a folder only files that a vault
made are touched, those of a process that ended without `close` are removed by the next one, those of a running one
never.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO, Protocol

import xxhash

from edgellm.engine.base import BlockRef, ExecutorInfo, SnapshotRef
from edgellm.errors import ConfigError

logger = logging.getLogger(__name__)

_PREFIX = "edgellm-offload-"
_LOCK = "lock"


class DamagedDump(Exception):
    """What was kept cannot be read back as it was."""


class Backing(Protocol):
    """Where bytes are, by number."""

    def write(self, number: int, data: bytes) -> None: ...

    def read(self, number: int) -> bytes: ...

    def remove(self, number: int) -> None: ...

    def close(self) -> None: ...


class Memory:
    """Host memory."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}

    def write(self, number: int, data: bytes) -> None:
        self._kept[number] = data

    def read(self, number: int) -> bytes:
        return self._kept[number]

    def remove(self, number: int) -> None:
        del self._kept[number]

    def close(self) -> None:
        self._kept.clear()


class Folder:
    """A folder of its own inside `directory`, locked while the process lives. Checksums are kept in memory.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(directory / f"{_PREFIX}{_LOCK}"):  # until the new folder has its own
                _remove_dead(directory)
                self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))  # readable by its owner only
                self._lock: BinaryIO = open(self._folder / _LOCK, "wb")  # noqa: SIM115 - held until `close`
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise ConfigError(f"offload_dir {directory}: {error}") from error
        self._digests: dict[int, bytes] = {}

    def write(self, number: int, data: bytes) -> None:
        """Raises OSError: the disk is full, say."""
        path = self._path(number)
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._digests[number] = xxhash.xxh3_128_digest(data)

    def read(self, number: int) -> bytes:
        path = self._path(number)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DamagedDump(f"{path}: {error}") from error
        if xxhash.xxh3_128_digest(data) != self._digests[number]:
            raise DamagedDump(f"{path}: other bytes than were written")
        return data

    def remove(self, number: int) -> None:
        self._digests.pop(number, None)
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def close(self) -> None:
        _remove(self._folder)
        self._lock.close()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.kv"


class Vault:
    """Dumps by reference, and how many bytes they are. References are never reused.

    Attributes:
        bytes: of everything kept.
    """

    def __init__(self, info: ExecutorInfo, backing: Backing) -> None:
        self.info = info
        self.bytes = 0
        self._backing = backing
        self._sizes: dict[int, int] = {}
        self._numbers = count(1)

    def keep(self, data: bytes) -> int:
        """Raises OSError: it cannot be written."""
        number = next(self._numbers)
        self._backing.write(number, data)
        self._sizes[number] = len(data)
        self.bytes += len(data)
        return number

    def read(self, number: int) -> bytes:
        """Raises DamagedDump."""
        return self._backing.read(number)

    def size(self, number: int) -> int:
        return self._sizes[number]

    def free_block(self, ref: BlockRef) -> None:
        self._free(ref)

    def free_snapshot(self, ref: SnapshotRef) -> None:
        self._free(ref)

    def close(self) -> None:
        self._backing.close()

    def _free(self, number: int) -> None:
        self.bytes -= self._sizes.pop(number)
        self._backing.remove(number)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_dead(directory: Path) -> None:
    """Folders whose lock nobody holds."""
    for folder in directory.glob(f"{_PREFIX}*/"):
        try:
            with open(folder / _LOCK, "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its process runs
        except OSError as error:
            logger.warning("offload folder %s is left: %s", folder, error)
            continue
        _remove(folder)


def _remove(folder: Path) -> None:
    for path in (*folder.glob("*.kv"), folder / _LOCK):
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):  # something of others is in it
        folder.rmdir()
