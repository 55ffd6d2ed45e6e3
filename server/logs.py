"""Log lines: text for people or JSON for machines, each with the id of the request in whose course it was written.

Access lines hold names, sizes, times and ids: no prompt, no answer, no key.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

current_request: ContextVar[str] = ContextVar("current_request", default="")
FORMATS: Final = ("text", "json")


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message request=ID``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        request = current_request.get()
        return f"{text} request={request}" if request else text


class JsonFormatter(logging.Formatter):
    """One object per line. A record's `details` (a dict given as `extra`) are fields of it."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := current_request.get():
            entry["request_id"] = request
        entry |= getattr(record, "details", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_up_logging(form: str) -> None:
    """Log INFO and above to stderr in one of `FORMATS`; a program that has set up logging keeps what it has."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
