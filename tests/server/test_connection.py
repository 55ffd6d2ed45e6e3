"""Connections: half-closed and vanished clients, requests whose head never ends, CORS, TLS."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sockets import HEADERS, LONG, connect, read_all, read_until

from edgellm.server.protocol import Protocol


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wait", [True, False])
def test_a_client_that_closed_its_sending_side_gets_its_answer(
    start: Any, script: Any, stream: bool, wait: bool
) -> None:
    running = start(script(reply="word " * 20 + "END", decode_step_s=0.03))
    with connect(running, {"stream": stream}) as sock:
        head = read_until(sock, b"word") if stream and wait else b""
        sock.shutdown(socket.SHUT_WR)
        data = head + read_all(sock)
    while data.startswith(b"HTTP/1.1 102 "):
        data = data.split(b"\r\n\r\n", 1)[1]
    assert data.startswith(b"HTTP/1.1 200 ")
    if stream:
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        assert json.loads(data.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]["content"].endswith("END")
    assert running.llm.engine.stats().finished == {"stop": 1}


def test_the_chunks_of_a_half_closed_stream_stay_whole(start: Any, script: Any) -> None:
    running = start(script(prefill_token_s=0.08), headers_after_s=0.05, prefill_chunk=4)
    with connect(running, {"stream": True}) as sock:
        data = read_until(sock, b"assistant")
        sock.shutdown(socket.SHUT_WR)
        data += read_all(sock)
    assert data.count(b": ping\n\n") >= 2
    _, _, rest = data.partition(b"\r\n\r\n")
    while not rest.startswith(b"0\r\n"):
        size, _, rest = rest.partition(b"\r\n")
        piece, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert piece.startswith((b"data: ", b": ping"))
        assert piece.endswith(b"\n\n")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_is_gone_is_noticed_before_the_first_token(start: Any, script: Any, stream: bool) -> None:
    """Its end of stream looks like a half-closed one's; the probes tell them apart."""
    running = start(script(prefill_token_s=0.02), prefill_chunk=4, headers_after_s=60)
    messages = [{"role": "user", "content": "word " * 1000}]
    sock = connect(running, {"stream": stream, "messages": messages})
    assert running.wait_for(lambda stats: stats.running == 1)
    sock.close()
    assert running.settled(2.0)


def test_a_client_that_is_gone_is_noticed_in_a_silent_stream(start: Any, script: Any) -> None:
    running = start(script(prefill_token_s=0.02), prefill_chunk=4, headers_after_s=0.01, ping_interval_s=60)
    messages = [{"role": "user", "content": "word " * 1000}]
    sock = connect(running, {"stream": True, "messages": messages})
    read_until(sock, b"assistant")
    sock.close()
    assert running.settled(2.0)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_half_a_request_and_old_clients_are_gone_at_once(start: Any, script: Any, version: bytes) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05))
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    size = len(body) + (5 if version == b"HTTP/1.1" else 0)
    head = b"POST /v1/chat/completions %b\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (version, size)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(head + body)
        if version == b"HTTP/1.0":
            assert running.wait_for(lambda stats: stats.running == 1)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    assert running.settled(2.0)


def refusal(data: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"x-request-id: req-" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_what_is_not_http_is_refused_in_our_form(running: Any) -> None:
    for junk in (b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
            sock.sendall(junk)
            status, error = refusal(read_all(sock))
        assert (status, error["code"]) == (400, "invalid_http")


def test_heads_are_bounded_in_size(running: Any) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nx: " + b"a" * (Protocol.head_bytes + 1))
        assert refusal(read_all(sock))[0] == 431
    assert running.http.get("/health", headers={"x": "a" * 30_000}).status_code == 200


def test_heads_are_bounded_in_time(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(running, {"stream": True}) as sock:
        assert b"[DONE]" in read_until(sock, b"0\r\n\r\n")
        monkeypatch.setattr(Protocol, "head_timeout_s", 0.1)
        sock.sendall(b"POST /v1/chat")
        assert refusal(read_all(sock))[0] == 408
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        assert read_all(sock) == b""  # nothing was asked


def test_a_slow_answer_is_no_slow_head(start: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Protocol, "head_timeout_s", 1.0)
    running = start(script(reply="a b c", decode_step_s=0.4))
    assert running.post(stream=True).text.endswith("data: [DONE]\n\n")


def test_a_client_that_reads_nothing_is_given_up(start: Any, script: Any) -> None:
    running = start(script(reply="word " * 900), write_timeout_s=0.2)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.connect(("127.0.0.1", running.port))
        messages = [{"role": "user", "content": "hi"}]
        raw = json.dumps({"messages": messages, "stream": True, "logprobs": True, "top_logprobs": 20, "n": 8}).encode()
        sock.sendall(HEADERS.format(len(raw)).encode() + raw)
        assert running.wait_for(lambda _: 'outcome="error"' in running.http.get("/metrics").text, 20)
        with pytest.raises(ConnectionResetError):  # what was buffered for it is dropped
            read_all(sock)
    assert running.settled()


def test_an_offer_of_another_protocol_is_ignored(running: Any) -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    head = HEADERS.format(len(raw)).removesuffix("\r\n\r\n")
    offer = f"{head}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        for _ in range(2):
            sock.sendall(offer.encode() + raw)
            assert b'"finish_reason":"stop"' in read_until(sock, b"}}}")


def test_cors_is_off_unless_asked_for(running: Any) -> None:
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert running.http.options("/v1/chat/completions", headers=headers).status_code == 405
    assert "access-control-allow-origin" not in running.http.get("/health", headers=headers).headers


def test_cors(start: Any) -> None:
    running = start(cors_origins=("https://app.example", "vscode-webview://x"), api_keys=("k",))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-api-key"}
    for origin in ("https://app.example", "vscode-webview://x"):
        # A browser asks without the key whether it may send one.
        headers = {"Origin": origin, "Authorization": "", **asked}
        allowed = running.http.options("/v1/chat/completions", headers=headers)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, origin)
        assert "x-request-id" in allowed.headers
        for response in (
            running.http.get("/v1/models", headers={"Origin": origin}),
            running.http.get("/v1/models", headers={"Origin": origin, "Authorization": "Bearer wrong"}),
        ):
            assert response.headers["access-control-allow-origin"] == origin
            assert "x-request-id" in response.headers["access-control-expose-headers"]
    foreign = {"Origin": "https://evil.example"}
    assert running.http.options("/v1/chat/completions", headers={**foreign, **asked}).status_code == 400
    assert "access-control-allow-origin" not in running.http.get("/v1/models", headers=foreign).headers


def test_cors_for_all(start: Any) -> None:
    response = start(cors_origins=("*",)).http.get("/v1/models", headers={"Origin": "https://any.example"})
    assert response.headers["access-control-allow-origin"] == "*"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}"
    try:
        subprocess.run(
            [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificate, is not installed")
    return cert, key


def test_tls(start: Any, certificate: tuple[Path, Path]) -> None:
    running = start(tls_cert=certificate[0], tls_key=certificate[1])
    assert running.http.base_url.scheme == "https"
    assert running.post().json()["choices"][0]["message"]["content"] == "Hello there."
    assert running.post(stream=True).text.endswith("data: [DONE]\n\n")
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not read_all(sock).startswith(b"HTTP/1.1 200")
