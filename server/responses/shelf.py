"""The responses that a server knows by their ids: those that are stored, and those that run.

What must stay true: an owner reaches its own only; a response is among the running ones until its request has ended,
whatever happened to it.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

from edgellm.server.caller import Caller
from edgellm.server.errors import ApiError
from edgellm.server.fields import Fields
from edgellm.server.responses.answer import ResponseAnswer
from edgellm.server.responses.store import Item, Store, Stored
from edgellm.server.turns import TurnRecord


def owner_of(caller: Caller, salt: str | None) -> bytes:
    """Who a response belongs to: whoever brings the same key and names the same tenant.

    Args:
        salt: `cache_salt` of the request, where no header names the tenant.
    """
    tenant = salt if caller.hints.salt is None else caller.hints.salt
    parts = (*caller.keys, (tenant or "").encode("utf-8", "surrogatepass"))
    return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()


@dataclass(frozen=True, slots=True)
class Running:
    owner: bytes
    answer: ResponseAnswer
    items: list[Item]


class Shelf:
    """Any thread may use it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()

    def begin(self, running: Running) -> None:
        with self._lock:
            self._running[running.answer.id] = running

    def ended(self, record: TurnRecord) -> None:
        """Hears of every request that ended."""
        with self._lock:
            self._running.pop(record.request_id, None)

    def running(self, response_id: str, owner: bytes) -> Running | None:
        with self._lock:
            found = self._running.get(response_id)
        return found if found is not None and found.owner == owner and found.answer.running else None

    def stored(self, response_id: str, owner: bytes) -> Stored:
        """A response that has ended.

        Raises:
            ApiError: 404.
        """
        found = self.store.get(response_id, owner)
        if found is None:
            raise unknown_response(response_id, "response_id")
        return found

    def history(self, fields: Fields, owner: bytes) -> list[Stored]:
        """What `previous_response_id` of a request continues, oldest first.

        Raises:
            ApiError: 404.
        """
        name = fields.string("previous_response_id")
        if name is None:
            return []
        found = self.store.history(name, owner)
        if found is None:
            raise unknown_response(name, fields.at("previous_response_id"))
        return found


def unknown_response(response_id: str, param: str) -> ApiError:
    message = f"response {response_id[:100]!r} is not stored here, or one that it continues is not any more"
    code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
    return ApiError(404, message, param=param, code=code)
