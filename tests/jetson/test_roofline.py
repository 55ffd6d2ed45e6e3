"""The roofline against figures worked out by hand for the 27 B shape, and what must hold for any shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.errors import ConfigError
from edgellm.jetson.devices import DEVICES, find_device
from edgellm.jetson.precision import VARIANTS, weight_counts
from edgellm.jetson.roofline import Step, decode_steps, draft_bytes, milliseconds, verify_bytes

SPEC = ModelSpec.from_config(PRESETS["qwen36-27b"].config)
CONTEXT, NODES = 16_384, 16
WITHIN = 0.03


def near(value: float) -> object:
    return pytest.approx(value, rel=WITHIN)


def total(variant: str, *, context: int = CONTEXT, nodes: int = NODES) -> float:
    return verify_bytes(SPEC, VARIANTS[variant], context=context, nodes=nodes).total


def test_weights_of_the_parts() -> None:
    counts = weight_counts(SPEC)
    billions = {"gdn": 5.560, "attention": 1.678, "mlp": 17.113, "head": 1.271, "mtp": 0.425}
    assert {part: counts[part] / 1e9 for part in billions} == {part: near(n) for part, n in billions.items()}


def test_bytes_beside_the_weights() -> None:
    moved = verify_bytes(SPEC, VARIANTS["nvfp4"], context=CONTEXT, nodes=NODES)
    gigabytes = {"kv": 0.537, "state": 0.302, "conv": 0.012, "capsules": 0.050, "logits": 0.032}
    assert {name: getattr(moved, name) / 1e9 for name in gigabytes} == {n: near(gb) for n, gb in gigabytes.items()}


@pytest.mark.parametrize(
    ("variant", "gigabytes", "ms_273", "ms_232"),
    [
        ("nvfp4", 15.35, 56.2, 66.1),
        ("nvfp4-head-fp8", 15.90, 58.2, 68.5),
        ("nvfp4-head-bf16", 17.17, 62.9, 74.0),
        ("modelopt-mixed", 18.51, 67.8, 79.8),
        ("nvfp4-mlp", 27.58, 101.0, 118.9),
    ],
)
def test_a_verify_of_16_nodes(variant: str, gigabytes: float, ms_273: float, ms_232: float) -> None:
    moved = total(variant)
    assert moved / 1e9 == near(gigabytes)
    assert (milliseconds(moved, 273), milliseconds(moved, 232)) == (near(ms_273), near(ms_232))


def test_what_the_context_adds() -> None:
    base = total("nvfp4")
    shorter = milliseconds(total("nvfp4", context=1024) - base, 273)
    longer = milliseconds(total("nvfp4", context=65_536) - base, 273)
    assert (shorter, longer) == (near(-1.84), near(5.9))


def test_a_draft_step() -> None:
    full = draft_bytes(SPEC, VARIANTS["nvfp4"], context=CONTEXT)
    reduced = draft_bytes(SPEC, VARIANTS["nvfp4"], context=CONTEXT, vocabulary=32_768)
    assert (full / 1e9, reduced / 1e9) == (near(0.988), near(0.367))
    assert (milliseconds(full, 273), milliseconds(reduced, 273)) == (near(3.62), near(1.34))


EXPECTED = [  # step ms, tokens/s at an accepted length of 3, 4, 4.5, 5, 6, and the length for 14.68 ms a token
    (74.3, (40.4, 53.8, 60.6, 67.3, 80.8), 5.06),  # 273 GB/s, full head
    (62.9, (47.7, 63.6, 71.5, 79.5, 95.3), 4.29),  # 273 GB/s, 32k head
    (66.8, (44.9, 59.8, 67.3, 74.8, 89.8), 4.55),  # 257 GB/s, 32k head
    (78.0, (38.4, 51.3, 57.7, 64.1, 76.9), 5.32),  # 232 GB/s and 4 ms, 32k head
]


def test_tokens_per_second_on_thor() -> None:
    steps = decode_steps(SPEC, VARIANTS["nvfp4"], DEVICES["thor"], context=CONTEXT, nodes=NODES, drafts=5)
    assert len(steps) == len(EXPECTED)
    for step, (ms, rates, needed) in zip(steps, EXPECTED, strict=True):
        assert step.ms == near(ms), step.label
        assert tuple(step.tokens_per_s(length) for length in (3, 4, 4.5, 5, 6)) == tuple(near(rate) for rate in rates)
        assert step.accepted_for(14.68) == near(needed)


def test_without_speculation() -> None:
    assert milliseconds(total("nvfp4", nodes=1), 273) == near(55.9)


@given(nodes=st.integers(1, 16), context=st.integers(0, 1 << 18), variant=st.sampled_from(sorted(VARIANTS)))
def test_a_wider_tree_or_a_longer_context_never_costs_less(nodes: int, context: int, variant: str) -> None:
    here = total(variant, context=context, nodes=nodes)
    assert total(variant, context=context + 1, nodes=nodes) > here
    assert total(variant, context=context, nodes=nodes + 1) > here


@given(ms=st.floats(1, 1000), accepted=st.floats(1, 16))
def test_rate_and_length_are_inverse(ms: float, accepted: float) -> None:
    step = Step("", ms, 0.0)
    assert math.isclose(step.accepted_for(1000 / step.tokens_per_s(accepted)), accepted)


def test_a_model_without_mtp_drafts_nothing() -> None:
    from dataclasses import replace

    plain = replace(SPEC, mtp_layers=0)
    steps = decode_steps(plain, VARIANTS["nvfp4"], DEVICES["spark"], context=0, nodes=1, drafts=5)
    assert {step.draft_ms for step in steps} == {0.0}
    assert len(steps) == 3  # no read bandwidth was measured there


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ConfigError, match="'nano' is not one of thor"):
        find_device("nano")
