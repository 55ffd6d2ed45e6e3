"""`bench_gpu` on a CUDA driver over host memory: what it finds, survives and writes. No figure of it means anything."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_driver import CUresult, HostDriver
from kernel_parity import needs_compiler

from edgellm.engine.device.gpu import Gpu, read_gpu
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.rows import Model
from edgellm.errors import ConfigError
from edgellm.jetson import bench_gpu, gpu_results, gpu_sanitizer
from edgellm.jetson.gpu_device import Arena, Bench, compiled_here, from_folder, needed_bytes, save_cubins
from edgellm.jetson.gpu_parity import LARGE, TINY, Case, Outcome, Shape, compared, parity_cases, run_case
from edgellm.jetson.gpu_phases import FULL, QUICK_SHAPES, Record, Scale, Setup, all_needs
from edgellm.jetson.gpu_report import markdown
from edgellm.jetson.gpu_scale import SPLITS, splits_for, splits_of
from edgellm.jetson.gpu_workloads import workloads
from edgellm.kernels import nvrtc
from edgellm.kernels.attention import ATTN_PREFILL, TREE_ATTN_PARTIAL
from edgellm.kernels.catalog import KERNELS
from edgellm.kernels.gdn import GDN_PREFILL, GDN_TREE_VERIFY
from edgellm.kernels.kernel_inputs import kernel_inputs
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.source import binary_name
from edgellm.kernels.spec import Kernel
from edgellm.kernels.tolerance import LIMITS
from edgellm.kernels.tree import TREE_BUILD

SMALL = Shape("tiny", TINY.spec, ("bf16",), tokens=2048, context=70)
SCALE = Scale(
    spec=TINY.spec,
    tokens=192,
    contexts=(64, 100),
    rows=(4, 1),
    chunk=6,
    behind=(50,),
    copies=(4096, 8192),
    rounds=2,
    minimum_ms=0.0,
)
CHEAP = ("tree_build", "gdn_tree_verify", "kv_commit", "tree_accept")


def setup_on(driver: HostDriver, kernels: Sequence[str] = ()) -> Setup:
    return Setup((SMALL,), SCALE, kernels, lambda kernel, sizes, _: driver.binary(kernel, sizes), driver)


def run(driver: HostDriver, out: Path, *arguments: str, kernels: Sequence[str] = CHEAP) -> tuple[int, dict[str, Any]]:
    """(status, gpu.json)"""
    status = bench_gpu.main(["--out", str(out), *arguments], setup=setup_on(driver, kernels))
    return status, json.loads((out / "gpu.json").read_text())


def one_case(driver: HostDriver, kernel: Kernel, sizes: Sizes) -> Outcome:
    bench = Bench.open(lambda kernel, sizes, _: driver.binary(kernel, sizes), driver)
    try:
        return run_case(bench, Arena(bench.device, needed_bytes(kernel, sizes)), Case(SMALL, "test", kernel, sizes))
    finally:
        bench.device.close()


def step(rows: int, **sizes: int) -> Sizes:
    return Sizes.of(SMALL.spec, io="bf16", rows=rows, max_pages=4, pages=6, **sizes)


class Meddling(HostDriver):
    """Does `after` (kernel, addresses of its arguments) behind every kernel that it runs."""

    def __init__(self, after: Callable[[Kernel, list[int]], None]) -> None:
        super().__init__()
        self.after = after

    def cuLaunchKernel(self, function: tuple[Kernel, Sizes], *rest: int) -> tuple[CUresult]:
        done = super().cuLaunchKernel(function, *rest)
        kernel, arguments = function[0], rest[-2]
        values = [
            ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(arguments + 8 * at).value).value
            for at in range(len(kernel.pointers))
        ]
        self.submit(lambda: self.after(kernel, values))
        return done


@needs_compiler
def test_right_kernels_pass_and_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(HostDriver(), tmp_path, "--only", "parity")
    assert status == 0
    assert result["finished"]
    assert result["gpu"]["name"] == "host memory, no GPU"
    assert {one["kernel"] for one in result["parity"]} == set(CHEAP)
    assert {one["status"] for one in result["parity"]} == {"ok"}
    assert result["machine"]["summary"]
    assert {"bandwidth: not asked for", "graph: not asked for", "sanitizer: not asked for"} == set(result["skipped"])
    text = (tmp_path / "gpu.md").read_text()
    assert text.startswith("## host memory, no GPU, ")
    assert "| gdn_tree_verify | state |" in text
    assert "cases are right" in capsys.readouterr().out


@needs_compiler
def test_a_kernel_that_does_nothing_fails_and_the_others_go_on(tmp_path: Path) -> None:
    class Lazy(HostDriver):
        def cuLaunchKernel(self, function: tuple[Kernel, Sizes], *rest: int) -> tuple[CUresult]:
            return (CUresult(0),) if function[0] is GDN_TREE_VERIFY else super().cuLaunchKernel(function, *rest)

    status, result = run(Lazy(), tmp_path, "--only", "parity")
    assert status == 1
    by_status = {(one["kernel"], one["status"]) for one in result["parity"]}
    assert by_status == {(name, "failed" if name == "gdn_tree_verify" else "ok") for name in CHEAP}
    assert "times its limit" in (tmp_path / "gpu.md").read_text()


@needs_compiler
def test_writes_outside_of_buffers_and_into_inputs_are_found() -> None:
    def outside(kernel: Kernel, arguments: list[int]) -> None:
        sizes = step(4)
        ctypes.memset(arguments[-1] + 4 * sizes.rows, 0, 4)

    assert "outside of its buffers" in one_case(Meddling(outside), TREE_BUILD, step(4)).detail

    def inside(kernel: Kernel, arguments: list[int]) -> None:
        ctypes.memset(arguments[0], 9, 1)

    assert "changed its input parents" in one_case(Meddling(inside), TREE_BUILD, step(4)).detail


@needs_compiler
def test_a_replay_that_makes_something_else_is_found() -> None:
    turns = iter(range(100))

    def noise(kernel: Kernel, arguments: list[int]) -> None:
        ctypes.memset(arguments[-1], next(turns), 1)

    assert "a replay made another positions" in one_case(Meddling(noise), TREE_BUILD, step(4)).detail


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "rows"),
    [(ATTN_PREFILL, 20), (GDN_PREFILL, 20), (TREE_ATTN_PARTIAL, 16)],
    ids=lambda value: value.name if isinstance(value, Kernel) else str(value),
)
def test_references_of_some_heads_and_rows_agree_with_the_kernel_on_all(kernel: Kernel, rows: int) -> None:
    splits = 3 if kernel is TREE_ATTN_PARTIAL else 1
    outcome = one_case(HostDriver(), kernel, step(rows, splits=splits))
    assert outcome.status == "ok", outcome.detail


@pytest.mark.parametrize(("kernel", "output"), [(ATTN_PREFILL, "context"), (GDN_PREFILL, "y"), (GDN_PREFILL, "state")])
def test_a_sampled_reference_sees_one_wrong_head(kernel: Kernel, output: str) -> None:
    sizes = step(20)
    case = Case(SMALL, "test", kernel, sizes)
    tensors = kernel_inputs(kernel, sizes, np.random.default_rng(0), context=70, count=17)
    made = {name: values.copy() for name, values in tensors.items()}
    kernel.reference(sizes, made)
    assert max(compared(case, tensors, made).values()) <= 1
    last = made[output][-1] if output == "state" else made[output][16].reshape(sizes.heads, -1)[-1]
    last += np.asarray(0.25, last.dtype)
    assert compared(case, tensors, made)[output] > 1


@needs_compiler
def test_a_lost_gpu_costs_one_case(tmp_path: Path) -> None:
    class Fragile(HostDriver):
        """Answers nothing after the third launch until its context is made again."""

        launches, lost = 0, False

        def cuLaunchKernel(self, function: tuple[Kernel, Sizes], *rest: int) -> tuple[CUresult]:
            self.launches += 1
            self.lost = self.lost or self.launches == 3
            return (CUresult(2),) if self.lost else super().cuLaunchKernel(function, *rest)

        def cuMemAlloc(self, size: int) -> tuple[CUresult, int | None]:
            return (CUresult(2), None) if self.lost else super().cuMemAlloc(size)

        def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, int]:
            self.lost = False
            return CUresult(0), 1

    status, result = run(Fragile(), tmp_path, "--only", "parity")
    assert status == 1
    statuses = [one["status"] for one in result["parity"]]
    assert len(statuses) == len([case for case in parity_cases([SMALL]) if case.kernel.name in CHEAP])
    assert statuses.count("error") == 1


@needs_compiler
def test_bandwidth_and_graphs(tmp_path: Path) -> None:
    kernels = ("gdn_tree_verify", "tree_attn_reduce", "attn_prefill", "kv_commit")
    status, result = run(HostDriver(), tmp_path, "--only", "bandwidth", "graph", kernels=kernels)
    assert status == 0, result["errors"]
    assert [one["bytes"] for one in result["copy"]] in ([4096, 8192], [8192, 4096])
    names = {one["name"] for one in result["bandwidth"]}
    assert names == {"gdn_tree_verify", "tree_attn_partial + reduce", "attn_prefill", "kv_commit"}
    for one in result["bandwidth"]:
        assert one["ratio"]["low"] <= one["ratio"]["median"] <= one["ratio"]["high"]
        assert one["times"] * one["moved"] > 0
        assert one["formula"]
    assert [one["name"] for one in result["graphs"]][1:] == ["nothing to do", "the smallest kernel (tree_build)"]
    layers = TINY.spec.layers
    launches = 3 + sum(2 if kind == "linear_attention" else 3 for kind in layers)  # tree, candidates, commit
    assert result["graphs"][0]["launches"] == launches
    text = (tmp_path / "gpu.md").read_text()
    assert "MISSED" in text
    assert "µs a launch" in text


def test_no_time_is_told_and_is_no_success(tmp_path: Path) -> None:
    status, result = run(HostDriver(), tmp_path, "--minutes", "0")
    assert status == 1
    assert sum("no time left" in reason for reason in result["skipped"]) == 3
    assert {one["status"] for one in result["sanitizer"]} == {"skipped"}


def test_bytes_are_those_of_the_model() -> None:
    found = {f"{one.name}, {one.detail}": one for one in workloads(FULL, 60 << 20, 132)}
    state = 4 * 48 * 128 * 128
    verify = next(one for name, one in found.items() if name.startswith("gdn_tree_verify, 16"))
    operands = 16 * (2 * (2 * 16 * 128 + 2 * 48 * 128) + 2 * 4 * 48)
    capsule = 2 * 16 * 128 + 4 * 48 * 128 + 4 * 48
    accepted = int(verify.detail.split(", ")[1].split()[0])
    assert verify.moved / verify.times == pytest.approx(2 * state + operands + (16 + accepted) * capsule, rel=1e-4)
    assert verify.times * (state + 2 * 16 * capsule) >= 4 * (60 << 20)
    attention = found["tree_attn_partial + reduce, 16 rows at 16384, 64 splits"]
    queries = 2 * 2 * 16 * 24 * 256
    assert attention.moved / attention.times == (16384 + 16) * 2 * 4 * 256 + queries
    assert {one.target for name, one in found.items() if "comparison" in name} == {None}
    assert all(one.arena < 4 << 30 for one in found.values())


def test_splits_are_those_of_the_executor() -> None:
    layout = Layout(io="bf16", slots=1, page=64, pages=4, max_pages=4, snapshots=0, nodes=16, chunk=16, mtp=False)
    for splits in SPLITS:
        model = Model(None, LARGE.spec, layout, {}, None, splits)  # type: ignore[arg-type]
        assert [model.sizes(rows, rows).splits for rows in (1, 16)] == [splits_of(splits, rows) for rows in (1, 16)]
    assert [splits_for(count, 4) for count in (20, 48, 132)] == [10, 32, 64]


def test_every_kernel_has_limits_for_its_outputs() -> None:
    for name, kernel in KERNELS.items():
        outputs = {param.name for param in kernel.params if param.role != "in"}
        assert set(LIMITS[name]) == ({"context"} if kernel is TREE_ATTN_PARTIAL else outputs)


def test_a_case_at_every_shape_of_the_large_model_fits_into_little_memory() -> None:
    cases = parity_cases([LARGE])
    assert {case.kernel.name for case in cases} == set(KERNELS)
    assert max(needed_bytes(case.kernel, case.sizes) for case in cases) < 1 << 30


@pytest.mark.skipif(not nvrtc.available(), reason="compiling needs edgellm[kernels]")
@needs_compiler
def test_binaries_from_a_folder_are_found_by_digest(tmp_path: Path) -> None:
    driver = HostDriver()
    setup = setup_on(driver, ("tree_accept", "kv_copy_page"))
    needed = [(case.kernel, case.sizes) for case in setup.cases()]
    assert set(needed) <= set(all_needs(setup))
    paths = save_cubins(tmp_path / "cubins", needed, "sm_90a")
    assert {path.read_bytes()[:4] for path in paths} == {b"\x7fELF"}
    read = from_folder(tmp_path / "cubins")
    loaded: list[bytes] = []

    def binary(kernel: Kernel, sizes: Sizes, arch: str) -> bytes:
        cubin = read(kernel, sizes, arch)
        assert cubin == compiled_here(kernel, sizes, arch)
        driver.binaries[cubin] = kernel, sizes
        loaded.append(cubin)
        return cubin

    status = bench_gpu.main(
        ["--out", str(tmp_path), "--only", "parity", "--cubins", "x"], setup=replace(setup, binary=binary)
    )
    assert status == 0
    assert len(loaded) == len(needed)
    (tmp_path / "cubins" / binary_name(*needed[0], "sm_90a")).unlink()
    with pytest.raises(ConfigError, match=r"no binary of tree_accept for sm_90a.*--compile"):
        read(*needed[0], "sm_90a")


def test_without_a_driver_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing(*_: object) -> None:
        raise ConfigError("there is no NVIDIA driver: none")

    monkeypatch.setattr(gpu_results, "read_gpu", missing)
    assert bench_gpu.main(["--out", str(tmp_path)]) == 1
    assert "there is no NVIDIA driver" in capsys.readouterr().err


def test_workers_that_die_are_started_again_behind_the_last_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The interpreter is a script: it answers one item and dies; from the third on it says nothing."""
    value = {"shape": "tiny", "part": "p", "kernel": "k", "io": "bf16", "status": "ok", "worst": {}, "detail": ""}
    record = Record(at=0, count=4, label="x", status="ok", value={**value, "seconds": 0.0})
    line = json.dumps(asdict(record))
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\nfor start; do :; done\n"  # the last argument
        f'[ $start -lt 2 ] && echo \'{line}\' | sed "s/\\"at\\": 0/\\"at\\": $start/"\nexit 1\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(gpu_results, "read_gpu", lambda driver: host_gpu())
    monkeypatch.setattr(bench_gpu.sys, "executable", str(script))
    assert bench_gpu.main(["--out", str(tmp_path), "--only", "parity"]) == 1
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert len(result["parity"]) == 2
    assert len(result["errors"]) == 2
    assert "ended without a result" in result["errors"][0]


def host_gpu() -> Gpu:
    return read_gpu(HostDriver())


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, "ok"),
        ("ERROR SUMMARY: 0 errors", 0, "ok"),
        ("ERROR SUMMARY: 3 errors", 86, "failed"),
        ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 86, "failed"),
        ("Device not supported", 1, "error"),
    ],
)
def test_what_the_sanitizer_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, status: int, expected: str
) -> None:
    tool = tmp_path / gpu_sanitizer.TOOL
    tool.write_text(f"#!/bin/sh\necho '========= {said}'\nexit {status}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = gpu_sanitizer.sanitize(["--quick"], 60)
    assert [(one.check, one.status) for one in found] == [("memcheck", expected), ("racecheck", expected)]
    assert said in found[0].detail


def test_a_missing_sanitizer_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {one.detail for one in gpu_sanitizer.sanitize([], 60)} == {"compute-sanitizer is not on PATH"}


def test_quick_compares_tiny_shapes_in_one_type() -> None:
    assert {case.sizes.io for case in parity_cases(QUICK_SHAPES)} == {"bf16"}
    assert {case.shape.name for case in parity_cases(QUICK_SHAPES)} == {"tiny"}


def test_a_report_names_what_was_wrong() -> None:
    empty: dict[str, Any] = {key: [] for key in ("copy", "bandwidth", "graphs", "sanitizer", "skipped")}
    outcome = {"shape": "tiny", "part": "verify 1", "kernel": "k", "io": "bf16", "worst": {"y": 3.0}, "seconds": 1.0}
    result = {
        **empty,
        "gpu": asdict(host_gpu()),
        "machine": {"summary": "a machine", "gpu": None},
        "parity": [{**outcome, "status": "failed", "detail": "y differs by 3 times its limit"}],
        "date": "today",
        "clocks": {},
        "binaries": "b",
        "command": "c",
        "seconds": 1.0,
        "edgellm": "0",
    }
    text = markdown(result)
    assert "1 cases: 0 ok, 1 failed, 0 error" in text
    assert "- tiny bf16, verify 1, k: y differs by 3 times its limit" in text


def test_the_script_for_a_bare_machine_finds_everything(tmp_path: Path) -> None:
    """In a source tree, with nothing of edgellm installed and a package from a wheel; no driver is asked for."""
    script = Path(__file__).parents[2] / "jetson" / "run_gpu_bench.sh"
    with zipfile.ZipFile(tmp_path / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sitecustomize.py", "print('carried')\n")
    environment = {**os.environ, "PYTHON": sys.executable, "WHEELS": str(tmp_path)}
    done = subprocess.run([script, "--help"], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("carried\n")
    assert "python -m edgellm.jetson.bench_gpu" in done.stdout
