"""Conversations that are offloaded while idle: what the engine answers, and what it does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edgellm.cache import TokenRange
from edgellm.decode.params import SamplingParams
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.recipe import Recipe
from edgellm.engine.scripted import fail_at
from edgellm.errors import ConfigError, EngineDeadError, ExecutionError, RequestError
from edgellm.runtime import engine as engine_module
from edgellm.runtime.engine import Engine
from edgellm.runtime.results import Collector, Result
from edgellm.runtime.settings import EngineSettings
from edgellm.runtime.types import CacheParams, Request

Open = Callable[..., Any]
PROMPT = tuple(range(10, 310))
PATIENCE_S = 60


def done(future: Future[Any]) -> Any:
    return future.result(PATIENCE_S)


@pytest.mark.parametrize("files", [False, True])
def test_the_next_turn_is_as_if_nothing_had_happened(open_rig: Open, tmp_path: Path, files: bool) -> None:
    rig = open_rig(offload_bytes=1 << 30, offload_dir=tmp_path if files else None)
    answer = rig.run(PROMPT, SamplingParams(max_tokens=20)).token_ids
    turn = (*PROMPT, *answer, *range(500, 560))
    gone = done(rig.engine.offload((*PROMPT, *answer)))
    assert (gone.stored, gone.tokens) == (True, 319)
    assert (rig.engine.stats().cache.blocks, rig.engine.stats().cache.snapshots) == (0, 0)
    back = done(rig.engine.recall(turn))
    assert (back.tokens, back.recalled_tokens, back.bytes) == (319, 319, gone.bytes)
    result = rig.run(turn)
    assert result.usage.prefilled_tokens == 61
    assert result.token_ids == rig.run(turn, cache=CacheParams(read=False, write=False)).token_ids
    stats = rig.engine.stats().tier
    assert (stats.offloads, stats.recalls, stats.recalled_tokens) == (1, 1, 319)
    assert stats.bytes == stats.offloaded_bytes == stats.recalled_bytes == gone.bytes
    assert (stats.blocks, stats.snapshots) == (5, 2)
    rig.settle()
    rig.engine.close()
    assert list(tmp_path.glob("*/*.kv")) == []


def test_on_a_real_model_too(checkpoint: Path, tokenizer: Any, tmp_path: Path) -> None:
    recipe = Recipe(block_tokens=16, context=256, prefill_chunk=64)
    bundle = Bundle.open(build_bundle(checkpoint, tmp_path / "tiny", recipe))
    executor = OrtExecutor(bundle, slots=1, context=256, threads=1, speculation=True)
    made = EngineSettings(1 << 28, 1 << 28, offload_bytes=1 << 28, offload_dir=tmp_path / "tier")
    engine = Engine(executor, tokenizer, made, eos=[2])

    def run(prompt: tuple[int, ...], cache: CacheParams = CacheParams()) -> Result:  # noqa: B008
        collector = Collector()
        for output in engine.submit(Request("r", prompt, SamplingParams(max_tokens=12, ignore_eos=True), cache=cache)):
            collector.add(output)
        return collector.result()

    prompt = tuple(range(20, 120))
    answer = run(prompt).token_ids
    turn = (*prompt, *answer, *range(200, 230))
    expected = run(turn, CacheParams(read=False, write=False)).token_ids
    assert done(engine.offload((*prompt, *answer))).tokens == 111
    run(tuple(range(300, 400)))  # the slot holds something else
    assert engine.cache.match(turn).length == 0
    assert done(engine.recall(turn)).recalled_tokens == 111
    result = run(turn)
    assert (result.usage.cached_tokens, result.usage.prefilled_tokens) == (111, 31)
    assert result.token_ids == expected
    engine.cache.check()
    engine.close()


def test_without_a_tier_nothing_moves(open_rig: Open) -> None:
    rig = open_rig()
    rig.run(PROMPT)
    gone, back = done(rig.engine.offload(PROMPT)), done(rig.engine.recall(PROMPT))
    assert (gone.stored, gone.freed_bytes, back.tokens, back.recalled_tokens) == (False, 0, 299, 0)
    assert rig.run(PROMPT).usage.cached_tokens == 299


def test_a_running_request_keeps_what_it_holds(open_rig: Open, gate: Any, read_all: Any) -> None:
    rig = open_rig(on_call=gate, offload_bytes=1 << 30)
    rig.run(PROMPT)
    held = gate.hold("restore")
    running = rig.submit((*PROMPT, *range(40)))
    held.wait()
    moving = rig.engine.offload(PROMPT)
    held.open()
    assert read_all(running).usage.cached_tokens == 299
    assert done(moving).stored
    rig.settle()


def test_streams_go_on_between_the_pieces(open_rig: Open, read_all: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine_module, "PIECE_BYTES", 1)
    calls: list[str] = []
    gate: list[Any] = []
    rig = open_rig(
        on_call=lambda name, number: (calls.append(name), gate and gate[0](name, number)), offload_bytes=1 << 30
    )
    rig.run(PROMPT)
    done(rig.engine.offload(PROMPT))
    stream = rig.submit(range(700, 720), SamplingParams(max_tokens=200))
    next(stream)
    del calls[:]
    assert done(rig.engine.recall(PROMPT)).tokens == 299
    moves = [index for index, name in enumerate(calls) if name.startswith("load_")]
    assert len(moves) == 6
    for first, second in pairwise(moves):
        assert "advance" in calls[first:second], "two pieces in one turn"
    read_all(stream)
    rig.settle()


def test_a_fault_of_the_executor_ends_the_transfer_only(open_rig: Open) -> None:
    rig = open_rig(on_call=fail_at("load_block", 2, RuntimeError("no memory")), offload_bytes=1 << 30)
    rig.run(PROMPT)
    done(rig.engine.offload(PROMPT))
    with pytest.raises(ExecutionError, match="no memory"):
        done(rig.engine.recall(PROMPT))
    assert rig.engine.stats().faults == 1
    assert done(rig.engine.recall(PROMPT)).tokens == 299  # the tier has it still
    assert rig.run(PROMPT).usage.cached_tokens == 299
    rig.settle()


def test_transfers_end_with_the_engine(open_rig: Open, gate: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine_module, "PIECE_BYTES", 1)
    rig = open_rig(on_call=gate, offload_bytes=1 << 30)
    rig.run(PROMPT)
    held = gate.hold("advance")
    running = rig.submit(range(40))
    held.wait()
    waiting = [rig.engine.offload(PROMPT), rig.engine.recall(PROMPT)]
    cancelled = rig.engine.recall(PROMPT)
    assert cancelled.cancel()
    rig.engine._closing = True  # this turn is the last one
    held.open()
    rig.engine.close()
    for future in waiting:
        with pytest.raises(EngineDeadError, match="closed"):
            done(future)
    with pytest.raises(EngineDeadError, match="closed"):
        rig.engine.offload(PROMPT)
    list(running)


def test_a_cancelled_transfer_is_skipped(open_rig: Open, gate: Any) -> None:
    rig = open_rig(on_call=gate, offload_bytes=1 << 30)
    rig.run(PROMPT)
    held = gate.hold("advance")
    running = rig.submit(range(40))
    held.wait()
    first, second = rig.engine.offload(PROMPT), rig.engine.recall(PROMPT)
    assert first.cancel()
    held.open()
    assert (done(second).tokens, done(second).recalled_tokens) == (299, 0)
    list(running)
    rig.settle()


def test_tokens_must_be_tokens(open_rig: Open) -> None:
    for tokens in ((-1,), (2**32,), (1.5,)):
        with pytest.raises(RequestError, match="tokens") as caught:
            open_rig().engine.offload(tokens)
        assert caught.value.param == "tokens"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"offload_bytes": -1}, "offload_bytes"),
        ({"offload_dir": Path("x")}, "offload_dir"),
        ({"retained_share": 1.5}, "retained_share"),
        ({"retained_share": -0.1}, "retained_share"),
        ({"retained_share": float("nan")}, "retained_share"),
    ],
)
def test_settings_are_checked(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineSettings(block_budget=0, snapshot_budget=0, **fields)


# -- retention, as a request sets it


def test_a_request_sets_ranges_and_decode_priority(open_rig: Open) -> None:
    rig = open_rig(max_tokens=1024)
    wish = CacheParams(ranges=(TokenRange(128, None, 50), TokenRange(0, 64, 90)), decode_priority=20)
    rig.run(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True), cache=wish)
    rig.settle()  # what follows an answer is stored once it is out
    size = rig.executor.info.block_bytes
    assert rig.engine.stats().cache.block_bytes_by_priority == {"20": 2 * size, "35": size, "50": 3 * size, "90": size}


def test_the_share_that_may_be_retained_is_a_setting(open_rig: Open) -> None:
    rig = open_rig(block_budget=10 << 16, retained_share=0.2)
    rig.run(PROMPT, cache=CacheParams(ranges=(TokenRange(0, None, 90),)))
    rig.settle()
    stats = rig.engine.stats().cache
    assert stats.block_bytes_by_priority == {"35": 3 << 16, "90": 2 << 16}
    assert stats.clipped >= 3


def test_a_retained_head_is_restorable_by_the_second_conversation(open_rig: Open) -> None:
    rig = open_rig()
    wish = CacheParams().by_prompt_part(200)
    cached = [
        rig.run((*PROMPT[:200], 900 + i, *range(40)), stable_lengths=(230,), cache=wish).usage.cached_tokens
        for i in range(3)
    ]
    assert cached == [0, 200, 200]


def test_what_a_request_says_stands_before_the_defaults() -> None:
    ranges = (TokenRange(0, 10, 50),)
    wish = CacheParams(ranges=ranges, decode_priority=70).by_prompt_part(200)
    assert (wish.ranges, wish.decode_priority) == (ranges, 70)
    assert CacheParams().by_prompt_part(0) == CacheParams(decode_priority=30)
