"""The OpenAPI document tells the truth: it covers the routes, and a client that is driven by it meets no surprise."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edgellm.server.openapi import openapi_document
from edgellm.server.parameters import CHAT, COMPLETION, MESSAGE
from edgellm.server.settings import ServerSettings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis drives this test and is not installed")

from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def document(tokenizer: Any) -> dict[str, Any]:
    return openapi_document(ServerSettings(model="tiny"), tokenizer[0].vocab_size)


def test_every_route_is_described_and_no_other(running: Any, document: dict[str, Any]) -> None:
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in running.app.routes
        for method in route.methods - {"HEAD"}
    }
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == served
    assert running.http.get("/openapi.json").json() == document


def test_every_field_is_described(document: dict[str, Any]) -> None:
    for name, table in (("ChatRequest", CHAT), ("CompletionRequest", COMPLETION), ("Message", MESSAGE)):
        properties = document["components"]["schemas"][name]["properties"]
        assert properties.keys() == table.honoured.keys() | table.refused.keys() | table.ignored.keys()
        untyped = {field for field in table.honoured if properties[field].keys() == {"description"}}
        assert untyped == set()


def test_keys_are_asked_for_where_they_are_needed(document: dict[str, Any]) -> None:
    assert "security" not in document
    secured = openapi_document(ServerSettings(model="m", api_keys=("k",)), 1000)
    assert secured["security"] == [{"bearer": []}, {"key": []}]
    without = {path for path, methods in secured["paths"].items() if "security" in methods.get("get", {})}
    assert without == {"/health", "/dashboard"}


ENDLESS = {"/v1/kv/events"}
OPERATIONS = [
    (path, method)
    for path, methods in openapi_document(ServerSettings(model="tiny"), 1000)["paths"].items()
    for method in methods
    if path not in ENDLESS
]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_request_breaks_the_server(start: Any, script: Any, path: str, method: str) -> None:
    """Answers too are what the document says."""
    running = start(script(reply="Hello é😀 there."), slots=4)
    api = schemathesis.openapi.from_asgi("/openapi.json", running.app)

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path][method].as_strategy(), mend=st.booleans())
    def run(case: Any, mend: bool) -> None:
        if mend and isinstance(case.body, dict) and isinstance(case.body.get("messages"), list):
            # What the schema cannot say: the template wants a question, questions want a text, one prompt is enough.
            case.body.pop("prompt", None)
            case.body["messages"] = [{**message, "content": "hi"} for message in case.body["messages"]]
            case.body["messages"].append({"role": "user", "content": "hi"})
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    statuses: set[int] = set()
    run()
    assert "{" in path or 200 in statuses
    assert running.settled()
