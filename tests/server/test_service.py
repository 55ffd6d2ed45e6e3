"""Routes, limits, metrics and settings; a thousand bad requests leave the engine as it was."""

from __future__ import annotations

import json
import logging
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from edgellm.errors import ConfigError
from edgellm.server.run import listen, make_server, ready_text
from edgellm.server.settings import ServerSettings


def test_errors_have_one_form(running: Any) -> None:
    for method, path, status in [
        ("GET", "/nope", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/chat/completions/", 404),
    ]:
        response = running.http.request(method, path)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    body = running.post(temperature=3).json()
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"] == "temperature"
    assert running.post(model="gpt-4").status_code == 404


def test_models_show_the_context(start: Any) -> None:
    running = start(aliases=("default", "org/name"))
    cards = running.http.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["tiny", "default", "org/name"]
    assert cards[0]["max_model_len"] == cards[0]["context_window"] == running.llm.info.max_tokens
    assert running.http.get("/v1/models/org/name").json()["id"] == "org/name"
    assert running.post(model="default").json()["model"] == "default"
    missing = running.http.get("/v1/models/gpt-4")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_compressed_bodies_are_refused_by_name(running: Any) -> None:
    response = running.http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_encoding")


def test_large_bodies_are_refused_at_once(running: Any) -> None:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(head.encode())  # not a byte of the body is needed
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
    big = b'{"messages":[{"role":"user","content":"' + b"x" * 50_000_000 + b'"}]}'
    response = running.http.post("/v1/chat/completions", content=big)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    chunked = running.http.post("/v1/chat/completions", content=iter([big[:1_000_000]] * 20))
    assert chunked.status_code == 413
    assert running.post().status_code == 200


def test_a_body_that_does_not_arrive_times_out(start: Any) -> None:
    running = start(body_timeout_s=0.1)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert sock.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_metrics_count_what_happened(start: Any, script: Any) -> None:
    running = start(script(reply="Hello there."))
    usage = running.post().json()["usage"]
    running.post(temperature=9)
    running.script.reply = "\n"
    running.post()
    running.script.reply = ""
    running.post(stream=True)
    text = running.http.get("/metrics").text
    values = {
        name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    }
    assert values['edgellm_requests_total{outcome="ok"}'] == 3
    assert values['edgellm_http_requests_total{route="/v1/chat/completions",status="400"}'] == 1
    assert values["edgellm_prompt_tokens_total"] == 3 * usage["prompt_tokens"]
    assert values["edgellm_generated_tokens_total"] >= usage["completion_tokens"]
    assert values["edgellm_time_to_first_token_seconds_count"] == 3
    assert values["edgellm_empty_turns_total"] >= 1
    assert values["edgellm_engine_running"] == 0


def test_a_bug_is_a_plain_500_and_is_logged(
    running: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inner detail")

    monkeypatch.setattr(running.llm.renderer, "render", broken, raising=False)
    with caplog.at_level(logging.ERROR, "edgellm.server"):
        response = running.post()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "inner detail" not in response.text
    assert "inner detail" in caplog.text
    monkeypatch.undo()
    assert running.post().status_code == 200


BAD = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b'{"messages":[]}',
    b'{"messages":"hi"}',
    rb'{"messages":[{"role":"user","content":"emoji \ud83d end"}]}',
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"a"}],"max_tokens":0}',
    b'{"messages":[{"role":"user","content":"a"}],"n":300}',
    b'{"messages":[{"role":"user","content":"a"}],"model":"none"}',
    b'{"messages":[{"role":"user","content":"a"}],"messages":[]}',
    b'{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"x"}]}',
    b'{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"xml"}}',
    b'{"messages":[{"role":"user","content":"a"}],"guided_json":{"$ref":"#"}}',
    b'{"messages":[{"role":"user","content":"a"}],"tool_choice":"required"}',
    b'{"messages":[{"role":"user","content":"' + b"word " * 5000 + b'"}]}',
    b'{"prompt":[1,2,99999999]}',
    b'{"prompt":""}',
    b'{"a":' * 500 + b"1" + b"}" * 500,
]


def test_a_thousand_faulty_requests_leave_nothing_behind(running: Any) -> None:
    running.post()
    assert running.settled()
    before = running.held()
    rng = random.Random(7)
    for _ in range(1000):
        path = rng.choice(["/v1/chat/completions", "/v1/completions"])
        response = running.http.post(path, content=rng.choice(BAD))
        assert 400 <= response.status_code < 500, response.text
        error = response.json()["error"]
        assert error["message"]
        assert error["param"] is not None or error["code"] == "invalid_json"
    for _ in range(50):  # clients that leave at any moment
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            raw = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": rng.random() < 0.5}).encode()
            whole = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
            sock.sendall(whole[: rng.randrange(len(whole) + 1)])
    assert running.settled()
    assert running.held() == before
    assert running.post().status_code == 200


def test_nul_is_an_ordinary_character(running: Any) -> None:
    assert running.post(messages=[{"role": "user", "content": "a\0b"}]).status_code == 200


def test_settings_are_checked() -> None:
    for changes, match in [
        ({"model": ""}, "model"),
        ({"port": 70000}, "port"),
        ({"api_keys": ("a", " ")}, "api_keys"),
        ({"cors_origins": ("example.com",)}, "cors_origins"),
        ({"cors_origins": ("https://example.com/",)}, "cors_origins"),
        ({"tls_cert": Path(__file__)}, "tls_key"),
        ({"tls_key": Path(__file__)}, "tls_cert"),
        ({"tls_cert": Path("missing.pem"), "tls_key": Path(__file__)}, "tls_cert"),
        ({"log_format": "xml"}, "log_format"),
        ({"max_depth": 1000}, "max_depth"),
        ({"max_stops": 17}, "max_stops"),
        ({"max_n": 0}, "max_n"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"ping_interval_s": 0}, "ping_interval_s"),
        ({"headers_after_s": float("inf")}, "headers_after_s"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"shutdown_grace_s": -1}, "shutdown_grace_s"),
    ]:
        with pytest.raises(ConfigError, match=match):
            ServerSettings(**{"model": "m", **changes})


def test_an_address_in_use_is_a_clear_error() -> None:
    with listen(ServerSettings(model="m", port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(ServerSettings(model="m", port=port))


def test_a_certificate_that_cannot_be_used_is_a_clear_error() -> None:
    secured = ServerSettings(model="m", tls_cert=Path(__file__), tls_key=Path(__file__))
    with pytest.raises(ConfigError, match="tls_cert, tls_key"):
        make_server(FastAPI(), secured)


def test_ready_text_never_shows_the_key() -> None:
    text = ready_text(ServerSettings(model="it's", host="0.0.0.0", api_keys=("secret",)), 81)
    assert "http://127.0.0.1:81/v1/chat/completions" in text
    assert "secret" not in text
    assert "$EDGELLM_API_KEY" in text
    secured = ServerSettings(model="m", tls_cert=Path(__file__), tls_key=Path(__file__))
    assert "https://127.0.0.1:8080/v1" in ready_text(secured, 8080)
    assert "http://[::1]:8080/v1" in ready_text(ServerSettings(model="m", host="::"), 8080)
