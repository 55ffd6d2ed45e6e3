"""Raw connections to a server under test."""

from __future__ import annotations

import json
import socket
from typing import Any

LONG = "word " * 1000  # with a slow step: as good as endless
HEADERS = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)


def connect(running: Any, body: dict[str, Any] | None = None, path: str = "/v1/chat/completions") -> socket.socket:
    """A raw connection; with `body` the request is sent."""
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=10)
    if body is not None:
        raw = json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode()
        head = HEADERS.format(len(raw)).replace("/v1/chat/completions", path)
        sock.sendall(head.encode() + raw)
    return sock


def read_until(sock: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        piece = sock.recv(65536)
        if not piece:
            raise AssertionError(f"connection closed before {text!r}: {data!r}")
        data += piece
    return data


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data
