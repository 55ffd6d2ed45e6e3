"""API keys: every route asks for one, whatever the header; none is ever shown."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import ConfigError
from edgellm.server.gate import OPEN_PATHS
from edgellm.server.keys import Keys, gather_keys
from edgellm.server.settings import ServerSettings

UNKNOWN = [("GET", "/"), ("GET", "/docs"), ("POST", "/v1/embeddings"), ("GET", "/nope"), ("GET", "/health/")]


def routes(app: Any) -> list[tuple[str, str]]:
    """(method, path) of every route of the application."""
    found = [(method, route.path) for route in app.routes for method in sorted(route.methods)]
    assert len(found) >= 10
    return [(method, path.replace("{name:path}", "tiny")) for method, path in found]


def test_every_route_but_health_needs_a_key(start: Any) -> None:
    running = start(api_keys=("sécret-key", "second"))
    wrong: list[dict[str, Any]] = [
        {},
        {"x-api-key": "wrong"},
        {"x-api-key": "Bearer second"},
        *(
            {"Authorization": value.encode()}
            for value in ("Bearer wrong", "Bearer", "sécret-key", "Basic sécret-key", "Bearer sécret-key2")
        ),
    ]
    right: list[dict[str, Any]] = [
        {"Authorization": "Bearer sécret-key".encode()},
        {"Authorization": "bearer   second"},
        {"x-api-key": "sécret-key".encode()},
        {"X-API-Key": "second", "Authorization": "Bearer other"},
    ]
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}") as client:
        for method, path in [*routes(running.app), *UNKNOWN]:
            for headers in wrong:
                response = client.request(method, path, headers=headers, content=b"{}")
                if path in OPEN_PATHS:
                    assert response.status_code == 200
                else:
                    assert response.status_code == 401, (method, path, headers)
                    if method != "HEAD":
                        assert response.json()["error"]["type"] == "authentication_error"
            for headers in right:
                with client.stream(method, path, headers=headers, content=b"{}") as answer:  # some never end
                    assert answer.status_code != 401
    assert {"/health", "/dashboard"} == OPEN_PATHS  # the page holds no data


@given(st.lists(st.text(min_size=1)), st.text())
def test_only_the_keys_themselves_open(keys: list[str], given_key: str) -> None:
    token = given_key.encode("utf-8")
    admitted = Keys(keys).admit([(b"x-api-key", token)])
    assert admitted == (not keys or token.strip() in [key.encode("utf-8") for key in keys])


def test_sources_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# operators\n  one \n\ntwo\n", encoding="utf-8")
    environ = {"EDGELLM_API_KEY": "three", "EDGELLM_API_KEYS": "four, five,,one"}
    assert gather_keys(["flag", "one"], environ, file) == ("flag", "one", "three", "four", "five", "two")
    assert gather_keys([], {"EDGELLM_API_KEYS": "", "EDGELLM_API_KEY": ""}, None) == ()


def test_a_source_without_keys_never_means_no_key(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# none yet\n", encoding="utf-8")
    for environ, file, match in [
        ({}, empty, "holds no key"),
        ({}, tmp_path / "missing", "cannot be read"),
        ({"EDGELLM_API_KEYS": " , "}, None, "EDGELLM_API_KEYS holds no key"),
    ]:
        with pytest.raises(ConfigError, match=match):
            gather_keys([], environ, file)
    with pytest.raises(ConfigError, match="api_keys"):
        ServerSettings(model="m", api_keys=gather_keys([" "], {}, None))


def test_keys_are_never_shown(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    running = start(api_keys=("topsecret",))
    with caplog.at_level(logging.DEBUG):
        running.post()
        running.http.get("/v1/models", headers={"Authorization": "Bearer topsecret2"})
        running.http.get("/v1/models", headers={"x-api-key": "topsecret"})
        metrics = running.http.get("/metrics").text
    assert "topsecret" not in caplog.text + metrics + repr(ServerSettings(model="m", api_keys=("topsecret",)))
