from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine import self_check
from edgellm.engine.bundle import Bundle
from edgellm.engine.device.emulated import EmulatedDevice
from edgellm.engine.device.exercise import exercise
from edgellm.engine.device.memory import Layout
from edgellm.engine.self_check import MOST_DIVERGENCE, check_device, compare, set_aside
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.errors import ConfigError


def test_a_device_that_computes_right_passes(
    executor: DeviceExecutor, quantized: Checkpoint, layout: Layout, tmp_path: Path
) -> None:
    found = check_device(executor, quantized, layout, tmp_path)
    assert found.passed
    assert found.agreement == 1
    assert found.divergence < 1e-3
    assert executor.length(0) == 0


def test_a_device_with_one_wrong_kernel_fails(
    executor: DeviceExecutor, quantized: Checkpoint, layout: Layout, tmp_path: Path
) -> None:
    """As after a miscompilation: one convolution has other weights."""
    taps = executor.model.constants["taps.0"]
    executor._device.upload(taps, executor._device.download(taps)[::-1])
    assert not check_device(executor, quantized, layout, tmp_path).passed


@pytest.fixture
def narrow(segments: Path, quantized: Checkpoint, layout: Layout) -> DeviceExecutor:
    """A device that computes right, in bfloat16."""
    made = replace(layout, io="bf16")
    return DeviceExecutor(EmulatedDevice(segments), segments, quantized.spec, made, splits=2, fingerprint="")


def test_rounding_of_activations_is_no_failure(narrow: DeviceExecutor, quantized: Checkpoint, tmp_path: Path) -> None:
    """How much that is depends on the model: it is measured."""
    found = check_device(narrow, quantized, narrow.model.layout, tmp_path)
    assert found.passed
    assert found.divergence > 0


def test_a_wrong_kernel_shows_beside_rounding(narrow: DeviceExecutor, quantized: Checkpoint, tmp_path: Path) -> None:
    taps = narrow.model.constants["taps.0"]
    narrow._device.upload(taps, narrow._device.download(taps)[::-1])
    assert not check_device(narrow, quantized, narrow.model.layout, tmp_path).passed


def test_a_bundle_that_failed_is_kept_beside_those_that_failed_before(tmp_path: Path) -> None:
    for name in ("x.failed", "x.failed2", "x.failed3"):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "file").touch()
        assert set_aside(tmp_path / "x") == tmp_path / name
        assert (tmp_path / name / "file").is_file()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["one row", "a tree", "prefill", "drafts", "one draft", "several drafts"])
def test_every_kind_of_step_is_looked_at(
    executor: DeviceExecutor,
    quantized: Checkpoint,
    layout: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """A profile that is compiled wrongly shows, whichever it is."""
    device: Any = executor.model.device
    of = {"one row": 1, "one draft": 1, "several drafts": layout.nodes, "a tree": layout.nodes}
    run, rows = device._run, of.get(kind, layout.chunk)

    def wrong(engine: str, arrays: dict[str, Any]) -> None:
        run(engine, arrays)
        engines = {"mtp_out": "hidden"} if "draft" in kind else {"segment_02": "qkv"}
        if engine in engines and (kind == "drafts" or arrays["residual"].shape[1] == rows):
            arrays[engines[engine]][...] *= -1

    monkeypatch.setattr(device, "_run", wrong)
    assert not check_device(executor, quantized, layout, tmp_path).passed


def test_a_bundle_is_checked_without_room_for_a_cache(
    segments: Path, quantized: Checkpoint, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Layout] = []

    def open_emulated(bundle: Bundle, *, slots: int, context: int, **options: Any) -> DeviceExecutor:
        assert options == {"speculation": True, "cache_bytes": 0, "snapshot_bytes": 0}
        pages = context // 32
        layout = Layout("f32", slots, 32, pages=pages, max_pages=pages, snapshots=0, nodes=16, chunk=128, mtp=True)
        opened.append(layout)
        made = DeviceExecutor(EmulatedDevice(segments), segments, quantized.spec, layout, splits=2, fingerprint="")
        exercise(made)
        return made

    monkeypatch.setattr(self_check, "open_device", open_emulated)
    before = sorted(path.name for path in bundle.path.parent.iterdir())
    assert self_check.check_bundle(bundle.path, quantized).passed
    assert len(opened) == 1
    assert sorted(path.name for path in bundle.path.parent.iterdir()) == before
    monkeypatch.setattr(self_check, "_cpu_bytes", lambda source: 1 << 60)
    with pytest.raises(ConfigError, match="the self-check needs 1152921504606846976 bytes of disk"):
        self_check.check_bundle(bundle.path, quantized)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_fails(wrong: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    assert compare(rows, rows).divergence == 0
    broken = rows.copy()
    broken[1, 7] = wrong
    assert not compare(rows, broken).passed


def test_the_divergence_is_that_of_the_distributions() -> None:
    rows = np.log(np.array([[0.25, 0.75]], np.float32))
    found = compare(rows, np.log(np.array([[0.5, 0.5]], np.float32)))
    assert found.divergence == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), abs=1e-6)
    assert found.passed is (found.divergence < MOST_DIVERGENCE)
