"""Streams on the wire: when headers go out, one write per delta, comments while waiting, and how failures look."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from typing import Any

import httpx
import pytest
from sockets import HEADERS, LONG, connect, read_all, read_until


def test_accepted_connections_have_nodelay(running: Any) -> None:
    with connect(running, {"stream": True}) as sock:
        read_until(sock, b"[DONE]")
        (protocol,) = [p for p in running.server.server_state.connections if p.client == sock.getsockname()]
        accepted = protocol.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_each_delta_is_one_write(running: Any) -> None:
    """In chunked encoding every write is a chunk: each holds exactly one whole event."""
    with connect(running, {"stream": True}) as sock:
        data = read_until(sock, b"\r\n0\r\n\r\n")
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    count = 0
    while True:
        size_text, _, rest = rest.partition(b"\r\n")
        size = int(size_text, 16)
        if size == 0:
            break
        piece, rest = rest[:size], rest[size + 2 :]
        assert piece.startswith(b"data: ")
        assert piece.endswith(b"\n\n")
        assert piece.count(b"\n\n") == 1
        count += 1
    assert count >= 4


def test_deltas_arrive_while_the_model_is_still_decoding(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.02))
    with connect(running, {"stream": True}) as sock:
        read_until(sock, b"word")
        assert running.llm.engine.stats().running == 1
    assert running.settled()


def test_a_long_prefill_gets_headers_and_pings(start: Any, script: Any) -> None:
    running = start(script(prefill_token_s=0.03), headers_after_s=0.1, ping_interval_s=0.1)
    with connect(running, {"stream": True}) as sock:
        data = read_until(sock, b"[DONE]")
    assert data.count(b": ping\n\n") >= 2
    # The first piece of text may be any beginning of the answer: how tokens are grouped into deltas is not fixed.
    assert data.index(b'"role":"assistant"') < data.index(b": ping") < data.index(b'"content":"H')
    assert data.count(b'"role":"assistant"') == 1


def test_a_quick_stream_has_no_comments(running: Any) -> None:
    assert ": ping" not in running.post(stream=True).text


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_before_the_first_token_is_a_status(start: Any, script: Any, stream: bool) -> None:
    running = start(script(fail_in=1))
    response = running.post(stream=stream)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"
    assert running.settled()


def test_a_fault_after_tokens_breaks_the_connection(start: Any, script: Any, caplog: pytest.LogCaptureFixture) -> None:
    running = start(script(reply=LONG, decode_step_s=0.01))
    with caplog.at_level(logging.ERROR, "edgellm.server"), connect(running, {"stream": True}) as sock:
        data = read_until(sock, b"word")
        running.script.fail_in = 1
        data += read_all(sock)
    assert b" 200 " in data
    assert b"content" in data
    assert b"[DONE]" not in data
    assert b'finish_reason":"' not in data
    assert not data.endswith(b"0\r\n\r\n")
    assert "stream broken" in caplog.text
    running.script.fail_in = 6
    assert running.post(stream=False).status_code == 500
    running.script.fail_in = 50
    with pytest.raises(httpx.RemoteProtocolError):
        running.post(stream=True)


def test_a_fault_during_a_long_prefill_breaks_the_opened_stream(start: Any, script: Any) -> None:
    running = start(
        script(prefill_token_s=0.02, fail_in=4), prefill_chunk=4, headers_after_s=0.05, ping_interval_s=0.05
    )
    with connect(running, {"stream": True}) as sock:
        data = read_all(sock)
    assert b": ping" in data
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n")


def test_keep_alive_serves_many_requests_on_one_connection(running: Any) -> None:
    ids = set()
    with connect(running) as sock:
        raw = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
        for _ in range(5):
            sock.sendall(HEADERS.format(len(raw)).encode() + raw)
            data = read_until(sock, b"\r\n0\r\n\r\n")
            ids.update(re.findall(rb"chatcmpl-\w+", data))
        assert len(ids) == 5
    assert running.server.config.timeout_keep_alive > 5


def hang_up(running: Any, body: dict[str, Any], wait_for: bytes | None) -> None:
    with connect(running, body) as sock:
        if wait_for is not None:
            read_until(sock, wait_for)
        else:
            assert running.wait_for(lambda stats: stats.running)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_prefill_cancels(start: Any, script: Any, stream: bool) -> None:
    running = start(script(prefill_token_s=0.02), prefill_chunk=4)
    messages = [{"role": "user", "content": "word " * 1000}]
    hang_up(running, {"stream": stream, "messages": messages}, None)
    assert running.settled(2.0)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_decode_cancels(start: Any, script: Any, stream: bool) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05))
    hang_up(running, {"stream": stream, "max_tokens": 20000}, b"word" if stream else None)
    assert running.settled(2.0)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_cancels(start: Any, script: Any, stream: bool) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), slots=1)
    with connect(running, {"stream": True}):
        others = [connect(running, {"stream": stream}) for _ in range(3)]
        assert running.wait_for(lambda stats: stats.queued == 3)
        assert running.llm.engine.stats().queued == 3
        for other in others:
            other.close()
        assert running.wait_for(lambda stats: not stats.queued)
        stats = running.llm.engine.stats()
        assert (stats.running, stats.queued) == (1, 0)
    assert running.settled(2.0)


def test_more_clients_than_slots_all_get_answers(start: Any, script: Any) -> None:
    running = start(script(decode_step_s=0.005), slots=1)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: codes.append(running.post(stream=n % 2 == 0).status_code))
        for n in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 32
    assert running.settled()


def test_a_full_queue_answers_503_with_retry_after(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), slots=1, max_queue=1, retry_after_s=7)
    with connect(running, {"stream": True}), connect(running, {"stream": True}):
        assert running.wait_for(lambda stats: stats.queued == 1)
        for stream in (True, False):
            response = running.post(stream=stream)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "7"
            assert response.json()["error"]["code"] == "queue_full"
    assert running.settled(2.0)


def test_requests_in_flight_are_bounded(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), max_in_flight=2)
    with connect(running, {"stream": True}), connect(running, {"stream": False}):
        assert running.wait_for(lambda stats: stats.running == 2)
        assert running.post().status_code == 503
        assert running.http.get("/health").status_code == 200
    assert running.settled(2.0)
    running.script.reply = "short"
    # The engine is idle a moment before the server has taken leave of the clients that went.
    assert running.wait_for(lambda _: running.post().status_code == 200)


def test_stopping_the_server_ends_running_streams(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), shutdown_grace_s=0)
    with connect(running, {"stream": True}) as sock:
        read_until(sock, b"word")
        running.server.should_exit = True
        data = read_all(sock)
        assert b"[DONE]" not in data
    assert running.settled(2.0)


def test_a_deadline_is_an_error_and_not_a_short_answer(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.02), deadline_s=0.2)
    response = running.post()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    with connect(running, {"stream": True}) as sock:
        data = read_all(sock)
    assert b"word" in data
    assert b"[DONE]" not in data
    assert running.settled(2.0)
