"""Every kernel that the 27B model launches compiles for a device and asks for no more than the device grants."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from edgellm.errors import ConfigError
from edgellm.kernels import check, nvrtc
from edgellm.kernels.catalog import DEVICE_PROFILES, KERNELS
from edgellm.kernels.nvrtc import CompileError, check_ptx, compile_kernel, describe
from edgellm.kernels.tree import TREE_BUILD

needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="compiling needs edgellm[kernels]")
SIZES = next(profile.sizes for profile in DEVICE_PROFILES if profile.kernel is TREE_BUILD)
PTX = b"""
.version 9.0
.target sm_110a
.visible .entry tree_build(
\t.param .u64 .ptr .align 1 tree_build_param_0,
\t.param .u64 .ptr .align 1 tree_build_param_1
)
"""
LOG = """ptxas info    : Function properties for tree_build
ptxas         .     48 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 30848 bytes smem"""


@needs_nvrtc
@pytest.mark.parametrize("arch", check.ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_device_grants_what_a_kernel_needs(name: str, arch: str) -> None:
    profiles = [profile for profile in DEVICE_PROFILES if profile.kernel.name == name]
    assert profiles
    for profile in profiles:
        assert check.check(profile, arch).violations == (), profile.part


@needs_nvrtc
def test_both_forms_come_from_one_compilation_and_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cubin = compile_kernel(TREE_BUILD, SIZES, "sm_110a")
    assert cubin.binary.startswith(b"\x7fELF")

    def fail(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "_compile", fail)
    assert compile_kernel(TREE_BUILD, SIZES, "sm_110a") == cubin
    ptx = compile_kernel(TREE_BUILD, SIZES, "sm_110a", "ptx")
    assert ptx.binary.lstrip().startswith(b"//")
    assert b".target sm_110a" in ptx.binary
    assert b"\0" not in ptx.binary
    assert dataclasses.replace(ptx, binary=b"") == dataclasses.replace(cubin, binary=b"")


@needs_nvrtc
def test_a_wrong_source_is_told_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "text", lambda name: "KERNEL tree_build() { nonsense; }")
    monkeypatch.setattr(nvrtc, "digest", lambda *_: "0" * 64)
    with pytest.raises(CompileError, match=r"(?s)tree_build does not compile:.*error"):
        compile_kernel(TREE_BUILD, SIZES, "sm_110a")


def test_ptx_that_jetpack_cannot_load_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"NVRTC 13\.5 writes PTX 9\.5.*edgellm\[kernels\]"):
        check_ptx((9, 5), "sm_110a", "13.5")
    check_ptx((9, 0), "sm_110a", "13.0")
    check_ptx((9, 5), "sm_90a", "13.5")


def test_a_missing_nvrtc_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ConfigError, match=r"edgellm\[kernels\]"):
        compile_kernel(TREE_BUILD, SIZES, "sm_110a")


def test_what_the_assembler_says_is_read() -> None:
    made = describe(TREE_BUILD, PTX, LOG)
    assert (made.registers, made.spills, made.shared, made.ptx, made.parameters) == (168, 44, 30848, (9, 0), 2)
    with pytest.raises(CompileError, match="no such kernel"):
        describe(TREE_BUILD, PTX.replace(b"tree_build", b"other"), LOG)


def test_violations_are_named_and_make_the_check_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = next(profile for profile in DEVICE_PROFILES if profile.kernel.plugin)
    made = dataclasses.replace(describe(TREE_BUILD, PTX, LOG), shared=49153, ptx=(9, 5), registers=3000)
    monkeypatch.setattr(check, "DEVICE_PROFILES", (plugin,))
    monkeypatch.setattr(check, "compile_kernel", lambda *_: made)
    assert check.main(["--arch", "sm_110a", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    text = "; ".join(row["violations"])
    for part in ("44 bytes of registers", "a block needs", "49153 bytes of shared memory", "PTX 9.5", "2 parameters"):
        assert part in text
    assert check.main(["--arch", "sm_110a"]) == 1
    assert "49153 bytes of shared memory" in capsys.readouterr().out
