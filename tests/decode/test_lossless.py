"""Speculation changes how fast tokens come, never which: plain, chain and tree agree token for token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.decode.accept import accept_tree
from edgellm.decode.draft import draft_tree
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.decode.sampler import Sampler
from edgellm.decode.stop import Finish, StopRule
from edgellm.engine.base import Chunk
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.engine.scripts import HashScript, Prefix, ReplyScript, extend

OFF = SpeculationParams(steps=0)
CHAIN = SpeculationParams(top_k=1)
TREE = SpeculationParams()
Start = Callable[..., Any]

shapes = st.builds(SpeculationParams, steps=st.integers(1, 8), top_k=st.integers(1, 4), nodes=st.integers(2, 16))
prompts = st.lists(st.integers(0, 7), min_size=1, max_size=6)


@st.composite
def sampling(draw: st.DrawFn, vocab: int) -> SamplingParams:
    some = st.booleans()
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 2, 5])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 1.0, -0.5])),
        logit_bias={draw(st.integers(0, vocab - 1)): draw(st.floats(-100, 100))} if draw(some) else {},
        seed=draw(st.integers(0, 2**64 - 1)),
        max_tokens=draw(st.integers(1, 40)),
        min_tokens=draw(st.integers(0, 1)),
        stop_token_ids=(1,) if draw(some) else (),
        ignore_eos=draw(some),
        logprobs=draw(st.sampled_from([None, 0, 2])),
    )


@given(data=st.data(), prompt=prompts, shape=shapes)
@settings(max_examples=250, deadline=None)
def test_same_tokens_with_and_without_speculation(
    data: st.DataObject, prompt: list[int], shape: SpeculationParams, generate: Start, step_constraint: Start
) -> None:
    vocab = data.draw(st.sampled_from([8, 12, 30]))
    params = data.draw(sampling(vocab))
    script = HashScript(
        vocab,
        seed=data.draw(st.integers(0, 1000)),
        agreement=data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        alternatives=vocab,
        spread=data.draw(st.sampled_from([1.0, 6.0])),
    )
    constrained = data.draw(st.booleans())

    def run(speculation: SpeculationParams) -> Any:
        executor = ScriptedExecutor(script, vocab_size=vocab, max_tokens=64)
        constraint = step_constraint(vocab, 3) if constrained else None
        return generate(executor, prompt, params, speculation, eos=[0], constraint=constraint)

    plain = run(OFF)
    for speculation in (shape, CHAIN, TREE):
        other = run(speculation)
        assert other.tokens == plain.tokens
        assert other.finish == plain.finish
        assert other.logprobs == plain.logprobs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_good_drafts_are_accepted(temperature: float, generate: Start) -> None:
    """The comparison above would pass with drafts that never match; here they do."""
    executor = ScriptedExecutor(HashScript(30, agreement=1.0, spread=20.0), vocab_size=30)
    params = SamplingParams(temperature=temperature, max_tokens=80)
    assert generate(executor, [1], params, CHAIN).steps < 25
    assert generate(executor, [1], params, TREE).deepest >= 5


def test_distribution_of_a_tree_step(generate: Start) -> None:
    """Over many seeds, pairs of tokens drawn through trees have the model's joint distribution."""
    script = HashScript(4, seed=5, agreement=0.6, alternatives=4, spread=2.0)
    temperature, count = 0.8, 4000

    def row(key: int) -> np.ndarray[Any, Any]:
        found = script.target(Prefix(key, lambda: (), True))
        logits = np.zeros(4)
        logits[list(found.ids)] = found.logits
        weights = np.exp((logits - logits.max()) / temperature)
        return weights / weights.sum()

    start = extend(extend(0, 2), 3)  # the prompt, then the first token, which is pinned by its bias
    expected = np.array([row(start)[a] * row(extend(start, a)) for a in range(4)])
    found = np.zeros((4, 4))
    executor = ScriptedExecutor(script, vocab_size=4)
    for seed in range(count):
        executor.reset(0)
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=3)
        tokens = _after(executor, params)
        found[tokens[0], tokens[1]] += 1
    statistic = ((found - expected * count) ** 2 / (expected * count)).sum()
    assert statistic < 44  # 15 degrees of freedom: one in 10,000


def _after(executor: ScriptedExecutor, params: SamplingParams) -> list[int]:
    """Two tokens after prompt [2] and root 3, by trees."""
    executor.advance([Chunk(0, [2], False)])
    sampler = Sampler(params, [2])
    sampler.advance(3)
    tokens = [3]
    stop = StopRule.of(params, eos_token_ids=(), prompt_tokens=1, context=100)
    while len(tokens) < 3:
        draft = draft_tree(executor, 0, tokens[-1], TREE, max_depth=stop.remaining(sampler.generated) - 1)
        outcome = accept_tree(draft.tree, executor.verify(draft.tree), sampler, stop)
        executor.commit(0, outcome.path)
        tokens += outcome.tokens
    return tokens[1:]


@pytest.mark.parametrize("speculation", [OFF, CHAIN, TREE])
@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("last", [20, 200])
def test_counting_skips_no_number(speculation: SpeculationParams, agreement: float, last: int, generate: Start) -> None:
    """Case E03."""
    numbers = list(range(100, 100 + last))
    executor = ScriptedExecutor(ReplyScript(numbers, eos=0, vocab_size=400, agreement=agreement), vocab_size=400)
    found = generate(executor, [5, 6], SamplingParams(), speculation, eos=[0])
    assert found.tokens == [*numbers, 0]
    assert found.finish == Finish("stop")


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.3}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.0}],
    ids=lambda penalty: next(iter(penalty)),
)
@pytest.mark.parametrize("steps", [1, 3, 8])
def test_penalties_at_every_verified_position(penalty: dict[str, float], steps: int, generate: Start) -> None:
    """Cases E04 and E05, against greedy decoding written out with the history counted afresh for each token."""
    vocab = 12
    script = HashScript(vocab, seed=3, agreement=1.0, alternatives=vocab, spread=3.0)
    params = SamplingParams(max_tokens=60, **penalty)
    prompt = [1, 2, 3]
    output: list[int] = []
    for _ in range(60):
        key = 0
        for token in prompt + output:
            key = extend(key, token)
        row = script.target(Prefix(key, lambda: (), True))
        logits = np.zeros(vocab, np.float32)
        logits[list(row.ids)] = row.logits
        for token in set(prompt + output):
            logits[token] /= np.float32(params.repetition_penalty)  # the logits of this script are positive
        for token in set(output):
            count = output.count(token)
            logits[token] -= np.float32(params.presence_penalty + params.frequency_penalty * count)
        output.append(int(logits.argmax()))
    executor = ScriptedExecutor(script, vocab_size=vocab)
    assert generate(executor, prompt, params, SpeculationParams(steps=steps)).tokens == output
    free = generate(executor, prompt, SamplingParams(max_tokens=60), OFF).tokens
    assert free != output, "the penalty has no effect here, so this test shows nothing"


@given(seed=st.integers(0, 30), temperature=st.sampled_from([0.0, 1.0]), shape=shapes)
@settings(max_examples=60, deadline=None)
def test_nothing_after_eos(seed: int, temperature: float, shape: SpeculationParams, generate: Start) -> None:
    """Case E11: short answers, EOS in the middle of accepted runs."""
    executor = ScriptedExecutor(HashScript(50, seed=seed, agreement=1.0, eos=0, eos_rate=0.2), vocab_size=50)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=200)
    found = generate(executor, [1, 2], params, shape, eos=[0])
    assert 0 not in found.tokens[:-1]
    assert (found.tokens[-1] == 0) == (found.finish == Finish("stop"))


@pytest.mark.parametrize("speculation", [OFF, CHAIN, TREE])
@pytest.mark.parametrize("prompt_tokens", [1, 20, 30, 31])
def test_the_usable_context_is_the_same_with_speculation(
    speculation: SpeculationParams, prompt_tokens: int, generate: Start
) -> None:
    """Case E13: prompt and output fill the context exactly; the executor checks that no tree passes its end."""
    executor = ScriptedExecutor(HashScript(50, agreement=1.0), vocab_size=50, max_tokens=32)
    found = generate(executor, [3] * prompt_tokens, SamplingParams(), speculation)
    assert len(found.tokens) == 32 - prompt_tokens
    assert found.finish == Finish("length")


@given(order=st.lists(st.integers(0, 3), min_size=1, max_size=200), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_neighbours_do_not_leak(order: list[int], seed: int, start: Start, generate: Start) -> None:
    """Case E17: four marked prompts interleaved in any order; each equals its single run."""
    script = HashScript(40, seed=seed % 7, agreement=0.8)
    executor = ScriptedExecutor(script, vocab_size=40)
    requests = [
        ([10 + slot, slot], SamplingParams(temperature=0.7 * (slot % 2), seed=seed, max_tokens=30)) for slot in range(4)
    ]
    running = [
        start(executor, prompt, params, SpeculationParams(steps=3), slot=slot)
        for slot, (prompt, params) in enumerate(requests)
    ]
    for slot in [*order, *[0, 1, 2, 3] * 30]:
        if running[slot].finish is None:
            running[slot].step()
    for sequence, (prompt, params) in zip(running, requests, strict=True):
        alone = generate(ScriptedExecutor(script, vocab_size=40), prompt, params, OFF)
        assert sequence.tokens == alone.tokens
