"""Request ids and log lines."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from edgellm.server.logs import JsonFormatter, TextFormatter, current_request, set_up_logging


def test_logs_hold_sizes_and_no_text(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    running.script.reply = "confidential answer"
    with caplog.at_level(logging.DEBUG):
        messages = [{"role": "user", "content": "confidential question"}]
        body = {"messages": messages, "stream": True}
        running.http.post("/v1/chat/completions", json=body, headers={"X-Session-ID": "django__1 2"})
        running.post(messages=[{"role": "user", "content": ["confidential"]}])
        running.http.get("/v1/models/confidential%0Aline")
    lines = [record.getMessage() for record in caplog.records if record.name == "edgellm.server.access"]
    assert "POST /v1/chat/completions 200" in lines[0]
    assert "completion=" in lines[0]
    assert "prompt=" in lines[0]
    assert "session='django__1 2'" in lines[0]
    assert "POST /v1/chat/completions 400" in lines[1]
    assert "\n" not in lines[2]
    assert "confidential answer" not in caplog.text
    assert "confidential question" not in caplog.text


@pytest.mark.parametrize("stream", [True, False])
def test_every_answer_has_a_request_id(running: Any, stream: bool) -> None:
    """The client's own when it is sane."""
    for given in ("abc-1", "req_0:1/2", "x" * 128):
        for method, path, body in [
            ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": stream}),
            ("POST", "/v1/chat/completions", {"messages": 5}),
            ("GET", "/health", None),
            ("GET", "/nope", None),
        ]:
            response = running.http.request(method, path, json=body, headers={"X-Request-ID": given})
            assert response.headers.get_list("x-request-id") == [given]
    made = set()
    for odd in (None, "", "a b", "é".encode(), "x" * 129, "a\tb"):
        response = running.http.get("/health", headers={} if odd is None else {"X-Request-ID": odd})
        made.add(response.headers["x-request-id"])
    assert len(made) == 6
    assert all(name.startswith("req-") for name in made)


def test_a_refusal_has_a_request_id_too(start: Any) -> None:
    running = start(api_keys=("k",))
    response = running.http.get("/v1/models", headers={"Authorization": "Bearer wrong", "X-Request-ID": "mine"})
    assert (response.status_code, response.headers["x-request-id"]) == (401, "mine")


class Lines(logging.Handler):
    """Formats records where they are written, as a handler does."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_log_lines_have_the_request_id(running: Any, formatter: logging.Formatter) -> None:
    logger, handler = logging.getLogger("edgellm.server"), Lines(formatter)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        body = {"messages": [{"role": "user", "content": "confidential"}]}
        running.http.post("/v1/chat/completions", json=body, headers={"X-Request-ID": "mine-1"})
        running.script.fail_in = 1
        running.http.post("/v1/chat/completions", json=body, headers={"X-Request-ID": "mine-2"})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert "confidential" not in "".join(handler.lines)
    if isinstance(formatter, JsonFormatter):
        first, failure, second = map(json.loads, handler.lines)
        assert (first["request_id"], first["status"], first["path"]) == ("mine-1", 200, "/v1/chat/completions")
        assert first["completion"] > 0
        assert first["duration_ms"] >= 0
        assert (failure["level"], failure["request_id"], second["status"]) == ("ERROR", "mine-2", 500)
    else:
        assert [line.rsplit(" ", 1)[1] for line in handler.lines] == [f"request=mine-{n}" for n in (1, 2, 2)]


def test_json_lines_hold_exceptions_on_one_line() -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "a\nb %s", ("c",), None)
    try:
        raise ValueError("inner")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == "a\nb c"
    assert "ValueError: inner" in entry["exception"]
    assert "request_id" not in entry


def test_text_lines_name_the_request_before_the_traceback() -> None:
    token = current_request.set("r1")
    record = logging.LogRecord("x", logging.INFO, "f", 1, "done", (), None)
    text = TextFormatter().format(record)
    current_request.reset(token)
    assert text.endswith("INFO x: done request=r1")


def test_logging_that_is_set_up_is_left_alone() -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    assert before, "pytest captures logs"
    set_up_logging("json")
    assert root.handlers == before
