"""Fixtures: an agent's requests without its wording.

Of a recorded request stay the structure, keys, roles, names of tools, schemas (names, types, enums, required), marks
and header names, and whatever the task or our own server said. Every other text becomes filler of the same lines and
lengths; identifiers, folders and machines become made-up ones, the same ones everywhere in a file.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .clients import Client, Place
from .script import AFTER, AGAIN, BEFORE, DELEGATE, FILE, SHORT, TASK, TOLD, WAIT, delegation, steps
from .serving import Exchange

FIXTURES: Final = Path(__file__).resolve().parent / "fixtures"
HOME: Final = "/home/dev"
WORK: Final = "/home/dev/project"

_FILLER: Final = "some plain words stand here in place of what was said "
_GRAMMAR: Final = 'start: LINE+\nLINE: /[^\\n]*/ "\\n"\n'

# Values that are structure, by key. Every other text is wording.
_STRUCTURE: Final = frozenset(
    {
        *(
            "type",
            "role",
            "name",
            "model",
            "id",
            "call_id",
            "tool_call_id",
            "tool_use_id",
            "status",
            "namespace",
            "syntax",
            "phase",
        ),
        *(
            "$schema",
            "required",
            "enum",
            "format",
            "pattern",
            "stream",
            "tool_choice",
            "effort",
            "summary",
            "verbosity",
        ),
        *("ttl", "keep", "include", "prompt_cache_key", "service_tier", "betas", "scope", "edits", "signature"),
        *("display", "request_kind", "thread_source", "turn_trigger", "history_initialization", "sandbox_mode"),
    }
)
_OWN_TEXT: Final = ("thinking", "arguments", "input", "reasoning_content")  # our model's, come back
_IDS: Final = (
    re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])"),
    re.compile(r"\b[a-z]{2,6}_(?=[A-Za-z]*\d)[0-9A-Za-z]{16,}\b(?!-)"),
    re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{16,64}\b"),
)
_SOME_TIME: Final = 1_767_225_600_000  # milliseconds
_TIMES: Final = range(1_600_000_000_000, 4_000_000_000_000)  # numbers that tell when it was recorded
_BILLING: Final = re.compile(r"(cc_version=[\d.]+\.)[0-9a-f]+|(cch=)[0-9a-f]+")
_TAG: Final = re.compile(r"\s*</?[A-Za-z_][\w-]*>\s*")
_KEPT_HEADERS: Final = re.compile(
    r"accept|content-type|user-agent|anthropic-.*|openai-.*|originator|version|x-(?!stainless|request-id).*|thread-id"
    r"|session-id|session_id|conversation_id|x-stainless-(?:lang|retry-count|timeout|helper-method)"
)


class Redactor:
    """One for each fixture, so that what is equal stays equal."""

    def __init__(self, place: Place) -> None:
        self._folders = {str(place.work): WORK, str(place.home): HOME, place.server: "http://server"}
        self._ids: dict[str, str] = {}
        own = [TASK, AGAIN, DELEGATE, TOLD, BEFORE, AFTER, SHORT, f"{WORK}/{FILE}", FILE, WORK]
        for step in (*steps(f"{WORK}/{FILE}"), *delegation((WAIT,), "")):
            own += [step.why, step.thought, *(v for v in step.values.values() if isinstance(v, str) and len(v) > 3)]
        lines = {line for text in own for line in text.split("\n")}
        kept = sorted(lines | {"hello", "helo"}, key=len, reverse=True)
        self._kept = re.compile("|".join(rf"(?<!\w){re.escape(x)}(?!\w)" for x in kept if x))

    def request(self, exchange: Exchange) -> dict[str, Any]:
        body = json.loads(exchange.body) if exchange.body else None
        headers = {name: self._header(name, value) for name, value in exchange.headers if _KEPT_HEADERS.fullmatch(name)}
        return {"method": exchange.method, "path": exchange.path, "headers": headers, "body": self._value(None, body)}

    def _header(self, name: str, value: str) -> str:
        if value.startswith("{"):
            return json.dumps(self._value(name, json.loads(value)))
        if name == "user-agent":
            return re.sub(r"\(.*?\)", "(machine)", value)
        return self._named(value)

    def _value(self, key: str | None, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self._named(name): self._value(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(key, item) for item in value]
        if not isinstance(value, str):
            return _SOME_TIME if type(value) is int and value in _TIMES else value
        if key == "definition":
            return _GRAMMAR
        if value.startswith("x-anthropic-billing-header:"):
            return _BILLING.sub(
                lambda m: (m[1] or m[2]) + self._fake("billing" + m[0], "0123456789abcdef", 5)[-5:], value
            )
        if value.startswith("{") and key not in _OWN_TEXT and _is_json(value):  # e.g. who the user is
            return json.dumps(self._value(key, json.loads(value)))
        named = self._named(value)
        if key in _OWN_TEXT or key in _STRUCTURE or (named != value and len(value) < 128 and "\n" not in value):
            return named
        return "\n".join(map(self._line, named.split("\n")))

    def _named(self, text: str) -> str:
        for found, fake in self._folders.items():
            text = text.replace(found, fake)
        for pattern in _IDS:
            text = pattern.sub(lambda m: self._fake(m[0], "", 0), text)
        return text

    def _fake(self, found: str, alphabet: str, length: int) -> str:
        if found not in self._ids:
            number = len(self._ids) + 1
            if alphabet:
                fake = f"{number:0{length}x}"
            else:
                prefix, mark, rest = found.rpartition("_")
                digits = iter(f"{number:0{len(rest.replace('-', ''))}x}")
                fake = prefix + mark + "".join(c if c == "-" else next(digits) for c in rest)
            self._ids[found] = fake
        return self._ids[found]

    def _line(self, line: str) -> str:
        """Filler of the same length, but for our own words, a tag that stands alone, and the indentation."""
        if _TAG.fullmatch(line):
            return line
        parts, at = [], 0
        for found in self._kept.finditer(line):
            parts += [_filler(line[at : found.start()]), found[0]]
            at = found.end()
        return "".join([*parts, _filler(line[at:])])


def _filler(text: str) -> str:
    stripped = text.strip()
    if not any(c.isalnum() for c in stripped):
        return text
    start = text.index(stripped)
    words = (_FILLER * (len(stripped) // len(_FILLER) + 1))[: len(stripped)]
    words = words[:-1] + "s" if words.endswith(" ") else words
    return text[:start] + words + text[start + len(stripped) :]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def write_fixture(client: Client, exchanges: Sequence[Exchange], place: Place) -> None:
    """`fixtures/NAME.json.gz`, and beside it an index for readers: of each request what differs from the last."""
    redactor = Redactor(place)
    requests = [redactor.request(exchange) for exchange in exchanges]
    FIXTURES.mkdir(exist_ok=True)
    fixture = {"agent": client.name, "version": client.version, "requests": requests}
    packed = gzip.compress(json.dumps(fixture, ensure_ascii=False).encode(), mtime=0)
    (FIXTURES / f"{client.name}.json.gz").write_bytes(packed)
    index = {"agent": client.name, "version": client.version, "requests": _changes([_entry(one) for one in requests])}
    (FIXTURES / f"{client.name}.index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")


def _changes(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each entry what differs from the one before, so that a reader sees what is new."""
    before: Mapping[str, Any] = {}
    found = []
    for entry in entries:
        found.append({key: value for key, value in entry.items() if key == "request" or before.get(key) != value})
        before = entry
    return found


def read_fixture(name: str) -> list[dict[str, Any]]:
    """Requests in order: method, path, headers, body."""
    data: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    requests: list[dict[str, Any]] = data["requests"]
    return requests


def _entry(request: Mapping[str, Any]) -> dict[str, Any]:
    body = request["body"] or {}
    entry = {
        "request": f"{request['method']} {request['path']}",
        "headers": request["headers"],
        "bytes": len(json.dumps(body)),
        "keys": sorted(body),
    }
    for key in ("messages", "input"):
        if isinstance(body.get(key), list):
            entry[key] = [_shape(item) for item in body[key]]
    if body.get("tools"):
        entry["tools"] = [_tool(tool) for tool in body["tools"]]
    small = {k: v for k, v in body.items() if k not in ("messages", "input", "tools") and len(json.dumps(v)) < 400}
    return entry | {"values": small}


def _shape(item: Mapping[str, Any]) -> str:
    said = item.get("content")
    parts = [part.get("type", "?") for part in said] if isinstance(said, list) else [] if said is None else ["text"]
    parts += ["tool_calls"] if item.get("tool_calls") else []
    return f"{item.get('role') or item.get('type')}: {', '.join(parts)}".rstrip(": ")


def _tool(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    schema = function.get("parameters") or function.get("input_schema") or {}
    kind = tool.get("type", "function")
    if "tools" in tool:
        return f"{kind} {tool['name']}: {', '.join(map(_tool, tool['tools']))}"
    return f"{kind} {function.get('name', '')}({', '.join(schema.get('properties', {}))})"
