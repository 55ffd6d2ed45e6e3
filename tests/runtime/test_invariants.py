"""Same request, same tokens: whatever the cache, speculation, chunking, neighbours, aborts and restarts do.

Each example is a small world: conversations that share beginnings, edit their history, are aborted at random moments
and run under one configuration of the engine. Every answer is compared, token for token, with that of a plain loop
over an executor of its own: no cache, no speculation, nobody beside it. A divergence at a draw that was nearly tied in
the plain loop is excused, counted and printed; the scripted model has no such excuse.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.decode.accept import accept_row
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.decode.sampler import Sampler
from edgellm.decode.stop import StopRule
from edgellm.engine.base import Chunk, Executor
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.recipe import Recipe
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.engine.scripts import HashScript
from edgellm.runtime.engine import Engine
from edgellm.runtime.settings import EngineSettings
from edgellm.runtime.types import Request
from edgellm.text.tokenizer import Tokenizer

CONTEXT, BLOCK, SLOTS, VOCAB, EOS = 512, 16, 4, 1024, 2
NEAR_TIE = 1e-4
SHAPES = [None, SpeculationParams(top_k=1), SpeculationParams(), SpeculationParams(3, 4, 7), "auto"]


# -- worlds: a model that can be opened as often as one likes


class World(Protocol):
    excused: int  # near ties so far
    compared: int  # conversations so far
    restored: int  # tokens from the cache so far
    accepted: int  # draft tokens so far
    recalled: int  # tokens from the tier so far

    def open(self) -> Executor:
        """An executor whose slots are empty and that holds no references."""
        ...

    def plain(self) -> Executor:
        """One for the plain loop."""
        ...


class ScriptedWorld:
    def __init__(self) -> None:
        self.excused = self.compared = self.restored = self.accepted = self.recalled = 0
        self._script = HashScript(VOCAB, alternatives=8, spread=3.0, eos=EOS, eos_rate=0.02)
        self._plain = self.open()

    def open(self) -> ScriptedExecutor:
        return ScriptedExecutor(
            self._script, vocab_size=VOCAB, slots=SLOTS, max_tokens=CONTEXT, max_chunk=CONTEXT, block_tokens=BLOCK
        )

    def plain(self) -> ScriptedExecutor:
        return self._plain


class Kept(OrtExecutor):
    """Closing leaves it open, empty, for the next engine: opening graphs takes longer than an example."""

    def close(self) -> None:
        for slot in range(self.info.slots):
            self.reset(slot)


class OrtWorld:
    def __init__(self, bundle: Bundle) -> None:
        self.excused = self.compared = self.restored = self.accepted = self.recalled = 0
        self._executor = Kept(bundle, slots=SLOTS, context=CONTEXT, threads=1, speculation=True)
        self._plain = OrtExecutor(bundle, slots=1, context=CONTEXT, threads=1, speculation=False)

    def open(self) -> Kept:
        return self._executor

    def plain(self) -> OrtExecutor:
        return self._plain

    def close(self) -> None:
        super(Kept, self._executor).close()
        self._plain.close()


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedWorld]:
    world = ScriptedWorld()
    yield world
    _report("scripted", world)


@pytest.fixture(scope="module")
def ort(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrtWorld]:
    recipe = Recipe(block_tokens=BLOCK, context=CONTEXT, prefill_chunk=CONTEXT)
    world = OrtWorld(Bundle.open(build_bundle(checkpoint, tmp_path_factory.mktemp("bundle") / "tiny", recipe)))
    yield world
    _report("onnxruntime", world)
    world.close()


def _report(name: str, world: World) -> None:
    print(
        f"\n{name}: {world.compared} conversations, {world.restored} tokens restored, {world.recalled} recalled, "
        f"{world.accepted} drafts accepted, {world.excused} near ties excused"
    )


# -- what is drawn


@dataclass(frozen=True)
class Config:
    """How the engine is set up."""

    chunk: int
    shape: Any
    blocks: int  # that fit in the cache
    snapshots: int
    cached: bool  # requests read and write it
    together: bool  # all conversations at once, or one after the other
    restart_after: int  # turns; with a cache folder
    tier_bytes: int  # conversations go there and come back while others run


@dataclass(frozen=True)
class Turn:
    """One request: how its prompt comes from the last one's and its answer, and how it is run."""

    edit: float  # share of the history that is kept; 1: all of it
    with_answer: bool
    new_tokens: int
    seed: int
    sampling: SamplingParams
    stable: str  # what the renderer would say: "answer", "prompt" or "unknown"
    abort: float | None  # share of the answer after which the client leaves; below 0: at once


@dataclass
class Conversation:
    system: int  # which of the shared beginnings
    turns: list[Turn]
    history: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    def next_prompt(self, turn: Turn) -> tuple[int, ...]:
        rng = np.random.default_rng(turn.seed)
        start = self.history or tuple(np.random.default_rng(self.system).integers(3, VOCAB, 40 + 40 * self.system))
        if self.history and turn.with_answer:
            start += self.answer
        start = start[: max(int(len(start) * turn.edit), 1)]
        prompt = (*start, *rng.integers(3, VOCAB, turn.new_tokens))
        self.history = tuple(int(token) for token in prompt[-320:])
        return self.history


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    seed=st.integers(0, 2**32),
    max_tokens=st.integers(5, 30),
    min_tokens=st.integers(0, 5),
    stop=st.sampled_from([(), ("e",), ("th", "\n")]),
)
turns = st.builds(
    Turn,
    edit=st.sampled_from([1.0, 1.0, 1.0, 0.7, 0.3]),
    with_answer=st.booleans(),
    new_tokens=st.integers(5, 70),
    seed=st.integers(0, 2**32),
    sampling=samplings,
    stable=st.sampled_from(["prompt", "answer", "unknown"]),
    abort=st.sampled_from([None, None, None, -1.0, 0.0, 0.5]),
)
conversations = st.builds(Conversation, system=st.integers(0, 3), turns=st.lists(turns, min_size=2, max_size=4))
configs = st.builds(
    Config,
    chunk=st.sampled_from([16, 33, 64, 100, 512, 1024]),
    shape=st.sampled_from(SHAPES),
    blocks=st.sampled_from([10_000, 60, 25, 6]),
    snapshots=st.sampled_from([10_000, 12, 4, 1]),
    cached=st.sampled_from([True, True, True, True, False]),
    together=st.booleans(),
    restart_after=st.sampled_from([1, 2, 9]),
    tier_bytes=st.sampled_from([0, 300_000, 1 << 30, 1 << 30]),
)


# -- the plain loop


@dataclass(frozen=True)
class Expected:
    tokens: tuple[int, ...]
    text: str
    finish: str
    margins: tuple[float, ...]


def plain_loop(executor: Executor, tokenizer: Tokenizer, prompt: Sequence[int], params: SamplingParams) -> Expected:
    """The answer, token by token."""
    rule = StopRule.of(params, eos_token_ids=[EOS], prompt_tokens=len(prompt), context=CONTEXT)
    sampler = Sampler(params, prompt, ending=rule.ending, margins=True)
    stream = tokenizer.stream(stop=params.stop)
    executor.reset(0)
    tokens: list[int] = []
    margins: list[float] = []
    text, chunk = "", tuple(prompt)
    while True:
        step = accept_row(executor.advance([Chunk(0, chunk, True)]), 0, sampler, rule)
        token, finish = step.tokens[0], step.finish
        tokens.append(token)
        margins += step.margins
        pushed = stream.push(() if finish is not None and finish.reason == "stop" else (token,))
        text += pushed.text
        if pushed.stop is not None or finish is not None:
            text += stream.finish()
            reason = "stop" if pushed.stop is not None or finish is None else finish.reason
            return Expected(tuple(tokens), text, reason, tuple(margins))
        chunk = (token,)


# -- the comparison


class Play:
    """Runs conversations under a configuration and compares."""

    def __init__(self, world: World, tokenizer: Tokenizer, config: Config, folder: Path) -> None:
        self.world = world
        self.tokenizer = tokenizer
        self.config = config
        self.folder = folder
        self._open()

    def _open(self) -> None:
        config, executor = self.config, self.world.open()
        info = executor.info
        made = EngineSettings(
            block_budget=config.blocks * info.block_bytes,
            snapshot_budget=config.snapshots * info.snapshot_bytes,
            speculation=config.shape,
            prefill_chunk=config.chunk,
            cache_dir=self.folder if config.restart_after < 9 else None,
            offload_bytes=config.tier_bytes,
            offload_dir=self.folder / "tier" if config.tier_bytes and config.together else None,
        )
        self.moving: list[Future[Any]] = []
        self.executor = executor
        self.engine = Engine(executor, self.tokenizer, made, eos=[EOS])

    def run(self, everyone: list[Conversation]) -> None:
        for number in range(max(len(conversation.turns) for conversation in everyone)):
            if number == self.config.restart_after:
                self.close()
                self._open()
            ready = [c for c in everyone if number < len(c.turns)]
            for batch in [ready] if self.config.together else [[c] for c in ready]:
                self._turn(batch, number)
        self.close()
        self.world.compared += len(everyone)

    def _turn(self, batch: list[Conversation], number: int) -> None:
        running = []
        for conversation in batch:
            turn = conversation.turns[number]
            prompt = conversation.next_prompt(turn)
            params = turn.sampling
            expected = plain_loop(self.world.plain(), self.tokenizer, prompt, params)
            conversation.answer = expected.tokens
            if self.config.tier_bytes:
                self.moving.append(self.engine.recall(prompt))
            running.append((turn, expected, self._submit(prompt, turn)))
        for turn, expected, generation in running:
            limit = None if turn.abort is None else int(turn.abort * len(expected.tokens))
            if limit is not None and limit < 0:
                generation.cancel()
            tokens: tuple[int, ...] = ()
            text, last = "", None
            for last in generation:
                tokens += last.token_ids
                text += last.text
                if limit is not None and len(tokens) > limit:
                    generation.cancel()
            self._compare(expected, tokens, text, last)
            if self.config.tier_bytes:
                conversation = batch[len(self.moving) % len(batch)]
                self.moving.append(self.engine.offload(conversation.history + conversation.answer))

    def _submit(self, prompt: tuple[int, ...], turn: Turn) -> Any:
        size = len(prompt)
        stable = {"answer": (max(size - 7, 0), size), "prompt": (max(size - 3, 0),), "unknown": None}[turn.stable]
        request = Request(id="r", prompt=prompt, sampling=turn.sampling, stable_lengths=stable)
        cache = replace(request.cache, read=self.config.cached, write=self.config.cached)
        return self.engine.submit(replace(request, cache=cache))

    def _compare(self, expected: Expected, tokens: tuple[int, ...], text: str, last: Any) -> None:
        assert last.error is None
        assert last.usage.completion_tokens == len(tokens)
        pairs = zip(tokens, expected.tokens, strict=False)
        first = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None and expected.margins[first] < NEAR_TIE and isinstance(self.world, OrtWorld):
            self.world.excused += 1
            return
        if last.finish_reason == "abort":
            assert tokens == expected.tokens[: len(tokens)]
            assert expected.text.startswith(text)
        else:
            assert (tokens, text, last.finish_reason) == (expected.tokens, expected.text, expected.finish)

    def close(self) -> None:
        for future in self.moving:
            result = future.result(60)
            self.world.recalled += getattr(result, "recalled_tokens", 0)
        end = time.monotonic() + 60
        while (stats := self.engine.stats()).running or stats.queued:
            assert time.monotonic() < end
            time.sleep(0.0005)
        memory = self.executor.memory()
        self.world.restored += stats.cached_tokens
        self.world.accepted += stats.accepted_tokens
        assert stats.healthy
        assert stats.faults == stats.cache.leases == 0
        assert (memory["n_blocks"], memory["n_snapshots"]) == (stats.cache.blocks, stats.cache.snapshots)
        assert stats.cache.blocks <= self.config.blocks
        assert stats.cache.snapshots <= self.config.snapshots
        self.engine.cache.check()
        self.engine.close()
        memory = self.executor.memory()
        assert memory["n_blocks"] == memory["n_snapshots"] == 0
        assert all(self.executor.length(slot) == 0 for slot in range(SLOTS))


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
four = st.lists(conversations, min_size=4, max_size=4)


@given(config=configs, everyone=four)
@settings(max_examples=80, deadline=None, suppress_health_check=QUIET)
def test_scripted(
    scripted: ScriptedWorld,
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    config: Config,
    everyone: list[Conversation],
) -> None:
    Play(scripted, tokenizer, config, tmp_path_factory.mktemp("prefixes")).run(everyone)


@given(config=configs, everyone=four)
@settings(max_examples=20, deadline=None, suppress_health_check=QUIET)
def test_onnxruntime(
    ort: OrtWorld,
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    config: Config,
    everyone: list[Conversation],
) -> None:
    Play(ort, tokenizer, config, tmp_path_factory.mktemp("prefixes")).run(everyone)
