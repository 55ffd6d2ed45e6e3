"""The engine loop: what a request gets back, in every way that it can end by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from edgellm.cache import TokenRange
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.scripts import HashScript, ReplyScript
from edgellm.errors import EngineDeadError, RequestError
from edgellm.runtime.types import CacheParams

OFF, CHAIN, TREE = SpeculationParams(steps=0), SpeculationParams(top_k=1), SpeculationParams()
SHAPES = pytest.mark.parametrize("shape", [OFF, CHAIN, TREE, "auto"], ids=["off", "chain", "tree", "auto"])
PROMPT = tuple(range(10, 90))
Open = Callable[..., Any]


def reply(said: list[int], eos: int, vocab: int) -> ReplyScript:
    return ReplyScript(said, eos=eos, vocab_size=vocab, agreement=1.0)


@SHAPES
def test_limit_inside_a_tree(open_rig: Open, shape: Any) -> None:
    rig = open_rig(speculation=shape)
    whole = rig.run(PROMPT, SamplingParams(max_tokens=40))
    assert whole.finish_reason == "length"
    for limit in (1, 2, 3, 7):
        cut = rig.run(PROMPT, SamplingParams(max_tokens=limit))
        assert cut.token_ids == whole.token_ids[:limit]
        assert cut.finish_reason == "length"
        assert cut.usage.completion_tokens == limit
    rig.settle()


@SHAPES
def test_context_ends_inside_a_tree(open_rig: Open, shape: Any) -> None:
    rig = open_rig(speculation=shape, max_tokens=96)
    result = rig.run(PROMPT, SamplingParams())
    assert result.finish_reason == "length"
    assert len(result.token_ids) == 96 - len(PROMPT)
    rig.settle()


@SHAPES
def test_eos_inside_a_tree(open_rig: Open, tokenizer: Any, shape: Any) -> None:
    rig = open_rig(reply([65, 66, 67, 68, 69], 2, tokenizer.vocab_size), eos=[2], speculation=shape)
    result = rig.run(PROMPT, SamplingParams())
    assert result.token_ids == (65, 66, 67, 68, 69, 2)
    assert (result.finish_reason, result.stop_reason) == ("stop", None)
    assert result.text == tokenizer.decode([65, 66, 67, 68, 69])
    rig.settle()


@SHAPES
def test_stop_token_is_named_and_has_no_text(open_rig: Open, tokenizer: Any, shape: Any) -> None:
    rig = open_rig(reply([65, 66, 67, 68, 69], 2, tokenizer.vocab_size), speculation=shape)
    result = rig.run(PROMPT, SamplingParams(stop_token_ids=(67,)))
    assert result.token_ids == (65, 66, 67)
    assert (result.finish_reason, result.stop_reason) == ("stop", 67)
    assert result.text == tokenizer.decode([65, 66])


@SHAPES
def test_stop_string_inside_an_accepted_run(open_rig: Open, tokenizer: Any, shape: Any) -> None:
    said = tokenizer.encode("one two STOP three four five six", allow_special=False)
    rig = open_rig(reply(said, 2, tokenizer.vocab_size), eos=[2], speculation=shape)
    result = rig.run(PROMPT, SamplingParams(stop=("STOP", "never")))
    assert result.text == "one two "
    assert (result.finish_reason, result.stop_reason) == ("stop", "STOP")
    assert result.token_ids == tuple(said[: len(result.token_ids)])
    assert "STOP" in tokenizer.decode(list(result.token_ids))
    assert "STOP" not in tokenizer.decode(list(result.token_ids[:-1]))
    rig.settle()
    # What was kept for the next turn is what was said, and no more.
    again = rig.run((*PROMPT, *result.token_ids, 5), SamplingParams(max_tokens=2))
    assert again.usage.cached_tokens == len(PROMPT) + len(result.token_ids) - 1


@SHAPES
def test_unfinished_stop_string_is_shown_at_the_end(open_rig: Open, tokenizer: Any, shape: Any) -> None:
    said = tokenizer.encode("abc STO", allow_special=False)
    rig = open_rig(reply(said, 2, tokenizer.vocab_size), eos=[2], speculation=shape)
    assert rig.run(PROMPT, SamplingParams(stop=("STOP",))).text == "abc STO"


@SHAPES
def test_logprobs_come_with_every_token(open_rig: Open, shape: Any) -> None:
    result = open_rig(speculation=shape).run(PROMPT, SamplingParams(max_tokens=12, logprobs=2))
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
    assert all(len(entry.top) == 2 for entry in result.logprobs)


def test_usage_of_speculation(open_rig: Open) -> None:
    rig = open_rig(HashScript(1024, agreement=1.0), speculation=TREE)
    usage = rig.run(PROMPT, SamplingParams(max_tokens=41)).usage
    assert usage.prompt_tokens == len(PROMPT)
    assert usage.accepted_tokens + usage.verify_steps == 40  # all but the prompt's own token came from trees
    assert usage.drafted_tokens > usage.accepted_tokens > usage.verify_steps
    stats = rig.engine.stats()
    assert (stats.generated_tokens, stats.drafted_tokens) == (41, usage.drafted_tokens)
    assert stats.accepted_tokens == usage.accepted_tokens


def test_request_can_choose_its_speculation(open_rig: Open) -> None:
    rig = open_rig(speculation=TREE)
    assert rig.run(PROMPT, speculation=OFF).usage.verify_steps == 0
    rig = open_rig(speculation=None)
    assert rig.run(PROMPT, speculation=TREE).usage.verify_steps > 0


def test_no_speculation_without_a_draft_layer(open_rig: Open) -> None:
    rig = open_rig(speculation=TREE, draft_top_k=0, max_tree=0)
    result = rig.run(PROMPT)
    assert result.usage.verify_steps == 0
    assert len(result.token_ids) == 8


def test_decoding_sequences_share_steps(open_rig: Open, gate: Any, read_all: Any) -> None:
    rig = open_rig(on_call=gate, max_batch=4)
    held = gate.hold("advance")
    running = [rig.submit(PROMPT[i:], SamplingParams(max_tokens=50)) for i in range(4)]
    held.open()
    assert [len(read_all(generation).token_ids) for generation in running] == [50] * 4
    assert rig.engine.stats().steps < 60


def test_streams_flow_during_a_long_prefill(open_rig: Open, gate: Any, read_all: Any) -> None:
    rig = open_rig(on_call=gate, prefill_chunk=16)
    started, later = gate.hold("advance", 2), gate.hold("advance", 60)
    stream = rig.submit(PROMPT, SamplingParams(max_tokens=100))
    started.wait()
    long = rig.submit(tuple(i % 500 for i in range(1600)), cache=CacheParams(read=False, write=False))
    started.open()
    later.wait()
    stats = rig.engine.stats()
    assert abs(stats.steps - stats.prefill_chunks) < 12  # about every other call was a decode step
    later.open()
    assert len(read_all(stream).token_ids) == 100
    assert len(read_all(long).token_ids) == 8


def test_higher_priority_runs_first(open_rig: Open, tokenizer: Any, gate: Any, read_all: Any) -> None:
    order: list[int] = []

    def answer(prompt: tuple[int, ...]) -> list[int]:
        order.append(prompt[0])
        return [7, 8]

    rig = open_rig(ReplyScript(answer, eos=2, vocab_size=tokenizer.vocab_size), eos=[2], on_call=gate, slots=1)
    held = gate.hold("advance")
    running = [rig.submit((0, 50))]
    held.wait()
    running += [rig.submit((number, 50), priority=priority) for number, priority in ((1, 0), (2, 0), (3, 1), (4, -1))]
    held.open()
    for generation in running:
        read_all(generation)
    assert order == [0, 3, 1, 2, 4]


def test_bad_requests_name_the_field(open_rig: Open) -> None:
    rig = open_rig(max_tokens=64)
    for prompt, fields, param, code in [
        ((), {}, "prompt", "invalid_value"),
        (range(64), {}, "prompt", "context_length_exceeded"),
        ((1, -1), {}, "prompt", "invalid_value"),
        ((1, 1024), {}, "prompt", "invalid_value"),
        ((1, 2.5), {}, "prompt", "invalid_value"),
        ((1,), {"sampling": SamplingParams(stop_token_ids=(5000,))}, "stop_token_ids[0]", "invalid_value"),
        ((1,), {"cache": CacheParams(decode_priority=101)}, "cache.decode_priority", "invalid_value"),
        ((1,), {"cache": CacheParams(decode_duration_s=0.0)}, "cache.decode_duration_s", "invalid_value"),
        ((1,), {"cache": CacheParams(ranges=(TokenRange(3, 2, 50),))}, "cache.ranges[0].end", "invalid_value"),
        ((1,), {"deadline_s": 0.0}, "deadline_s", None),
        ((1,), {"stable_lengths": (2,)}, "stable_lengths", None),
    ]:
        with pytest.raises(RequestError) as caught:
            rig.submit(prompt, **fields)
        assert (caught.value.param, caught.value.code) == (param, code)
    assert len(rig.run(range(63), SamplingParams()).token_ids) == 1
    rig.settle()


def test_closing_ends_everything(open_rig: Open, gate: Any, read_last: Any, eventually: Any) -> None:
    rig = open_rig(on_call=gate, slots=1)
    held = gate.hold("advance", 3)
    running, queued = rig.submit(PROMPT, SamplingParams(max_tokens=1000)), rig.submit(PROMPT)
    held.wait()
    closer = threading.Thread(target=rig.engine.close)
    closer.start()
    eventually(lambda: not rig.engine.stats().healthy)
    held.open()
    closer.join()
    assert read_last(running).finish_reason == "abort"
    assert read_last(queued).finish_reason == "abort"
    with pytest.raises(EngineDeadError, match="closed"):
        rig.submit(PROMPT)
    rig.engine.close()
    stats = rig.engine.stats()
    assert not stats.healthy
    assert stats.running == stats.queued == stats.cache.leases == 0
