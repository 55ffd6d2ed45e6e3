"""The output items of a response and the events that build them.

Order, for each item: ``output_item.added``, its parts as they come, the ``.done`` of each part, ``output_item.done``.
An item is done before the next one is added. What must stay true: the deltas of an item joined are its text, and the
item of ``output_item.done`` is the one of the whole body; every block of reasoning is an item of its own.

With a summary asked for, the summary of a reasoning item is the reasoning itself: there is nothing that would shorten
it, and clients such as Codex show summaries only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

from edgellm.server.names import new_id
from edgellm.server.responses.raw_input import RawInput
from edgellm.server.responses.tools import Tool, Toolbox
from edgellm.server.wire import Chunk
from edgellm.text.deltas import ContentDelta, ParsedDelta, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

Status = Literal["in_progress", "completed", "incomplete"]


class OutputItem(Protocol):
    """One item as it grows. Its events lack `item_id`, `output_index` and `sequence_number`."""

    @property
    def id(self) -> str: ...

    def opening(self) -> Iterable[Chunk]: ...

    def add(self, text: str) -> Iterable[Chunk]: ...

    def closing(self) -> Iterable[Chunk]: ...

    def item(self, status: Status) -> dict[str, Any]:
        """As it stands now."""
        ...


class Output:
    """All items of one response.

    Args:
        tools: by which calls are told apart.
        summary: reasoning items have a summary.
    """

    def __init__(self, tools: Toolbox, *, summary: bool) -> None:
        self._tools = tools
        self._summary = summary
        self._done: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._reasoned = False

    @property
    def items(self) -> list[dict[str, Any]]:
        """Those that are done, and the one that is not."""
        return [*self._done, *([] if self._open is None else [self._open.item("in_progress")])]

    def feed(self, delta: ParsedDelta) -> Iterator[Chunk]:
        match delta:
            case ContentDelta(text):
                if not isinstance(self._open, _Words):
                    yield from self._begin(_Words())
                yield from self._add(text)
            case ReasoningDelta(text):
                if not isinstance(self._open, _Thoughts):
                    yield from self._begin(_Thoughts(summary=self._summary))
                    text = text.removeprefix("\n") if self._reasoned else text  # it parts the blocks of one text
                    self._reasoned = True
                yield from self._add(text)
            case ToolCallStart(_, call_id, name):
                tool = self._tools.tools.get(name) or Tool("function", name, None, {})
                yield from self._begin(_CustomCall(call_id, tool) if tool.kind == "custom" else _Call(call_id, tool))
            case ToolCallArguments(_, fragment):
                yield from self._add(fragment)
            case ToolCallEnd():
                yield from self._end("completed")

    def finish(self, *, whole: bool) -> Iterator[Chunk]:
        """Close what is open.

        Args:
            whole: the model ended its turn itself. A call that is open has no end even so.
        """
        is_call = isinstance(self._open, (_Call, _CustomCall))
        yield from self._end("completed" if whole and not is_call else "incomplete")

    def _begin(self, item: OutputItem) -> Iterator[Chunk]:
        yield from self._end("incomplete" if isinstance(self._open, (_Call, _CustomCall)) else "completed")
        self._open = item
        index = len(self._done)
        yield {"type": "response.output_item.added", "output_index": index, "item": item.item("in_progress")}
        yield from self._placed(item, item.opening())

    def _add(self, text: str) -> Iterator[Chunk]:
        if self._open is not None and text:
            yield from self._placed(self._open, self._open.add(text))

    def _end(self, status: Status) -> Iterator[Chunk]:
        if self._open is None:
            return
        yield from self._placed(self._open, self._open.closing())
        index = len(self._done)
        self._done.append(self._open.item(status))
        self._open = None
        yield {"type": "response.output_item.done", "output_index": index, "item": self._done[index]}

    def _placed(self, item: OutputItem, events: Iterable[Chunk]) -> Iterator[Chunk]:
        for event in events:
            yield {**event, "item_id": item.id, "output_index": len(self._done)}


class _Words:
    def __init__(self) -> None:
        self.id = new_id("msg_")
        self._text: list[str] = []

    def opening(self) -> Iterator[Chunk]:
        yield {"type": "response.content_part.added", "content_index": 0, "part": self._part()}

    def add(self, text: str) -> Iterator[Chunk]:
        self._text.append(text)
        yield {"type": "response.output_text.delta", "content_index": 0, "delta": text, "logprobs": []}

    def closing(self) -> Iterator[Chunk]:
        part = self._part()
        yield {"type": "response.output_text.done", "content_index": 0, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", "content_index": 0, "part": part}

    def item(self, status: Status) -> dict[str, Any]:
        content = [self._part()] if self._text else []
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": "".join(self._text), "annotations": [], "logprobs": []}


class _Thoughts:
    def __init__(self, *, summary: bool) -> None:
        self.id = new_id("rs_")
        self._summary = summary
        self._text: list[str] = []

    def opening(self) -> Iterator[Chunk]:
        if self._summary:
            part = self._part("summary_text")
            yield {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": part}
        yield {"type": "response.content_part.added", "content_index": 0, "part": self._part("reasoning_text")}

    def add(self, text: str) -> Iterator[Chunk]:
        self._text.append(text)
        if self._summary:
            yield {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": text}
        yield {"type": "response.reasoning_text.delta", "content_index": 0, "delta": text}

    def closing(self) -> Iterator[Chunk]:
        summary, part = self._part("summary_text"), self._part("reasoning_text")
        if self._summary:
            yield {"type": "response.reasoning_summary_text.done", "summary_index": 0, "text": summary["text"]}
            yield {"type": "response.reasoning_summary_part.done", "summary_index": 0, "part": summary}
        yield {"type": "response.reasoning_text.done", "content_index": 0, "text": part["text"]}
        yield {"type": "response.content_part.done", "content_index": 0, "part": part}

    def item(self, status: Status) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": [self._part("summary_text")] if self._summary and self._text else [],
            "content": [self._part("reasoning_text")] if self._text else [],
        }

    def _part(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "text": "".join(self._text)}


class _Call:
    def __init__(self, call_id: str, tool: Tool) -> None:
        self.id = new_id("fc_")
        self._call_id = call_id
        self._tool = tool
        self._arguments: list[str] = []

    def opening(self) -> Iterable[Chunk]:
        return ()

    def add(self, text: str) -> Iterator[Chunk]:
        self._arguments.append(text)
        yield {"type": "response.function_call_arguments.delta", "delta": text}

    def closing(self) -> Iterator[Chunk]:
        arguments = "".join(self._arguments)
        yield {"type": "response.function_call_arguments.done", "name": self._tool.name, "arguments": arguments}

    def item(self, status: Status) -> dict[str, Any]:
        return _call_item("function_call", self.id, self._call_id, self._tool, status) | {
            "arguments": "".join(self._arguments)
        }


class _CustomCall:
    def __init__(self, call_id: str, tool: Tool) -> None:
        self.id = new_id("ctc_")
        self._call_id = call_id
        self._tool = tool
        self._raw = RawInput()
        self._input: list[str] = []

    def opening(self) -> Iterable[Chunk]:
        return ()

    def add(self, text: str) -> Iterator[Chunk]:
        yield from self._show(self._raw.add(text))

    def closing(self) -> Iterator[Chunk]:
        yield from self._show(self._raw.end())
        yield {"type": "response.custom_tool_call_input.done", "input": "".join(self._input)}

    def item(self, status: Status) -> dict[str, Any]:
        return _call_item("custom_tool_call", self.id, self._call_id, self._tool, status) | {
            "input": "".join(self._input)
        }

    def _show(self, text: str) -> Iterator[Chunk]:
        if text:
            self._input.append(text)
            yield {"type": "response.custom_tool_call_input.delta", "delta": text}


def _call_item(kind: str, item_id: str, call_id: str, tool: Tool, status: Status) -> dict[str, Any]:
    namespace = {} if tool.namespace is None else {"namespace": tool.namespace}
    return {"id": item_id, "type": kind, "status": status, "call_id": call_id, "name": tool.name, **namespace}
