"""One HTTP connection: uvicorn's protocol, which keeps answering a client that has only closed its sending side.

A client that shuts its sending side after the request and one that is gone look the same at first: the end of the
stream. Uvicorn takes both for gone. The rule here: the request goes on, and the connection is probed with bytes that
mean nothing: ``102 Processing`` before the headers (RFC 9110: a client must be able to take any 1xx response), then
the comment that the response named (`PROBE`). A client that is gone answers the first with a reset, so that a later
probe fails: the connection is lost and the request cancelled, within a second. A client that still reads gets its
answer, and the connection is closed behind it. Gone at once are, as in uvicorn: a client whose request is not complete,
that speaks HTTP/1.0 (it knows no 1xx), that uses TLS (its end of stream means both directions), or that has pipelined a
further request.

A request's head is bounded in size and time, and one that cannot be read is refused in the form of all our errors. An
offer to go on in another protocol is ignored.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from asyncio.events import TimerHandle

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from edgellm.server.errors import ApiError
from edgellm.server.names import new_id

PROBE = "edgellm.probe"  # in scope["state"]: bytes that may be put into the streamed body between any two writes
ABORT = "edgellm.abort"  # in scope["state"]: drops the connection and what waits to be sent on it
REQUEST_ID = b"x-request-id"
_INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
_SECOND_PROBE_S = 0.1
_NEXT_PROBES_S = 0.5
# An offer to go on in another protocol, such as h2c. It may be ignored (RFC 9110), but the parser stops behind it.
_UPGRADE = re.compile(rb"\r\n(?:upgrade|http2-settings):[^\r\n]*(?=\r\n|\Z)", re.IGNORECASE)


class Protocol(HttpToolsProtocol):
    """See the module's docstring."""

    head_timeout_s = 30.0  # from the connection, or the first byte of a later request, to the end of the head
    head_bytes = 64 << 10

    _probe_timer: TimerHandle | None = None
    _head_timer: TimerHandle | None = None
    _head_size = 0
    _in_body = False

    # -- a request's head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def on_headers_complete(self) -> None:
        self._head_is_over()
        self._in_body = True
        super().on_headers_complete()
        self.scope["state"][ABORT] = self._drop

    def _drop(self) -> None:
        """Close with a reset: neither we nor the system go on sending what the client does not take."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"", head) + end + rest
        super().data_received(data)
        if self._head_timer is None or self.transport.is_closing():
            return
        self._head_size += len(data)
        if self._head_size > self.head_bytes:
            self._refuse(431, f"the request's headers are larger than {self.head_bytes} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _head_is_late(self) -> None:
        if self._head_size == 0:  # a connection that was opened in advance and never used
            self.transport.close()
        else:
            self._refuse(408, f"the request's headers did not arrive within {self.head_timeout_s:g} s")

    def _head_is_over(self) -> None:
        self._head_size = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that never became one, unless an earlier one is still being answered; then close."""
        self._head_is_over()
        if self.cycle is None or self.cycle.response_complete:
            answer = ApiError(status, message, code="invalid_http", headers={"connection": "close"}).response()
            headers = [*answer.raw_headers, (REQUEST_ID, new_id("req").encode("ascii"))]
            lines = [b"%b: %b\r\n" % header for header in headers]
            self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", answer.body]))
        self.transport.close()

    # -- the end of what the client sends

    def eof_received(self) -> bool:  # type: ignore[override]
        """True keeps the connection open for writing."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.pipeline:
            return False
        if self.scheme != "http" or cycle.scope["http_version"] != "1.1":
            return False
        cycle.keep_alive = False
        self._probe(_SECOND_PROBE_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def _probe(self, again_s: float) -> None:
        cycle = self.cycle
        if cycle.response_complete or self.transport.is_closing():
            return
        if not cycle.response_started:
            self.transport.write(_INTERIM)
        elif cycle.chunked_encoding and (body := cycle.scope["state"].get(PROBE)):
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        self._probe_timer = self.loop.call_later(again_s, self._probe, _NEXT_PROBES_S)
