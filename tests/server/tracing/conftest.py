"""Finished turns as the server reports them, and traces written from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgellm.runtime.types import Timing, Usage
from edgellm.server.sessions.identity import Identity
from edgellm.server.tracing.settings import TraceSettings
from edgellm.server.tracing.sink import RequestTrace
from edgellm.server.turns import CalledTool, TurnRecord

START_MS = 1_800_000_000_000
BLOCK = 64

MakeTurn = Callable[..., TurnRecord]
Write = Callable[..., Path]


def make_turn(**changes: Any) -> TurnRecord:
    """A turn of session "s" that called a tool, unless told otherwise."""
    given: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "x_request_id": "req-1",
        "surface": "chat",
        "model": "tiny",
        "identity": Identity("s", headers={"x-session-id": ("s",)}, harness="opencode"),
        "trigger": "user_message",
        "prompt": tuple(range(150)),
        "received_unix_ms": START_MS,
        "ended_unix_ms": START_MS + 1012,
        "outcome": "ok",
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": Usage(150, 120, 21, drafted_tokens=40, accepted_tokens=12, verify_steps=8),
        "timing": Timing(0.1, 0.3, 0.9),
        "tool_calls": (CalledTool(0, 0, "call-1", "read"),),
        "held_s": 0.05,
    }
    return TurnRecord(**given | changes)


def simulated(sessions: int = 6, turns: int = 8, seed: int = 0) -> list[TurnRecord]:
    """Turns of agents that grow their prompts, wait for tools and start sub-agents, in the order of their ends."""
    chance = random.Random(seed)
    found: list[TurnRecord] = []

    def run(name: str, parent: str | None, begin: float, length: int, prompt: list[int], depth: int) -> float:
        now, cached = begin, 0
        for number in range(length):
            held = chance.choice((0.0, 0.0, 0.0, chance.uniform(0.5, 4.0)))
            queued = chance.choice((0.0, chance.uniform(0.0, 1.5)))
            first = queued + (len(prompt) - cached) / 2500
            output, steps = chance.randint(30, 220), 0
            steps = max(1, round(output / chance.uniform(1.8, 3.4)))
            total = first + steps * 0.045
            ended = held + total
            calls = number + 1 < length
            failed = not calls and chance.random() < 0.1
            found.append(
                make_turn(
                    request_id=f"chatcmpl-{name}-{number}",
                    x_request_id=f"req-{name}-{number}",
                    identity=Identity(name, parent, final=not calls),
                    trigger="tool_result" if number and number != length - 2 else "user_message",
                    prompt=tuple(prompt),
                    received_unix_ms=START_MS + round(now * 1e3),
                    ended_unix_ms=START_MS + round((now + ended) * 1e3),
                    usage=Usage(len(prompt), cached, output, steps * 5, output - steps, steps),
                    timing=Timing(queued, first, total),
                    tool_calls=(CalledTool(0, 0, f"call-{name}-{number}", "Bash"),) if calls else (),
                    finish_reason="abort" if failed else "stop",
                    outcome="cancelled" if failed else "ok",
                    held_s=held,
                    paused=held > 2,
                )
            )
            now += ended
            cached = len(prompt) - 3
            prompt = prompt + [chance.randrange(1000) for _ in range(output + chance.randint(50, 900))]
            if depth < 2 and calls and chance.random() < 0.3 - 0.2 * depth:
                children = range(chance.randint(1, 2))
                starts = [now + 0.2 + chance.random() for _ in children]
                now = max(
                    run(f"{name}.{number}{at}", name, starts[at], max(2, length // 2), prompt[:1500], depth + 1)
                    for at in children
                )
            now += chance.uniform(0.3, 6.0)
        return now

    system = [chance.randrange(1000) for _ in range(3000)]
    for at in range(sessions):
        run(f"agent-{at:02d}", None, at * chance.uniform(0.0, 6.0), turns, system + [at] * 200, 0)
    return sorted(found, key=lambda turn: turn.ended_unix_ms)


@pytest.fixture
def turn() -> MakeTurn:
    return make_turn


@pytest.fixture
def agents() -> Callable[..., list[TurnRecord]]:
    return simulated


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write turns as a trace: `write(turns, name="t.jsonl")`."""

    def begin(turns: Sequence[TurnRecord], name: str = "t.jsonl") -> Path:
        path = tmp_path / name
        trace = RequestTrace(TraceSettings(path=path, format="jsonl", capacity=10_000), BLOCK)
        for one in turns:
            trace.record(one)
        trace.close()
        return path

    return begin
