"""The device executor over kernels in NumPy: what the CPU executor answers, whatever was done before."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_machine import ExecutorMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from edgellm.checkpoint.reader import Checkpoint
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.base import BlockRef, Chunk, DraftNodes, TokenTree
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.device.emulated import EmulatedDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.recipe import load_recipe
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.errors import BundleError, ConfigError, ExecutionError
from edgellm.graph.lowering.ort import OrtOps
from edgellm.graph.segments import KERNEL_WEIGHTS, build_segments, save_kernel_weights
from edgellm.runtime.llm import LLM
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer


class Machine(ExecutorMachine):
    # Two ways to one K or V differ by rounding, and now and then that is enough for the neighbouring E4M3 value.
    tolerance = 0.05


def test_every_answer_is_the_one_of_the_cpu_executor(exact: Any) -> None:
    Machine.executor, Machine.oracle = exact.executor, exact.oracle
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("speculation", [None, SpeculationParams(steps=8, top_k=2, nodes=16)])
def test_generation_is_the_cpu_executors_token_for_token(
    executor: DeviceExecutor, bundle: Bundle, quantized: Checkpoint, speculation: SpeculationParams | None
) -> None:
    """Through the whole runtime: prefix cache, drafts, batches, sampling."""
    tokenizer = Tokenizer.load(quantized.path)
    renderer = ChatRenderer.load(quantized.path, tokenizer)
    rng = np.random.default_rng(0)
    prompts = [[int(token) for token in rng.integers(0, 1024, size)] for size in (30, 50, 70, 90)]
    prompts += [[*prompts[3], 5, 6, 7], [*prompts[3][:70], 9]]
    ways = [SamplingParams(max_tokens=24, ignore_eos=True),
            SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, top_p=0.9, seed=3)]  # fmt: skip

    def answers(made: LLM) -> list[list[int]]:
        return [list(result.token_ids) for sampling in ways for result in made.generate(prompts, sampling)]

    cpu = OrtExecutor(bundle, slots=4, context=256, threads=1, speculation=True)
    options: Any = {"speculation": speculation, "cache_bytes": None, "snapshot_bytes": None}
    with LLM.from_parts(cpu, tokenizer, renderer, **options) as llm:
        expected = answers(llm)
    with LLM.from_parts(executor, tokenizer, renderer, **options) as llm:
        assert answers(llm) == expected


def test_pages_come_back(executor: DeviceExecutor) -> None:
    free = executor._store.pages.free
    for slot in range(4):
        for start in (0, 50):
            executor.advance([Chunk(slot, list(range(start, start + 50)), False)])
        executor.publish(slot, 64, 96)
    refs = [executor.publish(0, start, start + 32) for start in (0, 32)]
    kept = executor.snapshot(0)
    for slot in range(4):
        executor.reset(slot)
    assert executor._store.pages.free == free - 6  # of the blocks
    executor.free_snapshot(kept)
    for ref in refs:
        executor.free_block(ref)
    assert executor._store.pages.free == free - 4


def test_a_restore_into_a_page_leaves_its_owner_alone(exact: Any) -> None:
    """Two slots go on from the same prefix, whose last block is a part of a page."""
    executor, oracle = exact.executor, exact.oracle
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, 1024, 48)]
    for slot in range(4):
        executor.reset(slot)
    executor.advance([Chunk(0, tokens[:40], False)])
    blocks, kept = [executor.publish(0, 0, 32), executor.publish(0, 32, 40)], executor.snapshot(0)
    executor.restore(1, 40, blocks, kept)
    executor.advance([Chunk(0, tokens[40:44], False)])
    executor.advance([Chunk(1, tokens[44:], False)])
    executor.restore(2, 40, blocks, kept)
    for slot, more in ((0, tokens[40:44]), (1, tokens[44:]), (2, [])):
        row = executor.advance([Chunk(slot, [7], True)]).row(0)
        np.testing.assert_allclose(row, oracle.logits([*tokens[:40], *more, 7]), atol=0.05)
    for ref in blocks:
        executor.free_block(ref)
    executor.free_snapshot(kept)


def test_prefixes_move_to_another_executor(exact: Any) -> None:
    executor, oracle = exact.executor, exact.oracle
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 1024, 40)]
    executor.reset(0)
    executor.advance([Chunk(0, tokens, False)])
    blocks, kept = [executor.publish(0, 0, 32), executor.publish(0, 32, 40)], executor.snapshot(0)
    stored = [executor.dump_block(ref) for ref in blocks]
    loaded = [executor.load_block(data) for data in stored]
    state = executor.load_snapshot(executor.dump_snapshot(kept))
    assert [executor.dump_block(ref) for ref in loaded] == stored
    executor.restore(3, 40, loaded, state)
    found = executor.draft([DraftNodes(3, [9], [-1])])[0]
    np.testing.assert_allclose(found.logprobs, oracle.draft(tokens, [9]).logprobs, atol=0.05)
    row = executor.advance([Chunk(3, [9], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits([*tokens, 9]), atol=0.05)
    with pytest.raises(BundleError, match="not a snapshot"):
        executor.load_snapshot(stored[0])
    for ref in (*blocks, *loaded):
        executor.free_block(ref)
    for snapshot in (kept, state):
        executor.free_snapshot(snapshot)


def test_a_failed_run_breaks_its_slot_only(exact: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, oracle = exact.executor, exact.oracle
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, 1024, 40)]
    for slot in (0, 1):
        executor.reset(slot)
        executor.advance([Chunk(slot, tokens, False)])

    def fail(*args: Any) -> None:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(executor.decoder.programs, "run", fail)
        with pytest.raises(ExecutionError, match=r"slots \[0\] failed: the device is gone"):
            executor.advance([Chunk(0, [1], False)])
    with pytest.raises(ExecutionError, match="reset or restore it first"):
        executor.snapshot(0)
    row = executor.advance([Chunk(1, [7], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits([*tokens, 7]), atol=0.05)
    executor.reset(0)
    row = executor.advance([Chunk(0, tokens[:20], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(tokens[:20]), atol=0.05)


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("slot 4 of 4", lambda e: e.length(4)),
        ("chunk of 129 tokens", lambda e: e.advance([Chunk(0, [1] * 129, False)])),
        ("token 1024 is outside", lambda e: e.advance([Chunk(0, [1024], False)])),
        ("tree of 17 nodes", lambda e: e.verify(TokenTree(0, [1] * 17, [*range(-1, 16)]))),
        ("no verified tree", lambda e: e.commit(0, [0])),
        ("draft of 1 nodes in slot 1 with 0 tokens", lambda e: e.draft([DraftNodes(1, [1], [-1])])),
        ("not nodes of the slot's tree of 0", lambda e: e.draft([DraftNodes(0, [1], [0])])),
        (r"tokens \[8, 16\) are not a block", lambda e: e.publish(0, 8, 16)),
        ("snapshot of the empty slot 2", lambda e: e.snapshot(2)),
        ("needs a snapshot of as many, not None", lambda e: e.restore(0, 32, [], None)),
        ("was freed", lambda e: e.free_block(BlockRef(10**6))),
    ],
)
def test_wrong_calls_change_nothing(exact: Any, named: str, call: Any) -> None:
    executor, oracle = exact.executor, exact.oracle
    for slot in range(4):
        executor.reset(slot)
    executor.advance([Chunk(0, list(range(40)), False)])
    before = executor.memory()
    with pytest.raises(ValueError, match=named):
        call(executor)
    assert executor.memory() == before
    row = executor.advance([Chunk(0, [40], True)]).row(0)
    np.testing.assert_allclose(row, oracle.logits(list(range(41))), atol=0.05)


def test_draft_trees_are_bounded(exact: Any) -> None:
    executor = exact.executor
    executor.reset(0)
    executor.advance([Chunk(0, [1] * 40, False)])
    executor.draft([DraftNodes(0, [1], [-1])])
    executor.draft([DraftNodes(0, [2] * 120, [0] * 120)])
    with pytest.raises(ValueError, match="it has room for 160"):
        executor.draft([DraftNodes(0, [2] * 40, [0] * 40)])


def test_too_few_pages_are_refused(segments: Path, quantized: Checkpoint, layout: Layout) -> None:
    with pytest.raises(ConfigError, match="31 KV pages are too few for 4 slots of 8"):
        DeviceExecutor(
            EmulatedDevice(segments), segments, quantized.spec, replace(layout, pages=31), splits=1, fingerprint=""
        )


def test_the_shipped_model_calls_a_tool_as_on_the_cpu(tmp_path: Path) -> None:
    """edge-tiny in NVFP4, drafts and all: the same tokens, and the same drafts accepted."""
    source = Checkpoint.open(str(files("edgellm.models") / "edge-tiny-nvfp4"))
    recipe = replace(load_recipe("cpu-nvfp4-w4a4"), context=512)
    cpu = Bundle.open(build_bundle(source, tmp_path / "cpu", recipe))
    (tmp_path / "segments").mkdir()
    build_segments(OrtOps(source, recipe.weight_format()), tmp_path / "segments", np.float32)
    save_kernel_weights(source, tmp_path / "segments" / KERNEL_WEIGHTS, 512, source.kv_scales)
    layout = Layout(io="f32", slots=1, page=64, pages=24, max_pages=8, snapshots=100, nodes=16, chunk=256, mtp=True)
    device = EmulatedDevice(tmp_path / "segments")
    executors = (
        OrtExecutor(cpu, slots=1, context=512, threads=1, speculation=True),
        DeviceExecutor(device, tmp_path / "segments", source.spec, layout, splits=4, fingerprint=""),
    )
    tokenizer = Tokenizer.load(source.path)
    renderer = ChatRenderer.load(source.path, tokenizer)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    answers = []
    for executor in executors:
        with LLM.from_parts(executor, tokenizer, renderer, speculation=SpeculationParams(8, 2, 16)) as llm:
            answer = llm.chat(asked, SamplingParams(max_tokens=64), tools=tools, enable_thinking=False)
            answers.append((answer.result.token_ids, answer.result.usage, answer.tool_calls[0].arguments))
    assert answers[0] == answers[1]
    assert answers[0][2] == '{"city": "Paris"}'
    assert answers[0][1].accepted_tokens > 5
