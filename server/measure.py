"""What streaming costs: a real server over an executor without a model, and clients that only read.

Two figures: processor time of the server's process for each delta of a single stream, and the longest silence among
many streams at once, less the pace at which they are fed. A pace is needed: what a stream that is too fast has not sent
yet goes out as one delta. The server runs in a process of its own, so that the clients' work is not counted.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

_TOKENS: Final = 2000  # of the single stream
_SINGLE_PACE_S: Final = 0.002
_PACE_S: Final = 0.02  # between two tokens of a paced stream
_PACED_TOKENS: Final = 250


@dataclass(frozen=True, slots=True)
class StreamCost:
    """Attributes:
    cpu_us_per_delta: of the server's process, everything included, one stream.
    deltas_per_s: of that stream.
    streams: that ran at once for what follows.
    longest_stall_ms: longest wait between two deltas of one stream beyond the pace.
    p99_stall_ms: 99th percentile of the same.
    """

    cpu_us_per_delta: float
    deltas_per_s: float
    streams: int
    longest_stall_ms: float
    p99_stall_ms: float


def measure_streams(streams: int = 64) -> StreamCost:
    """Takes about ten seconds."""
    with _served(slots=1, step_s=_SINGLE_PACE_S) as (port, process):
        asyncio.run(_read(port, 100))  # first use of everything
        before, start = _cpu_s(process), time.perf_counter()
        arrivals = asyncio.run(_read(port, _TOKENS))
        seconds, used = time.perf_counter() - start, _cpu_s(process) - before
    with _served(slots=streams, step_s=_PACE_S) as (port, _):
        waits = sorted(asyncio.run(_read_many(port, streams)))
    return StreamCost(
        cpu_us_per_delta=used / len(arrivals) * 1e6,
        deltas_per_s=len(arrivals) / seconds,
        streams=streams,
        longest_stall_ms=max(waits[-1] - _PACE_S, 0.0) * 1e3,
        p99_stall_ms=max(waits[int(0.99 * len(waits))] - _PACE_S, 0.0) * 1e3,
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _read_many(port: int, streams: int) -> list[float]:
    """Seconds between neighbouring deltas, of all streams; the first ones, when streams still start, are left out."""
    found = await asyncio.gather(*(_read(port, _PACED_TOKENS) for _ in range(streams)))
    skip = _PACED_TOKENS // 10
    return [later - sooner for times in found for sooner, later in zip(times[skip:], times[skip + 1 :], strict=False)]


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
    from edgellm.checkpoint.synth import make_checkpoint
    from edgellm.engine.scripted import ScriptedExecutor, ScriptTiming
    from edgellm.engine.scripts import ReplyScript
    from edgellm.runtime.llm import LLM
    from edgellm.server.app import create_app
    from edgellm.server.run import listen, make_server
    from edgellm.server.settings import ServerSettings
    from edgellm.text.chat import ChatRenderer
    from edgellm.text.tokenizer import Tokenizer

    settings = ServerSettings(model="scripted", host="127.0.0.1", port=0)
    with tempfile.TemporaryDirectory(prefix="edgellm-streams-") as folder, listen(settings) as sock:
        path = make_checkpoint("tiny", Path(folder) / "tiny")
        tokenizer = Tokenizer.load(path)
        parts: list[Any] = [tokenizer, ChatRenderer.load(path, tokenizer)]
        said = tokenizer.encode(" word" * (_TOKENS + 1), allow_special=False)
        script = ReplyScript(said, eos=tokenizer.eos_token_ids[0], vocab_size=tokenizer.vocab_size)
        timing = ScriptTiming(decode_step_s=step_s)
        executor = ScriptedExecutor(
            script, vocab_size=tokenizer.vocab_size, slots=slots, max_batch=slots, timing=timing
        )
        with LLM.from_parts(executor, *parts, speculation=None) as llm:
            server = make_server(create_app(llm, settings), settings)
            ready.send(sock.getsockname()[1])
            server.run(sockets=[sock])
