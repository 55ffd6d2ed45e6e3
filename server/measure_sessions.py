"""What sessions prefill that do not fit the cache together: each alone, all at once, and all with admission.

A real server over an executor without a model, and as many clients as there are sessions. A session is an agent's:
every turn sends all that was said and a new tool result behind it, after a pause in which the tool ran. The cache holds
a third of what all sessions need in the end. Times are a hundredth of a device's; what is prefilled does not depend on
them.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from edgellm.bench.tiny import tiny_text
from edgellm.engine.scripted import ScriptedExecutor, ScriptTiming
from edgellm.engine.scripts import ReplyScript
from edgellm.runtime.llm import LLM
from edgellm.server.admission.settings import AdmissionSettings
from edgellm.server.app import create_app
from edgellm.server.run import listen, make_server
from edgellm.server.settings import ServerSettings

_TOO_LARGE: Final = 3  # times the cache that all sessions need together
_TURN_TOKENS: Final = 500  # new ones of each turn, about
_SLOTS: Final = 4
_TOOL_S: Final = (0.01, 0.2)
_TIMING: Final = ScriptTiming(prefill_token_s=20e-6, decode_step_s=1e-3)
_SCALED: Final = AdmissionSettings(
    interval_s=0.05, acting_hold_s=0.05, idle_hold_s=0.01, patience_s=0.6, resume_timeout_s=18.0
)
_OFFLOAD_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class SessionsRun:
    """Attributes:
    turns: that were answered; `failed`: that were not.
    prompt_tokens, prefilled_tokens: of all turns.
    longest_wait_s: of a turn, from request to answer.
    finished: sessions that came to their end.
    offloads, recalls: of the second tier.
    """

    name: str
    turns: int
    failed: int
    prompt_tokens: int
    prefilled_tokens: int
    longest_wait_s: float
    finished: int
    offloads: int
    recalls: int

    @property
    def prefilled_per_turn(self) -> float:
        return self.prefilled_tokens / max(self.turns, 1)


@dataclass(frozen=True, slots=True)
class SessionsCost:
    """`budget_share`: the cache's size over what all sessions need in the end."""

    sessions: int
    budget_share: float
    runs: tuple[SessionsRun, ...]


def print_sessions(cost: SessionsCost, console: Console) -> None:
    """The runs as a table; "x alone" compares the tokens prefilled per turn."""
    alone = cost.runs[0].prefilled_per_turn
    table = Table("run", "finished", "failed", "prefilled/turn", "x alone", "longest turn", "out, in")
    for run in cost.runs:
        table.add_row(
            run.name,
            str(run.finished),
            str(run.failed),
            f"{run.prefilled_per_turn:.1f}",
            f"{run.prefilled_per_turn / alone:.2f}",
            f"{run.longest_wait_s:.2f} s",
            f"{run.offloads}, {run.recalls}",
        )
    turns, tokens = cost.runs[0].turns, cost.runs[0].prompt_tokens
    console.print(
        f"{cost.sessions} sessions, {turns} turns, {tokens:,} prompt tokens; "
        f"the cache holds {cost.budget_share:.0%} of what they need in the end"
    )
    console.print(table)


def measure_sessions(sessions: int = 8, turns: int = 12) -> SessionsCost:
    """Takes some seconds for each run."""
    words = [_words(number, turns) for number in range(sessions)]
    tokens = _final_tokens(words[0])
    alone = [_run("each alone", [each], tokens, sessions, admission=False) for each in words]
    return SessionsCost(
        sessions,
        1 / _TOO_LARGE,
        (
            SessionsRun(
                "each alone",
                sum(run.turns for run in alone),
                sum(run.failed for run in alone),
                sum(run.prompt_tokens for run in alone),
                sum(run.prefilled_tokens for run in alone),
                max(run.longest_wait_s for run in alone),
                sum(run.finished for run in alone),
                0,
                0,
            ),
            _run("together", words, tokens, sessions, admission=False),
            _run("together, admission", words, tokens, sessions, admission=True),
        ),
    )


def _words(number: int, turns: int) -> list[str]:
    """What the tools of a session say, turn by turn."""
    draw = random.Random(number)
    return [" ".join(f"{draw.randrange(10_000):04d}" for _ in range(_TURN_TOKENS // 5)) for _ in range(turns)]


def _final_tokens(words: list[str]) -> int:
    tokenizer, _ = tiny_text()
    return len(tokenizer.encode("\n".join(words), allow_special=False)) + 40 * len(words)


def _run(name: str, words: list[list[str]], tokens: int, sessions: int, *, admission: bool) -> SessionsRun:
    results: list[_Client] = [_Client(f"session-{number}", each) for number, each in enumerate(words)]
    with _served(tokens, sessions, admission=admission) as (port, llm):
        threads = [threading.Thread(target=client.run, args=(port, seed)) for seed, client in enumerate(results)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tier = llm.engine.stats().tier
    return SessionsRun(
        name,
        sum(len(client.usages) for client in results),
        sum(client.failed for client in results),
        sum(usage["prompt_tokens"] for client in results for usage in client.usages),
        sum(
            usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            for client in results
            for usage in client.usages
        ),
        max(client.longest_s for client in results),
        sum(len(client.usages) == len(client.words) for client in results),
        tier.offloads,
        tier.recalls,
    )


class _Client:
    """An agent of one session."""

    def __init__(self, session: str, words: list[str]) -> None:
        self.session = session
        self.words = words
        self.usages: list[dict[str, Any]] = []
        self.failed = 0
        self.longest_s = 0.0

    def run(self, port: int, seed: int) -> None:
        draw = random.Random(seed)
        messages: list[dict[str, str]] = [{"role": "system", "content": f"You are an agent of {self.session}."}]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for text in self.words:
            messages.append({"role": "user", "content": text})
            start = time.perf_counter()
            body = json.dumps({"messages": messages, "max_tokens": 16, "temperature": 0})
            connection.request("POST", "/v1/chat/completions", body, {"x-dynamo-session-id": self.session})
            response = connection.getresponse()
            answer = json.loads(response.read())
            self.longest_s = max(self.longest_s, time.perf_counter() - start)
            if response.status != 200:
                self.failed += 1
                return
            self.usages.append(answer["usage"])
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            time.sleep(draw.uniform(*_TOOL_S))
        connection.close()


@contextmanager
def _served(tokens: int, sessions: int, *, admission: bool) -> Iterator[tuple[int, LLM]]:
    """A server whose cache holds a third of `sessions` sessions of `tokens` tokens."""
    tokenizer, renderer = tiny_text()
    said = tokenizer.encode(" done", allow_special=False)
    executor = ScriptedExecutor(
        ReplyScript(said, eos=tokenizer.eos_token_ids[0], vocab_size=tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
        slots=_SLOTS,
        max_batch=_SLOTS,
        max_tokens=2 * tokens,
        timing=_TIMING,
    )
    info, chosen = executor.info, _SCALED
    blocks = -(-tokens // info.block_tokens) * sessions // _TOO_LARGE
    snapshots = chosen.snapshots_per_session * sessions // _TOO_LARGE
    settings = ServerSettings(model="scripted", port=0, admission=chosen if admission else None)
    with (
        listen(settings) as sock,
        LLM.from_parts(
            executor,
            tokenizer,
            renderer,
            speculation=None,
            cache_bytes=blocks * info.block_bytes,
            snapshot_bytes=snapshots * info.snapshot_bytes,
            offload_bytes=_OFFLOAD_BYTES if admission else 0,
        ) as llm,
    ):
        server = make_server(create_app(llm, settings), settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            yield sock.getsockname()[1], llm
        finally:
            server.should_exit = True
            thread.join(20)
