"""`edgellm replay`: send recorded conversations turn by turn and count what had to be prefilled.

The turns are those of the MLPerf harness: each prompt holds the *recorded* history, never this model's own output.
Against a bundle the requests go straight to the engine; against a URL they go over HTTP as the harness sends them,
plus `stream_options.include_usage`, since the counts come from the server.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import track
from rich.table import Table

from edgellm.decode.params import SamplingParams
from edgellm.errors import EdgeLLMError
from edgellm.jetson.machine import Machine, read_machine
from edgellm.mlperf.trace import Conversation, turn_requests

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    conversations: int = 20
    turns: int | None = None  # per conversation
    interleave: int = 1  # conversations in flight, one turn of each in rotation
    max_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class TurnResult:
    conversation: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    decode_s: float
    accepted_length: float | None  # tokens per verify step, root included

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True)
class ReplayReport:
    """Turns in the order they ran.

    Attributes:
        machine: this one, as read after the last turn.
        role: what it did: "engine", or "client" of a server, whose machine is not known.
    """

    turns: list[TurnResult] = field(default_factory=list)
    wall_s: float = 0.0
    machine: Machine | None = None
    role: Literal["engine", "client"] = "engine"

    def total(self) -> dict[str, Any]:
        """Sums and percentiles over all turns; times in seconds."""
        turns = self.turns
        ttft = sorted(turn.ttft_s for turn in turns)
        lengths = [turn.accepted_length for turn in turns if turn.accepted_length is not None]
        decode = sum(turn.decode_s for turn in turns)
        completed = sum(turn.completion_tokens for turn in turns)
        return {
            "turns": len(turns),
            "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
            "cached_tokens": sum(turn.cached_tokens for turn in turns),
            "prefilled_tokens": sum(turn.prefilled_tokens for turn in turns),
            "completion_tokens": completed,
            "ttft_s_p50": _percentile(ttft, 0.5),
            "ttft_s_p90": _percentile(ttft, 0.9),
            "ttft_s_p99": _percentile(ttft, 0.99),
            "decode_s": decode,
            "decode_tokens_per_s": (completed - len(turns)) / decode if decode > 0 else None,
            "accepted_length": sum(lengths) / len(lengths) if lengths else None,
            "wall_s": self.wall_s,
        }

    def to_dict(self) -> dict[str, Any]:
        rows = [{**asdict(turn), "prefilled_tokens": turn.prefilled_tokens} for turn in self.turns]
        machine = None if self.machine is None else {"role": self.role, **self.machine.to_dict()}
        return {"total": self.total(), "machine": machine, "turns": rows}


def replay_bundle(
    llm: LLM, recorded: Sequence[Conversation], options: ReplayOptions, *, console: Console
) -> ReplayReport:
    """Replay in process through `llm`'s engine (thinking off, greedy)."""

    def send(name: str, turn: int, body: dict[str, Any]) -> TurnResult:
        sampling = SamplingParams(max_tokens=options.max_tokens, seed=body.get("seed", 0))
        last = None
        for output in llm.stream(body["messages"], sampling, tools=body.get("tools"), enable_thinking=False):
            last = output
        if last is None or last.finish_reason in (None, "error", "abort") or last.usage is None or last.timing is None:
            raise EdgeLLMError(f"{name} turn {turn} failed: {last.error if last else 'no output'}")
        timing = last.timing
        return TurnResult(
            name,
            turn,
            last.usage.prompt_tokens,
            last.usage.cached_tokens,
            last.usage.completion_tokens,
            timing.first_token_s,
            timing.total_s - timing.first_token_s,
            last.usage.accepted_length,
        )

    return _run(send, recorded, options, console, role="engine")


def replay_url(
    url: str, recorded: Sequence[Conversation], options: ReplayOptions, *, model: str | None, console: Console
) -> ReplayReport:
    """Replay over HTTP against any OpenAI-compatible server that reports usage.

    `model`: the name to send; None: the first that the server lists.
    """
    from edgellm.mlperf.client import HarnessClient

    with HarnessClient(url) as client:
        name_sent = model or client.first_model()

        def send(name: str, turn: int, body: dict[str, Any]) -> TurnResult:
            body = {**body, "model": name_sent, "max_completion_tokens": options.max_tokens}
            body["stream_options"] = {"include_usage": True}
            answer = client.chat(body, session_id=name)
            if answer.usage is None:
                raise EdgeLLMError(f"{url} sends no usage; token counts are unknown")
            details = answer.usage.get("prompt_tokens_details") or {}
            ttft = answer.latency_s if answer.ttft_s is None else answer.ttft_s
            return TurnResult(
                name,
                turn,
                answer.usage["prompt_tokens"],
                details.get("cached_tokens") or 0,
                answer.usage["completion_tokens"],
                ttft,
                answer.latency_s - ttft,
                None,
            )

        return _run(send, recorded, options, console, role="client")


def _run(
    send: Callable[[str, int, dict[str, Any]], TurnResult],
    recorded: Sequence[Conversation],
    options: ReplayOptions,
    console: Console,
    *,
    role: Literal["engine", "client"],
) -> ReplayReport:
    report = ReplayReport(role=role)
    plan = list(schedule(recorded[: options.conversations], options))
    start = time.perf_counter()
    for name, turn, body in track(plan, description="replay", console=console, disable=not console.is_terminal):
        report.turns.append(send(name, turn, body))
    report.wall_s = time.perf_counter() - start
    report.machine = read_machine()
    return report


def schedule(recorded: Sequence[Conversation], options: ReplayOptions) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(conversation, turn number from 1, request body) in sending order.

    With `interleave` k, groups of k conversations take turns until each of the group is through.
    """
    for group in _batched(recorded, options.interleave):
        streams = [
            [
                (conversation.id, number, body)
                for number, body in enumerate(turn_requests(conversation)[: options.turns], 1)
            ]
            for conversation in group
        ]
        for row in itertools.zip_longest(*streams):
            yield from (entry for entry in row if entry is not None)


def _batched(items: Sequence[Conversation], size: int) -> Iterator[Sequence[Conversation]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def print_report(report: ReplayReport, console: Console) -> None:
    """One row per conversation and the totals."""
    table = Table(
        "conversation", "turns", "prompt", "cached", "prefilled", "TTFT p50 s", "decode s", "accepted", title="replay"
    )
    for name, rows in itertools.groupby(
        sorted(report.turns, key=lambda turn: turn.conversation), key=lambda turn: turn.conversation
    ):
        part = ReplayReport(list(rows)).total()
        table.add_row(name, *_cells(part))
    table.add_section()
    table.add_row("total", *_cells(report.total()))
    console.print(table)
    if report.machine is not None:
        console.print(f"{report.role}: {report.machine.summary()}", markup=False, highlight=False)


def _cells(total: dict[str, Any]) -> list[str]:
    accepted = total["accepted_length"]
    return [
        str(total["turns"]),
        f"{total['prompt_tokens']:,}",
        f"{total['cached_tokens']:,}",
        f"{total['prefilled_tokens']:,}",
        f"{total['ttft_s_p50']:.3f}",
        f"{total['decode_s']:.1f}",
        f"{accepted:.2f}" if accepted else "-",
    ]
