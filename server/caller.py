"""What a request's headers say of who sent it."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgellm.server.sessions.hints import NO_HINTS, Hints
from edgellm.server.sessions.identity import Identity


@dataclass(frozen=True, slots=True)
class Caller:
    """Attributes:
    identity: the agent's session, if it named one.
    keys: API keys that it brought, whether the server asks for one or not.
    hints: of routing headers; they go before the body's.
    """

    identity: Identity | None = None
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    hints: Hints = NO_HINTS

    @property
    def metadata(self) -> dict[str, str]:
        """What answers repeat of it."""
        if self.identity is None:
            return {}
        found = {"session_id": self.identity.session_id}
        if self.identity.parent_id is not None:
            found["parent_session_id"] = self.identity.parent_id
        return found


ANONYMOUS = Caller()
