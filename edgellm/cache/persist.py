"""Shared prefixes (system prompt and tools) that survive a restart: the folder behind `--cache-dir`.

What must stay true: what cannot be verified is never loaded and never stops a start; the folder stays within its byte
budget, the oldest files go first; only files that this module wrote are touched. Runs on the engine's thread.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgellm.cache.keys import TokenKey, Tokens, salt_digest
from edgellm.cache.policy import SnapshotKind
from edgellm.cache.prefix_cache import PrefixCache
from edgellm.cache.prefix_file import SUFFIX, BadPrefixFile, Header, Part, PrefixFile, Reason, file_name, write_file
from edgellm.cache.retention import DEFAULT, DEFAULT_PRIORITY, Retention
from edgellm.errors import ConfigError

logger = logging.getLogger(__name__)

DEFAULT_BUDGET_BYTES = 8 << 30
_MAX_WAITING = 64
_STALE_TEMPORARY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Skipped:
    path: Path
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a start found in the folder."""

    loaded: int
    tokens: int  # of the loaded prefixes, shared tokens counted once each
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class _Wish:
    key: TokenKey
    salt: str


class PrefixStore:
    """Saves prefixes worth keeping and loads them at a start.

    The engine calls `load_all` once at a start, `maybe_save` after each stored snapshot (it only notes the prefix),
    `flush` when it has nothing else to do, and `close` at shutdown.

    Args:
        cache: where prefixes come from and go to.
        directory: made if absent, readable by its owner only: the files hold what prompts said.
        budget_bytes: of all prefix files together.
        wall_clock: Unix seconds, for priorities that expire while the server is down.

    Raises:
        ConfigError: the folder cannot be made or is not one.
    """

    def __init__(
        self,
        cache: PrefixCache,
        directory: str | Path,
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = Path(directory)
        self._cache = cache
        self._budget = budget_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._waiting: dict[str, _Wish] = {}
        self._known: set[str] = set()  # names of files that are there and good
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cache_dir {self.directory}: {error}") from error

    def maybe_save(
        self, tokens: Tokens, end: int, *, salt: str = "", kind: SnapshotKind, priority: int = DEFAULT_PRIORITY
    ) -> bool:
        """Note tokens[:end] for saving if it is shared by prompts or was given a priority above the default.

        Returns whether it was noted. Cheap: nothing is written before `flush`.
        """
        if kind != "shared" and priority <= DEFAULT_PRIORITY:
            return False
        key, namespace = TokenKey(tokens), salt_digest(salt)
        key = TokenKey.from_bytes(key[:end])
        name = file_name(self._cache.executor.info.fingerprint, namespace, key)
        if name in self._known or name in self._waiting or len(self._waiting) >= _MAX_WAITING:
            return False
        self._waiting[name] = _Wish(key, salt)
        return True

    def flush(self, limit: int | None = None) -> int:
        """Write up to `limit` noted prefixes that are still cached; returns how many. A full disk is only logged."""
        written = 0
        while self._waiting and (limit is None or written < limit):
            name = next(iter(self._waiting))
            wish = self._waiting.pop(name)
            try:
                written += self.save_prefix(wish.key, salt=wish.salt)
            except OSError as error:
                logger.warning("prefix of %d tokens not saved: %s", len(wish.key), error)
        return written

    def close(self) -> None:
        """Write what is noted."""
        self.flush()

    def save_prefix(self, tokens: Tokens, *, salt: str = "") -> bool:
        """Write a cached prefix now. False when it has no snapshot at its end or is bigger than the whole budget.

        Raises:
            OSError: it cannot be written; an older file of the same prefix stays as it was.
        """
        key, namespace = TokenKey(tokens), salt_digest(salt)
        found = self._cache.find(key, salt=salt)
        if found is None:
            return False
        executor = self._cache.executor
        parts = [
            key.data,
            *(executor.dump_block(ref) for ref in found.blocks),
            executor.dump_snapshot(found.snapshot),
        ]
        expires = found.retention.expires
        header = Header(
            executor.info.fingerprint,
            namespace.hex(),
            len(key),
            executor.info.block_tokens,
            found.retention.priority,
            None if expires is None else self._wall_clock() + expires - self._clock(),
            tuple(Part(len(part), hashlib.sha256(part).hexdigest()) for part in parts),
        )
        path = self.directory / file_name(executor.info.fingerprint, namespace, key)
        size = sum(map(len, parts)) + 256 + 100 * len(parts) + 6 * len(header.fingerprint)  # an upper bound
        if size > self._budget:
            logger.warning("prefix of %d tokens not saved: %d bytes exceed the budget of the folder", len(key), size)
            return False
        self._make_room(size, besides=path)
        write_file(path, header, parts)
        self._known.add(path.name)
        return True

    def load_all(self) -> LoadReport:
        """Load every good file, newest first, until the cache is full. Bad ones are skipped, logged and reported."""
        loaded, tokens = 0, 0
        skipped: list[Skipped] = []
        self._remove_stale()
        for path in reversed(self._files()):
            try:
                tokens += self._load(path)
                loaded += 1
            except BadPrefixFile as error:
                logger.warning("prefix file %s skipped: %s", path, error)
                skipped.append(Skipped(path, error.reason, str(error)))
        return LoadReport(loaded, tokens, tuple(skipped))

    def _load(self, path: Path) -> int:
        cache, executor = self._cache, self._cache.executor
        info = executor.info
        if path.stat().st_size > self._budget:
            raise BadPrefixFile("too big", f"{path.stat().st_size} bytes exceed the budget of the folder")
        with PrefixFile(path, fingerprint=info.fingerprint, block_tokens=info.block_tokens) as file:
            header = file.header
            left = None if header.expires_unix is None else header.expires_unix - self._wall_clock()
            stats = cache.stats()
            blocks = len(header.parts) - 2
            if (
                stats.block_bytes + blocks * info.block_bytes > stats.block_budget_bytes
                or stats.snapshot_bytes + info.snapshot_bytes > stats.snapshot_budget_bytes
            ):
                raise BadPrefixFile("does not fit", "the cache is full")  # never evicts a newer prefix
            try:
                stored = cache.adopt(
                    file.key,
                    bytes.fromhex(header.namespace),
                    lambda index: executor.load_block(file.block(index)),
                    lambda: executor.load_snapshot(file.snapshot()),
                    retention=DEFAULT
                    if left is not None and left <= 0
                    else Retention(header.priority, None if left is None else self._clock() + left),
                )
            except Exception as error:  # whatever an executor raises on bytes it does not like
                raise BadPrefixFile("corrupt", f"refused by the executor: {error!r}") from error
        if not stored:
            raise BadPrefixFile("does not fit", "the cache is full")
        if path.name == file_name(info.fingerprint, bytes.fromhex(header.namespace), file.key):
            self._known.add(path.name)
        return header.length

    def _files(self) -> list[Path]:
        """Prefix files, oldest first."""
        found = [path for path in self.directory.glob(f"*{SUFFIX}") if path.is_file()]
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _make_room(self, size: int, *, besides: Path) -> None:
        files = [path for path in self._files() if path != besides]
        total = size + sum(path.stat().st_size for path in files)
        for path in files:
            if total <= self._budget:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)
            self._known.discard(path.name)

    def _remove_stale(self) -> None:
        """Temporary files that a crash left; a younger one may belong to a server that is writing it."""
        for path in self.directory.glob(f"*{SUFFIX}.*.tmp"):
            if self._wall_clock() - path.stat().st_mtime > _STALE_TEMPORARY_S:
                path.unlink(missing_ok=True)
