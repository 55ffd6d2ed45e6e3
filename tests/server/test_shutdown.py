"""Health, readiness and the way a server stops."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from sockets import LONG, connect, read_all, read_until


def test_health_says_when_the_engine_is_dead(running: Any) -> None:
    assert running.http.get("/health").json()["status"] == "ok"
    running.kill()
    response = running.http.get("/health")
    assert response.status_code == 503
    assert "scripted fault" in response.json()["reason"]
    for stream in (True, False):
        refused = running.post(stream=stream)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_dead"
    assert "edgellm_engine_healthy 0.0" in running.http.get("/metrics").text


def test_ready_is_health_with_room(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), max_in_flight=1)
    assert running.http.get("/ready").json() == {"status": "ready"}
    with connect(running, {"stream": True}) as sock:
        read_until(sock, b"word")
        busy = running.http.get("/ready")
        assert (busy.status_code, busy.json()["status"], busy.headers["retry-after"]) == (503, "busy", "1")
        assert running.http.get("/health").status_code == 200


def test_a_dead_engine_is_not_ready(running: Any) -> None:
    running.kill()
    assert running.http.get("/ready").json() == {"status": "dead"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_stopping_server_finishes_what_runs_and_takes_nothing_new(start: Any, script: Any, stream: bool) -> None:
    running = start(script(reply="word " * 40, decode_step_s=0.5), shutdown_grace_s=60, retry_after_s=7)
    with connect(running, {"stream": stream}) as sock, connect(running) as idle:
        assert running.wait_for(lambda stats: stats.running == 1)
        running.server.handle_exit(signal.SIGTERM, None)
        health = running.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert running.http.get("/ready").status_code == 503
        refused = running.post(stream=stream)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "7"
        assert refused.headers["connection"] == "close"
        assert running.http.get("/v1/models").status_code == 200
        running.script.decode_step_s = 0.0
        data = read_all(sock)
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
        assert read_all(idle) == b""
    assert running.llm.engine.stats().finished.get("stop") == 1


def test_the_grace_period_ends(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), shutdown_grace_s=1)
    with connect(running, {"stream": True}) as sock:
        read_until(sock, b"word")
        running.server.handle_exit(signal.SIGTERM, None)
        data = read_all(sock)
        assert b"[DONE]" not in data
        assert not data.endswith(b"0\r\n\r\n")
    assert running.settled(2.0)


def test_a_second_interrupt_does_not_wait(start: Any, script: Any) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), shutdown_grace_s=600)
    with connect(running, {"stream": True}) as sock:
        read_until(sock, b"word")
        running.server.handle_exit(signal.SIGINT, None)
        running.server.handle_exit(signal.SIGINT, None)
        assert b"[DONE]" not in read_all(sock)
    assert running.settled(2.0)
