"""Responses that can be fetched and continued by their ids, in SQLite.

What must stay true:
* An owner sees nothing of another owner's.
* Bytes are bounded. Where there is no room, what was used least recently goes first; continuing a response uses it and
  everything before it, and of a conversation the newest goes first, since it is worth nothing without what is before.
* A response can be read from the moment that `put` returns. Writing waits for no disk: a thread of the store's does it.
* A store in a file survives the process; one that was cut off in the middle of a write is as before that write.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgellm.errors import ConfigError

log = logging.getLogger("edgellm.server")

Item = dict[str, Any]
MAX_AGE_S: Final = 30 * 24 * 3600.0  # as long as the OpenAI API keeps responses
_VERSION: Final = 1
_ROW_BYTES: Final = 200  # beside the content, roughly
_TABLES: Final = """
CREATE TABLE response (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner BLOB NOT NULL, previous TEXT, used REAL NOT NULL,
    bytes INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE INDEX response_by_use ON response (used, number DESC, bytes);
CREATE TABLE item (id TEXT NOT NULL, owner BLOB NOT NULL, response TEXT NOT NULL, PRIMARY KEY (owner, id))
    WITHOUT ROWID;
CREATE INDEX item_by_response ON item (response);
"""
_INSERT: Final = "INSERT INTO response (id, owner, previous, used, bytes, content) VALUES (?, ?, ?, ?, ?, ?)"
_USE: Final = """
WITH RECURSIVE chain (id, previous) AS (
    SELECT id, previous FROM response WHERE id = :id
    UNION SELECT response.id, response.previous FROM response JOIN chain ON response.id = chain.previous
)
UPDATE response SET used = :now WHERE id IN (SELECT id FROM chain)
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """Attributes:
    owner: see `owner_of`.
    body: the response object.
    items: input items of this response alone, each with an id.
    """

    owner: bytes
    body: dict[str, Any]
    items: list[Item]

    @property
    def id(self) -> str:
        return str(self.body["id"])

    @property
    def previous(self) -> str | None:
        found: str | None = self.body["previous_response_id"]
        return found


class Store:
    """Args:
        path: of the database; None: in memory.
        max_bytes: of all contents, compressed.
        max_age_s: since a response was last used.
        clock: seconds since the epoch.

    Raises:
        ConfigError: the file cannot be opened or is none of ours.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_bytes: int,
        max_age_s: float = MAX_AGE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()  # of the connection
        self._waiting: dict[str, Stored] = {}  # put, not yet written
        self._waiting_lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="edgellm-responses")
        try:
            self._db = _open(path)
            with self._db:
                self._make_room()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"responses_store: {path} cannot be used: {error}") from None

    @property
    def size(self) -> int:
        """What is written now."""
        with self._lock:
            return self._size()

    def close(self) -> None:
        """Write what waits and close. The store cannot be used afterwards."""
        self._writer.shutdown(wait=True)
        with self._lock:
            self._db.close()

    def put(self, stored: Stored) -> None:
        """Keep a response; returns at once. One larger than the whole store is kept only until it would be written."""
        with self._waiting_lock:
            self._waiting[stored.id] = stored
        self._writer.submit(self._write, stored)

    def get(self, response_id: str, owner: bytes) -> Stored | None:
        with self._waiting_lock:
            found = self._waiting.get(response_id)
        if found is None:
            with self._lock:
                query = "SELECT content FROM response WHERE id = ? AND owner = ?"
                row = self._db.execute(query, (response_id, owner)).fetchone()
            found = None if row is None else _unpacked(owner, row[0])
        return found if found is not None and found.owner == owner else None

    def history(self, response_id: str, owner: bytes) -> list[Stored] | None:
        """The response and all before it, oldest first; None when one of them is gone. They count as used now."""
        found: list[Stored] = []
        at: str | None = response_id
        while at is not None:
            stored = self.get(at, owner)
            if stored is None:
                return None
            found.append(stored)
            at = stored.previous
        self._writer.submit(self._touch, response_id)
        return found[::-1]

    def item(self, item_id: str, owner: bytes) -> Item | None:
        """An input or output item of a stored response."""
        with self._waiting_lock:
            waiting = [stored for stored in self._waiting.values() if stored.owner == owner]
        for stored in waiting:
            if (found := _find(stored, item_id)) is not None:
                return found
        with self._lock:
            query = "SELECT response FROM item WHERE owner = ? AND id = ?"
            row = self._db.execute(query, (owner, item_id)).fetchone()
        whole = None if row is None else self.get(row[0], owner)
        return None if whole is None else _find(whole, item_id)

    def delete(self, response_id: str, owner: bytes) -> bool:
        """Whether there was one."""
        if self.get(response_id, owner) is None:
            return False
        with self._waiting_lock:
            self._waiting.pop(response_id, None)
        with self._lock, self._db:
            self._remove(response_id)
        return True

    def _write(self, stored: Stored) -> None:
        try:
            content = zlib.compress(json.dumps([stored.body, stored.items]).encode(), 1)
            ids = {item["id"] for item in (*stored.items, *stored.body["output"])}
            size = len(content) + _ROW_BYTES * (1 + len(ids))
            with self._lock, self._db:
                with self._waiting_lock:
                    wanted = stored.id in self._waiting  # not deleted meanwhile
                if wanted and size <= self._max_bytes and self._has(stored.previous):
                    now = self._clock()
                    row = (stored.id, stored.owner, stored.previous, now, size, content)
                    self._db.execute(_INSERT, row)
                    rows = [(item_id, stored.owner, stored.id) for item_id in ids]
                    self._db.executemany("INSERT OR IGNORE INTO item VALUES (?, ?, ?)", rows)
                    self._db.execute(_USE, {"id": stored.id, "now": now})
                    self._make_room()
        except Exception:
            log.exception("response %s could not be stored", stored.id)
        finally:
            with self._waiting_lock:
                self._waiting.pop(stored.id, None)

    def _has(self, response_id: str | None) -> bool:
        """Whether a conversation can go on there; what it continues may have gone while the answer was made."""
        query = "SELECT 1 FROM response WHERE id = ?"
        return response_id is None or self._db.execute(query, (response_id,)).fetchone() is not None

    def _touch(self, response_id: str) -> None:
        try:
            with self._lock, self._db:
                self._db.execute(_USE, {"id": response_id, "now": self._clock()})
        except sqlite3.Error:
            log.exception("the use of response %s could not be noted", response_id)

    def _make_room(self) -> None:
        """Remove what is too old, then what has no room."""
        old = self._clock() - self._max_age_s
        for (response_id,) in self._db.execute("SELECT id FROM response WHERE used < ?", (old,)).fetchall():
            self._remove(response_id)
        excess = self._size() - self._max_bytes
        while excess > 0:
            query = "SELECT id, bytes FROM response ORDER BY used, number DESC LIMIT 1"
            response_id, size = self._db.execute(query).fetchone()
            self._remove(response_id)
            excess -= size

    def _size(self) -> int:
        (size,) = self._db.execute("SELECT coalesce(sum(bytes), 0) FROM response").fetchone()
        return int(size)

    def _remove(self, response_id: str) -> None:
        self._db.execute("DELETE FROM response WHERE id = ?", (response_id,))
        self._db.execute("DELETE FROM item WHERE response = ?", (response_id,))


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.touch(mode=0o600)  # conversations are nobody else's business
    db = sqlite3.connect(path or ":memory:", check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0:
        with db:
            db.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION};")
    elif version != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, not {_VERSION}")
    return db


def _unpacked(owner: bytes, content: bytes) -> Stored:
    body, items = json.loads(zlib.decompress(content))
    return Stored(owner, body, items)


def _find(stored: Stored, item_id: str) -> Item | None:
    return next((item for item in (*stored.items, *stored.body["output"]) if item.get("id") == item_id), None)
