"""What streaming costs: a real server over an executor without a model, and clients that only read.

Processor time of the server's process for each delta, of one stream and of many at once, and the longest silence among
the many, less the pace at which they are fed. A pace is needed: what a stream that is too fast has not sent yet goes
out as one delta. The server runs in a process of its own, so that the clients' work is not counted; the engine's loop
and the executor's stand-in are.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Final

import psutil
from rich.console import Console
from rich.table import Table

_TOKENS: Final = 2000  # of the single stream
_SINGLE_PACE_S: Final = 0.002
_PACE_S: Final = 0.01  # between two tokens of one of many streams
_PACED_TOKENS: Final = 250


@dataclass(frozen=True, slots=True)
class StreamCost:
    """Attributes:
    alone_us_per_delta: of the server's process, everything included, one stream: each delta wakes both its threads.
    streams: that ran at once for what follows.
    us_per_delta: the same of all of them.
    deltas_per_s: of all of them.
    longest_stall_ms: longest wait between two deltas of one stream beyond the pace.
    p99_stall_ms: 99th percentile of the same.
    """

    alone_us_per_delta: float
    streams: int
    us_per_delta: float
    deltas_per_s: float
    longest_stall_ms: float
    p99_stall_ms: float


def print_cost(cost: StreamCost, console: Console) -> None:
    """The figures as a table."""
    table = Table("figure", "value")
    table.add_row("server time per delta, one stream", f"{cost.alone_us_per_delta:.0f} us")
    table.add_row(f"server time per delta, {cost.streams} streams", f"{cost.us_per_delta:.0f} us")
    table.add_row("deltas per second, all streams", f"{cost.deltas_per_s:.0f}")
    table.add_row("longest stall; 99 % below", f"{cost.longest_stall_ms:.1f} ms; {cost.p99_stall_ms:.1f} ms")
    console.print(table)


def measure_streams(streams: int = 64) -> StreamCost:
    """Takes about ten seconds."""
    with _served(slots=1, step_s=_SINGLE_PACE_S) as (port, process):
        (arrivals,), used, _ = _measured(process, port, 1, _TOKENS)
    with _served(slots=streams, step_s=_PACE_S) as (port, process):
        many, used_by_many, seconds = _measured(process, port, streams, _PACED_TOKENS)
    deltas = sum(map(len, many))
    waits = sorted(wait for times in many for wait in _waits(times))
    return StreamCost(
        alone_us_per_delta=used / len(arrivals) * 1e6,
        streams=streams,
        us_per_delta=used_by_many / deltas * 1e6,
        deltas_per_s=deltas / seconds,
        longest_stall_ms=max(waits[-1] - _PACE_S, 0.0) * 1e3,
        p99_stall_ms=max(waits[int(0.99 * len(waits))] - _PACE_S, 0.0) * 1e3,
    )


def _cpu_s(process: psutil.Process) -> float:
    if sys.platform == "linux":
        # The process's clock, as clock_getcpuclockid(3) names it: nanoseconds, where cpu_times counts ticks of 10 ms,
        # in which a short measurement can be nothing.
        return time.clock_gettime(~process.pid << 3 | 2)
    times = process.cpu_times()
    return float(times.user + times.system)


def _measured(process: psutil.Process, port: int, streams: int, tokens: int) -> tuple[list[list[float]], float, float]:
    """(arrival times of each stream, processor seconds of the server, seconds)."""
    asyncio.run(_read(port, 50))  # first use of everything
    before, start = _cpu_s(process), time.perf_counter()
    found = asyncio.run(_read_many(port, streams, tokens))
    return found, _cpu_s(process) - before, time.perf_counter() - start


def _waits(times: list[float]) -> list[float]:
    """Seconds between neighbouring deltas; the first ones, when streams still start, are left out."""
    return [later - sooner for sooner, later in pairwise(times[len(times) // 10 :])]


async def _read_many(port: int, streams: int, tokens: int) -> list[list[float]]:
    return await asyncio.gather(*(_read(port, tokens) for _ in range(streams)))


async def _read(port: int, tokens: int) -> list[float]:
    """Times at which the deltas of one stream arrive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    times: list[float] = []
    while True:
        line = await reader.readline()
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
        elif line.startswith(b"data: [DONE]"):
            break
        elif not line or line.startswith(b'{"error"'):
            raise RuntimeError(f"the stream broke: {line!r}")
    writer.close()
    return times


@contextmanager
def _served(*, slots: int, step_s: float) -> Iterator[tuple[int, psutil.Process]]:
    """A server in a process of its own: (port, process)."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, slots, step_s), daemon=True)
    child.start()
    try:
        theirs.close()  # so that a child that dies ends the wait
        try:
            port: int = ours.recv()
        except EOFError:
            raise RuntimeError("the server did not start") from None
        yield port, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.join(20)


def _serve(ready: Connection, slots: int, step_s: float) -> None:
    from edgellm.bench.tiny import tiny_text
    from edgellm.engine.scripted import ScriptedExecutor, ScriptTiming
    from edgellm.engine.scripts import ReplyScript
    from edgellm.runtime.llm import LLM
    from edgellm.server.app import create_app
    from edgellm.server.run import listen, make_server
    from edgellm.server.settings import ServerSettings

    tokenizer, renderer = tiny_text()
    said = tokenizer.encode(" word" * (_TOKENS + 1), allow_special=False)
    executor = ScriptedExecutor(
        ReplyScript(said, eos=tokenizer.eos_token_ids[0], vocab_size=tokenizer.vocab_size),
        vocab_size=tokenizer.vocab_size,
        slots=slots,
        max_batch=slots,
        timing=ScriptTiming(decode_step_s=step_s),
    )
    settings = ServerSettings(model="scripted", host="127.0.0.1", port=0)
    with listen(settings) as sock, LLM.from_parts(executor, tokenizer, renderer, speculation=None) as llm:
        server = make_server(create_app(llm, settings), settings)
        ready.send(sock.getsockname()[1])
        server.run(sockets=[sock])
