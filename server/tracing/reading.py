"""Reads traces back: the requests in lines of `dynamo.request.trace.v1`, of this server or of Dynamo.

Other event types and a last line that was cut are skipped and counted; anything else that is wrong is an error that
names file, line and field.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from edgellm.errors import EdgeLLMError
from edgellm.server.tracing.records import REQUEST_END, SCHEMA

_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib: gzip header, largest window
_CHUNK: Final = 1 << 16
_SHOWN: Final = 60  # characters of a wrong value in an error


class TraceError(EdgeLLMError):
    """A trace file is missing or a line of it is not a record."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One `request_end` event. Times in milliseconds, unix where they say so; None: the record does not say.

    Attributes:
        session_id: None for a request without a session.
        end_ms: arrival + total time.
        wait_ms: from arrival to the start of prefill; `held_ms` of it in admission.
        block_tokens, hashes: of the prompt's blocks; empty when the record has none.
        output_known: whether `output_tokens` is a count and not a stand-in.
    """

    request_id: str
    session_id: str | None
    parent_id: str | None
    model: str | None
    trigger: str | None
    finish_reason: str | None
    tools: tuple[str, ...]
    received_ms: int
    total_ms: float
    wait_ms: float | None
    prefill_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    block_tokens: int
    hashes: tuple[int, ...]
    held_ms: float = 0.0
    paused: bool = False
    outcome: str | None = None
    accepted_length: float | None = None
    verify_steps: int = 0
    output_known: bool = True

    @property
    def end_ms(self) -> float:
        return self.received_ms + self.total_ms


@dataclass(frozen=True, slots=True)
class Trace:
    """Attributes:
    requests: by arrival.
    skipped: event types that are not requests, with their counts.
    cut: files that ended within a line.
    """

    requests: tuple[TracedRequest, ...]
    skipped: Mapping[str, int]
    cut: int

    def notes(self) -> list[str]:
        """What was left out, in words."""
        notes = [f"skipped {count} events {kind}" for kind, count in sorted(self.skipped.items())]
        if self.cut:
            notes.append(f"skipped {self.cut} lines cut at the end of a file")
        return notes


def read_traces(paths: Iterable[Path]) -> Trace:
    """Files of JSON lines, plain or gzip (told by their content).

    Raises:
        TraceError: a file cannot be read, or a line is wrong.
    """
    requests: list[TracedRequest] = []
    skipped: dict[str, int] = {}
    cut = 0
    for path in paths:
        for number, line, whole in _lines(path):
            where = f"{path}:{number}"
            try:
                row = _Row(where, "", json.loads(line))
            except ValueError as error:
                if whole:
                    raise TraceError(f"{where}: not JSON: {error}") from error
                cut += 1
                continue
            event = row.row("event")
            kind = event.text("event_type") or ""
            if event.text("schema") != SCHEMA or kind != REQUEST_END:
                skipped[kind] = skipped.get(kind, 0) + 1
            else:
                requests.append(_request(event))
    return Trace(tuple(sorted(requests, key=lambda request: request.received_ms)), skipped, cut)


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Number, line, whether a line feed ended it. Empty lines are passed over."""
    rest = b""
    number = 0
    try:
        with path.open("rb") as file:
            for chunk in _unzipped(file) if file.peek(2)[:2] == _GZIP else iter(lambda: file.read(_CHUNK), b""):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    number += 1
                    if line.strip():
                        yield number, line, True
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except zlib.error as error:
        raise TraceError(f"{path}: damaged gzip data after line {number}: {error}") from error
    if rest.strip():
        yield number + 1, rest, False


def _unzipped(file: BinaryIO) -> Iterator[bytes]:
    """The members of a gzip file one after the other; what a last member lacks is not missed."""
    member = zlib.decompressobj(_GZIP_WINDOW)
    while chunk := file.read(_CHUNK):
        while chunk:
            if member.eof:
                member = zlib.decompressobj(_GZIP_WINDOW)
            yield member.decompress(chunk)
            chunk = member.unused_data


class _Row:
    """An object of a record whose fields are checked as they are taken."""

    def __init__(self, where: str, path: str, values: Any) -> None:
        self.where = where
        self._path = path
        if not isinstance(values, dict):
            self._fail(path or "the line", "an object", values)
        self._values: dict[str, Any] = values

    def row(self, name: str) -> _Row:
        """A nested object; absent or null counts as empty."""
        found = self._values.get(name)
        return _Row(self.where, self._name(name), {} if found is None else found)

    def rows(self, name: str) -> list[_Row]:
        return [_Row(self.where, self._name(name), value) for value in self._list(name)]

    def text(self, name: str) -> str | None:
        found = self._values.get(name)
        if found is not None and not isinstance(found, str):
            self._fail(self._name(name), "a string", found)
        return found

    def number(self, name: str) -> float | None:
        found = self._values.get(name)
        if found is not None and (
            isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < float("inf")
        ):
            self._fail(self._name(name), "a number of at least 0", found)
        return found

    def whole(self, name: str) -> int | None:
        found = self.number(name)
        if found is not None and not isinstance(found, int):
            self._fail(self._name(name), "a whole number", found)
        return found

    def needed(self, name: str) -> int:
        found = self.whole(name)
        if found is None:
            self._fail(self._name(name), "a whole number", None)
        return found

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def hashes(self, name: str) -> tuple[int, ...]:
        found = self._list(name)
        for value in found:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
                self._fail(self._name(name), "unsigned 64-bit numbers", value)
        return tuple(found)

    def _list(self, name: str) -> list[Any]:
        found = self._values.get(name)
        if found is not None and not isinstance(found, list):
            self._fail(self._name(name), "a list", found)
        return found or []

    def _name(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _fail(self, name: str, wanted: str, found: Any) -> NoReturn:
        got = "nothing" if found is None else repr(found)[:_SHOWN]
        raise TraceError(f"{self.where}: {name}: must be {wanted}, got {got}")


def _request(event: _Row) -> TracedRequest:
    context, request, ours = event.row("agent_context"), event.row("request"), event.row("edgellm")
    replay, finish = request.row("replay"), request.row("finish_reason_metadata")
    ended = event.needed("event_time_unix_ms")
    received, total = request.whole("request_received_ms"), request.number("total_time_ms")
    if received is None:
        received = ended - round(total or 0.0)
    hashes = replay.hashes("input_sequence_hashes")
    block_tokens = replay.whole("trace_block_size") or 0
    length = replay.whole("input_length")
    if length is None:
        length = request.needed("input_tokens")
    if hashes and -(-length // max(block_tokens, 1)) != len(hashes):
        raise TraceError(
            f"{event.where}: {len(hashes)} hashes of blocks of {block_tokens} tokens do not fit the input's length"
        )
    return TracedRequest(
        request_id=request.text("request_id") or "",
        session_id=context.text("session_id"),
        parent_id=context.text("parent_session_id"),
        model=request.text("model"),
        trigger=context.text("input_trigger"),
        finish_reason=finish.text("finish_reason"),
        tools=tuple(call.text("name") or "" for call in finish.rows("tool_calls")),
        received_ms=received,
        total_ms=max(0, ended - received) if total is None else total,
        wait_ms=request.number("prefill_wait_time_ms"),
        prefill_ms=request.number("prefill_time_ms"),
        ttft_ms=request.number("ttft_ms"),
        itl_ms=request.number("avg_itl_ms"),
        input_tokens=length,
        output_tokens=request.whole("output_tokens") or 0,
        cached_tokens=request.whole("cached_tokens"),
        block_tokens=block_tokens,
        hashes=hashes,
        held_ms=ours.number("held_ms") or 0.0,
        paused=ours.flag("paused"),
        outcome=ours.text("outcome"),
        accepted_length=ours.number("accepted_length"),
        verify_steps=ours.whole("verify_steps") or 0,
        output_known=not ours.flag("output_unknown"),
    )
