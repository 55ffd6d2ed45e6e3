"""Outputs between the engine and its readers: nothing is lost, merged or not; nobody blocks the engine."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.decode.params import SamplingParams
from edgellm.runtime.generation import Channel, Generation
from edgellm.runtime.types import Output, TokenLogprob

PROMPT = tuple(range(10, 90))
Open = Callable[..., Any]


def outputs(sizes: list[int]) -> list[Output]:
    made, start = [], 0
    for size in sizes:
        ids = tuple(range(start, start + size))
        entries = tuple(TokenLogprob(token, -0.5) for token in ids)
        made.append(Output(token_ids=ids, text="".join(f"<{token}>" for token in ids), logprobs=entries))
        start += size
    return [*made, Output(finish_reason="stop")]


@given(sizes=st.lists(st.integers(0, 4), max_size=12), reads=st.lists(st.booleans(), min_size=13, max_size=13))
def test_slow_and_fast_readers_get_the_same(sizes: list[int], reads: list[bool]) -> None:
    channel, taken = Channel(), []
    sent = outputs(sizes)
    for output, read in zip(sent, reads, strict=False):
        channel.push(output)
        if read:
            taken.append(channel.take())
    taken += list(Generation("g", channel))
    got = [output for output in taken if output is not None]
    for name in ("token_ids", "logprobs"):
        assert sum((getattr(o, name) for o in got), ()) == sum((getattr(o, name) for o in sent), ())
    assert "".join(o.text for o in got) == "".join(o.text for o in sent)
    assert [o.finish_reason for o in got].count("stop") == 1
    assert got[-1].finish_reason == "stop"
    assert channel.take() is None


def test_a_reader_that_sleeps_gets_one_output(open_rig: Open, eventually: Any) -> None:
    rig = open_rig()
    generation = rig.submit(PROMPT, SamplingParams(max_tokens=500))
    eventually(lambda: generation.finished)
    (output,) = list(generation)
    assert len(output.token_ids) == 500
    assert output.usage.completion_tokens == 500


def test_dropping_a_generation_cancels_it() -> None:
    cancelled = threading.Event()
    channel = Channel()
    channel.on_cancel = cancelled.set
    generation = Generation("g", channel)
    assert not cancelled.is_set()
    del generation
    gc.collect()
    assert cancelled.is_set()


def test_sync_reader_in_another_thread() -> None:
    channel, got = Channel(), []
    generation = Generation("g", channel)
    reader = threading.Thread(target=lambda: got.extend(generation))
    reader.start()
    for output in outputs([1, 2, 3]):
        channel.push(output)
    reader.join(60)
    assert sum((output.token_ids for output in got), ()) == tuple(range(6))


@given(sizes=st.lists(st.integers(1, 3), max_size=8))
@settings(max_examples=15, deadline=None)
def test_async_reader(sizes: list[int]) -> None:
    async def read() -> tuple[int, ...]:
        channel = Channel()
        generation = Generation("g", channel)
        threading.Thread(target=lambda: [channel.push(output) for output in outputs(sizes)]).start()
        return sum([output.token_ids async for output in generation], ())

    assert asyncio.run(read()) == tuple(range(sum(sizes)))


def test_a_waiting_async_reader_can_be_interrupted_and_go_on() -> None:
    async def read() -> None:
        channel = Channel()
        generation = Generation("g", channel)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(generation), 0.01)
        channel.push(Output(token_ids=(1,)))
        assert (await anext(generation)).token_ids == (1,)

    asyncio.run(read())


def test_a_closed_event_loop_cancels() -> None:
    cancelled = threading.Event()
    channel = Channel()
    channel.on_cancel = cancelled.set
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(channel.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    channel.push(Output(token_ids=(1,)))
    assert cancelled.is_set()


def test_many_async_streams_at_once(open_rig: Open) -> None:
    rig = open_rig()
    expected = rig.run(PROMPT, SamplingParams(max_tokens=64)).token_ids

    async def one() -> tuple[int, ...]:
        return sum([output.token_ids async for output in rig.submit(PROMPT, SamplingParams(max_tokens=64))], ())

    async def several() -> list[tuple[int, ...]]:
        return await asyncio.gather(*[one() for _ in range(20)])

    assert asyncio.run(several()) == [expected] * 20
    rig.settle()
