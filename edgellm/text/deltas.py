"""What comes out of parsing a model's answer, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    index: int  # 0, 1, … in the order of the calls
    id: str
    name: str  # whole, as declared


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    index: int
    fragment: str  # joined over the call: one JSON object


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is complete; one that the end of the output cut, or that turned out malformed on its way, has none."""

    index: int


ParsedDelta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


def merged(deltas: Iterable[ParsedDelta]) -> list[ParsedDelta]:
    """The same stream in fewer pieces: neighbours of one kind joined, empty ones left out."""
    result: list[ParsedDelta] = []
    for delta in deltas:
        last = result[-1] if result else None
        match delta, last:
            case (ContentDelta(""), _) | (ReasoningDelta(""), _) | (ToolCallArguments(_, ""), _):
                pass
            case ContentDelta(text), ContentDelta(before):
                result[-1] = ContentDelta(before + text)
            case ReasoningDelta(text), ReasoningDelta(before):
                result[-1] = ReasoningDelta(before + text)
            case ToolCallArguments(index, fragment), ToolCallArguments(other, before) if index == other:
                result[-1] = ToolCallArguments(index, before + fragment)
            case _:
                result.append(delta)
    return result
