"""What the handler yields, and that nothing goes on once nobody waits for it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.scripted import ScriptTiming
from edgellm.runtime.types import Output, Usage
from edgellm.server.dynamo.handler import chunk

PROMPT = list(range(10, 110))
SLOW = ScriptTiming(decode_step_s=0.01)
LONG = "word " * 300


def tokens(chunks: list[dict[str, Any]]) -> list[int]:
    return [token for chunk in chunks for token in chunk["token_ids"]]


def settled(llm: Any, timeout_s: float = 5.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        stats = llm.engine.stats()
        if stats.running == stats.queued == 0:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize("speculation", [None, SpeculationParams()])
def test_tokens_are_those_of_the_library(serve: Any, speculation: SpeculationParams | None) -> None:
    one = serve("Hello there, how are you today?", speculation=speculation)
    chunks = one.ask(PROMPT)
    result = one.llm.generate(PROMPT, SamplingParams())
    assert tuple(tokens(chunks)) == result.token_ids
    assert all(chunk["index"] == 0 for chunk in chunks)
    assert ["finish_reason" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["finish_reason"] == "stop"
    assert "stop_reason" not in chunks[-1]
    eos = one.llm.tokenizer.eos_token_ids[0]
    assert tokens(chunks).count(eos) == 1 == tokens(chunks[-1:]).count(eos)
    usage = chunks[-1]["completion_usage"]
    assert usage["completion_tokens"] == len(result.token_ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == 100 + len(result.token_ids)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_repeated_prompt_is_cached(serve: Any) -> None:
    one = serve()
    first, second = (one.ask(PROMPT)[-1]["completion_usage"]["prompt_tokens_details"] for _ in range(2))
    assert (first, second) == ({"cached_tokens": 0}, {"cached_tokens": 99})


def test_limits_and_stops(serve: Any) -> None:
    one = serve("one two three four")
    assert one.ask(PROMPT, stop_conditions={"max_tokens": 2})[-1]["finish_reason"] == "length"
    stop = one.llm.tokenizer.encode("one two three four", allow_special=False)[2]
    last = one.ask(PROMPT, stop_conditions={"stop_token_ids": [stop]})[-1]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    last = one.ask(PROMPT, stop_conditions={"stop": ["three"]})[-1]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "three")


def test_log_probabilities_stand_beside_their_tokens(serve: Any) -> None:
    chunks = serve("one two").ask(PROMPT, output_options={"logprobs": 2})
    for made in chunks:
        assert len(made["log_probs"]) == len(made["top_logprobs"]) == len(made["token_ids"])
        for token, logprob, top in zip(made["token_ids"], made["log_probs"], made["top_logprobs"], strict=True):
            assert [entry["rank"] for entry in top] == [1, 2]
            assert (top[0]["token_id"], top[0]["logprob"]) == (token, logprob)  # greedy: the best one
            assert bytes(top[0]["bytes"]).decode("utf-8", "replace") == top[0]["token"]
            assert all(math.isfinite(entry["logprob"]) for entry in top)


def test_a_caller_that_leaves_ends_the_generation(serve: Any, caller: Any) -> None:
    one = serve(LONG, timing=SLOW)

    async def leave() -> list[dict[str, Any]]:
        context, seen = caller(), []
        async for made in one.handler.generate({"token_ids": PROMPT}, context):
            seen.append(made)
            context.stop()
        return seen

    chunks = asyncio.run(leave())
    assert chunks[-1]["finish_reason"] == "cancelled"
    assert len(tokens(chunks)) < 50
    assert settled(one.llm)
    assert (one.load.in_flight, one.handler.held) == (0, {})


def test_a_stream_that_is_dropped_ends_the_generation(serve: Any, caller: Any) -> None:
    one = serve(LONG, timing=SLOW)

    async def drop() -> None:
        stream = one.handler.generate({"token_ids": PROMPT}, caller())
        await anext(stream)
        assert list(one.handler.held) == ["r1"]
        assert one.handler.held["r1"] > len(PROMPT)
        await stream.aclose()

    asyncio.run(drop())
    assert settled(one.llm)
    assert one.llm.engine.stats().finished == {"abort": 1}
    assert (one.load.in_flight, one.handler.held) == (0, {})


def test_a_caller_that_left_before_is_not_served(serve: Any, caller: Any) -> None:
    one = serve(LONG, timing=SLOW)

    async def late() -> list[dict[str, Any]]:
        context = caller()
        context.stop()
        return [made async for made in one.handler.generate({"token_ids": PROMPT}, context)]

    assert asyncio.run(late())[-1]["finish_reason"] == "cancelled"


def test_refusals_are_dynamos_errors(serve: Any, caller: Any) -> None:
    exceptions = pytest.importorskip("dynamo.llm.exceptions", reason="needs ai-dynamo-runtime (extra dynamo)")
    one = serve(LONG, slots=1, timing=SLOW, max_queue=1)
    with pytest.raises(exceptions.InvalidArgument, match=r"sampling_options\.n"):
        one.ask(PROMPT, sampling_options={"n": 2})
    with pytest.raises(exceptions.InvalidArgument, match="context"):
        one.ask(list(range(1024)))
    held = [one.llm.engine.submit(one.handler._reader.read({"token_ids": PROMPT}, "a"))]
    while one.llm.engine.stats().queued:
        time.sleep(0.001)
    held.append(one.llm.engine.submit(one.handler._reader.read({"token_ids": PROMPT}, "b")))
    with pytest.raises(exceptions.WorkerUnavailable):
        one.ask(PROMPT)
    for generation in held:
        generation.cancel()
    one.llm.close()
    with pytest.raises(exceptions.EngineShutdown):
        one.ask(PROMPT)


def test_a_worker_that_stops_says_so_to_whom_it_still_serves(serve: Any, caller: Any) -> None:
    """Not "cancelled": on this error a frontend may continue the request elsewhere."""
    exceptions = pytest.importorskip("dynamo.llm.exceptions", reason="needs ai-dynamo-runtime (extra dynamo)")
    one = serve(LONG, timing=SLOW)

    async def stop() -> None:
        stream = one.handler.generate({"token_ids": PROMPT}, caller())
        await anext(stream)
        await asyncio.to_thread(one.llm.close)
        async for _ in stream:
            pass

    with pytest.raises(exceptions.EngineShutdown):
        asyncio.run(stop())


def test_a_fault_ends_the_answer_with_an_error(serve: Any) -> None:
    def fail(operation: str, number: int) -> None:
        if operation == "advance" and number == 5:
            raise RuntimeError("scripted fault")

    one = serve(LONG, on_call=fail)
    chunks = one.ask(PROMPT)
    assert chunks[-1]["finish_reason"].startswith("error: ")
    assert "scripted fault" in chunks[-1]["finish_reason"]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("stop", "stop"), ("length", "length"), ("deadline", "length"), ("abort", "cancelled")],
)
def test_finish_reasons(serve: Any, reason: Any, shown: str) -> None:
    made = chunk(Output(token_ids=(1,), finish_reason=reason, usage=Usage(3, 2, 1)), serve().llm.tokenizer)
    assert made["finish_reason"] == shown
    assert made["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
