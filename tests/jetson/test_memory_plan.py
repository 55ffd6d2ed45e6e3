"""The memory planner: what fits does fit, a block more does not, and a refusal says what is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.recipe import Recipe, load_recipe
from edgellm.engine.trt.memory_plan import BASE, plan_build
from edgellm.errors import ConfigError
from edgellm.jetson.devices import DEVICES
from edgellm.jetson.memory_plan import MemoryPlan, Workload, largest_contexts, plan_memory
from edgellm.jetson.precision import VARIANTS, checkpoint_precision, repeated_parts

BIG = ModelSpec.from_config(PRESETS["qwen36-27b"].config)
SPECS = [ModelSpec.from_config(preset.config) for preset in PRESETS.values()]
THOR = DEVICES["thor"].memory_bytes


def planned(spec: ModelSpec, load: Workload, memory: int = THOR, reserve: int = 0) -> MemoryPlan:
    return plan_memory(spec, VARIANTS["nvfp4"], load, memory_bytes=memory, reserve_bytes=reserve)


loads = st.builds(
    Workload,
    context=st.integers(1, 32_768),
    slots=st.integers(1, 16),
    snapshots=st.integers(0, 64),
    cached=st.integers(0, 65_536),
    nodes=st.integers(1, 16),
    block_tokens=st.sampled_from([1, 16, 64, 100]),
)


@given(spec=st.sampled_from(SPECS), load=loads, memory=st.integers(1 << 30, 1 << 38))
@settings(max_examples=60, deadline=None)
def test_what_is_said_to_fit_fits_and_more_does_not(spec: ModelSpec, load: Workload, memory: int) -> None:
    plan = planned(spec, load, memory)
    assert plan.fits == (plan.needed <= memory)
    for field, most, step, top in (
        ("context", plan.largest_context, load.block_tokens, spec.max_positions),
        ("slots", plan.most_slots, 1, 4096),
        ("snapshots", plan.most_snapshots, 1, 4096),
    ):
        if most:
            assert planned(spec, replace(load, **{field: most}), memory).fits
        if most < top:
            beyond = min(most + step, top)
            assert not planned(spec, replace(load, **{field: beyond}), memory).fits


@given(spec=st.sampled_from(SPECS), load=loads)
@settings(max_examples=60, deadline=None)
def test_more_never_needs_less(spec: ModelSpec, load: Workload) -> None:
    here = planned(spec, load).needed
    for field in ("slots", "snapshots", "nodes", "chunk"):
        assert planned(spec, replace(load, **{field: getattr(load, field) + 1})).needed > here
    longer = min(load.context + load.block_tokens, spec.max_positions)
    assert planned(spec, replace(load, context=longer)).needed >= here


def test_sizes_of_the_27b_shape() -> None:
    plan = planned(BIG, Workload(context=1 << 18, slots=4, snapshots=32, cached=65))
    sizes = {item.name: item.bytes for item in plan.items}
    assert sizes["KV blocks of the sequences"] == 4 * (1 << 18) * 34_816
    assert sizes["KV blocks of the cache"] == 128 * 34_816  # whole blocks
    assert sizes["recurrent state"] == 4 * 144 << 20
    assert sizes["snapshots"] == 32 * ((144 << 20) + 48 * 3 * 10_240 * 4 + 5120 * 4)
    weights = sum(size for name, size in sizes.items() if name.startswith("weights"))
    assert weights == pytest.approx(17.2e9, rel=0.01)  # 14.65 in NVFP4, 2.54 of embeddings
    assert plan.fits


def test_engines_that_hold_their_own_weights_need_them_again() -> None:
    load = Workload(4096, 1, 0)
    once, twice = planned(BIG, load), planned(BIG, replace(load, repeated={"mlp": 1, "head": 2}))
    weights = VARIANTS["nvfp4"].weight_bytes(BIG)
    assert twice.needed - once.needed == weights["mlp"] + 2 * weights["head"]
    assert repeated_parts(Recipe()) == {}  # the CPU executor maps one file
    assert repeated_parts(load_recipe("qwen3.6-27b-nvfp4-thor")) == {}  # every matrix is in one engine
    assert repeated_parts(load_recipe("nvfp4-rtx-whole"))["mlp"] == 1


def test_estimates_are_marked() -> None:
    marked = {item.name for item in planned(BIG, Workload(4096, 1, 0)).items if item.basis == "estimate"}
    assert marked == {"activations", "runtime"}


def test_a_refusal_says_what_is_needed_and_what_would_do() -> None:
    load = Workload(context=1 << 18, slots=16, snapshots=0)
    plan = planned(BIG, load, reserve=8 << 30)
    with pytest.raises(ConfigError) as refused:
        plan.check()
    text = str(refused.value)
    assert f"need {plan.needed} bytes" in text
    assert f"{plan.budget} are there" in text
    fits = re.search(r"a context of (\d+) fits", text)
    assert fits is not None
    planned(BIG, replace(load, context=int(fits[1])), reserve=8 << 30).check()


def test_when_only_fewer_sequences_fit() -> None:
    load = Workload(context=64, slots=200, snapshots=0)
    one = planned(BIG, replace(load, slots=1)).needed
    with pytest.raises(ConfigError, match=r"[1-9]\d* sequences fit"):
        planned(BIG, load, memory=one + (1 << 30)).check()


def test_a_model_that_does_not_fit_at_all() -> None:
    with pytest.raises(ConfigError, match="smaller precision or a larger device"):
        planned(BIG, Workload(64, 1, 0), memory=8 << 30).check()
    assert planned(BIG, Workload(64, 1, 0), memory=8 << 30).largest_context == 0


def test_a_reserve_above_the_memory_is_a_refusal_not_a_crash() -> None:
    plan = planned(BIG, Workload(64, 1, 0), memory=1 << 30, reserve=2 << 30)
    assert not plan.fits
    assert not plan.build_fits


def test_building_needs_more_than_serving_little_and_says_so() -> None:
    plan = planned(BIG, Workload(4096, 1, 0), memory=32 << 30)
    assert plan.fits
    assert not plan.build_fits


def test_the_plan_of_a_build_is_the_builders(tmp_path: Path) -> None:
    make_checkpoint("tiny", tmp_path / "made")
    source = Checkpoint.open(tmp_path / "made")
    made = plan_memory(source.spec, checkpoint_precision(source), Workload(64, 1, 0), memory_bytes=THOR)
    small = made.build_bytes - BASE
    assert small == pytest.approx(plan_build(source, 0).memory - BASE, rel=0.02)
    load = Workload(64, 1, 0, form="split")
    split = plan_memory(source.spec, checkpoint_precision(source), load, memory_bytes=THOR).build_bytes
    assert split < made.build_bytes
    assert split - BASE == pytest.approx(plan_build(source, 0, form="split").memory - BASE, rel=0.02)


def test_what_the_system_keeps_is_not_used() -> None:
    load = Workload(4096, 1, 0)
    needed = planned(BIG, load).needed
    assert planned(BIG, load, memory=needed + 5, reserve=5).fits
    assert not planned(BIG, load, memory=needed + 5, reserve=6).fits


def test_more_sequences_have_less_context_each() -> None:
    found = largest_contexts(BIG, VARIANTS["nvfp4"], Workload(64, 1, 0), (1, 8, 64), memory_bytes=64 << 30)
    assert found[1] >= found[8] >= found[64] > 0


@pytest.mark.parametrize(
    ("field", "value"), [("context", 0), ("slots", 0), ("snapshots", -1), ("cached", -1), ("block_tokens", 0)]
)
def test_a_wrong_workload_is_named(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(Workload(64, 1, 0), **{field: value})


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="context: 262145 is more than the model's 262144"):
        planned(BIG, Workload((1 << 18) + 1, 1, 0))
