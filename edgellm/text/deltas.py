"""What comes out of parsing a model's answer, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    index: int
    fragment: str  # joined over the call: one JSON object


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    index: int


ParsedDelta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd
