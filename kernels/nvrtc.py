"""Compiles kernels for GPUs with NVRTC, on any machine: neither a GPU nor its driver is needed.

What must stay true: what is returned for one (kernel, sizes, architecture) depends on the sources and on NVRTC's
version alone, and PTX for JetPack 7 is PTX that its drivers load.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from edgellm.errors import ConfigError, EdgeLLMError
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.source import cache_folder, definitions, digest, headers, text
from edgellm.kernels.spec import Kernel

Form = Literal["cubin", "ptx"]

# The driver of JetPack 7.0 and 7.1 is that of CUDA 13.0, and a driver loads PTX up to its own version.
JETPACK_PTX: Final = (9, 0)
_JETPACK_ARCH: Final = "sm_110"
_OPTIONS: Final = ("--std=c++17", "-default-device", "--ptxas-options=-v")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel for one architecture."""

    binary: bytes  # cubin, or PTX without a final NUL
    registers: int  # of a thread
    spills: int  # bytes stored and loaded for want of registers
    shared: int  # bytes of static shared memory
    ptx: tuple[int, int]  # version of PTX that NVRTC writes
    parameters: int  # of the function
    log: str


class CompileError(EdgeLLMError):
    """NVRTC refused a kernel; the message is its log."""


def available() -> bool:
    """Whether NVRTC can be loaded here."""
    try:
        _nvrtc()
    except ConfigError:
        return False
    return True


def compile_kernel(kernel: Kernel, sizes: Sizes, arch: str, form: Form = "cubin") -> Compiled:
    """Compile `kernel`, or take what was compiled before from the cache.

    Args:
        arch: a real architecture such as "sm_110a": resources are those of its machine code, PTX is the one it is
            made from.

    Raises:
        ConfigError: NVRTC is not installed or too new for PTX that JetPack 7 loads, or the kernel cannot be compiled
            for these sizes.
        CompileError: the source is wrong.
    """
    nvrtc = _nvrtc()
    major, minor = _ok(nvrtc, nvrtc.nvrtcVersion())
    target = cache_folder() / f"{kernel.name}-{digest(kernel, sizes, arch, f'{major}.{minor}', *_OPTIONS)[:24]}.{arch}"
    if target.exists():
        found = _read(target, form)
    else:
        macros = [f"-D{entry}" for entry in definitions(kernel, sizes)]
        ptx, cubin, log = _compile(nvrtc, kernel, [f"--gpu-architecture={arch}", *_OPTIONS, *macros])
        made = describe(kernel, ptx, log)
        _write(target, made, ptx, cubin)
        found = replace(made, binary=ptx if form == "ptx" else cubin)
    if form == "ptx":
        check_ptx(found.ptx, arch, f"{major}.{minor}")
    return found


def check_ptx(version: tuple[int, int], arch: str, nvrtc: str) -> None:
    """Raises ConfigError: PTX of this version for this architecture is too new for the drivers of JetPack 7."""
    if arch.startswith(_JETPACK_ARCH) and version > JETPACK_PTX:
        raise ConfigError(
            f"NVRTC {nvrtc} writes PTX {version[0]}.{version[1]}, and the driver of JetPack 7.0 and 7.1 loads PTX up "
            f"to {JETPACK_PTX[0]}.{JETPACK_PTX[1]}: install edgellm[kernels], which has nvidia-cuda-nvrtc 13.0"
        )


def describe(kernel: Kernel, ptx: bytes, log: str) -> Compiled:
    """What the PTX of `kernel` and the assembler's log say; the binary is left empty.

    Raises:
        CompileError: they do not say it.
    """
    version = re.search(rb"^\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    entry = re.search(rb"\.entry %s\((.*?)\)" % kernel.name.encode(), ptx, re.DOTALL)
    registers = re.search(r"Used (\d+) registers", log)
    if version is None or entry is None or registers is None:
        raise CompileError(f"{kernel.name}: no such kernel in what NVRTC made:\n{log}")
    shared = re.search(r"(\d+) bytes smem", log)
    return Compiled(
        binary=b"",
        registers=int(registers[1]),
        spills=sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        shared=int(shared[1]) if shared else 0,
        ptx=(int(version[1]), int(version[2])),
        parameters=entry[1].count(b".param"),
        log=log,
    )


def _compile(nvrtc: Any, kernel: Kernel, options: list[str]) -> tuple[bytes, bytes, str]:
    """(PTX, cubin, log)"""
    names = headers(kernel.source)
    source = text(kernel.source).encode()
    program = _ok(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            source,
            kernel.source.encode(),
            len(names),
            [text(name).encode() for name in names],
            [name.encode() for name in names],
        ),
    )
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _take(nvrtc, program, "ProgramLog").decode(errors="replace").strip()
        if int(result):
            raise CompileError(f"{kernel.name} does not compile:\n{log[:4000]}")
        return _take(nvrtc, program, "PTX"), _take(nvrtc, program, "CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _take(nvrtc: Any, program: Any, what: str) -> bytes:
    buffer = bytearray(_ok(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
    _ok(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return bytes(buffer) if what == "CUBIN" else bytes(buffer).rstrip(b"\0")


def _ok(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """The values of an NVRTC call."""
    if int(answer[0]):
        raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(answer[0])[1].decode()}")
    return answer[1] if len(answer) == 2 else answer[1:]


def check_installed() -> None:
    """Raises ConfigError: NVRTC is not installed."""
    _nvrtc()


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(f"NVRTC cannot be loaded ({error}): pip install 'edgellm[kernels]'") from error
    return nvrtc


# A file of the cache: one line of JSON, then PTX and cubin.


def _write(target: Path, made: Compiled, ptx: bytes, cubin: bytes) -> None:
    head = {**asdict(replace(made, binary=b"")), "binary": len(ptx)}
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(json.dumps(head).encode() + b"\n" + ptx + cubin)
    Path(file.name).replace(target)  # whole or not at all, whoever else writes it


def _read(target: Path, form: Form) -> Compiled:
    line, binaries = target.read_bytes().split(b"\n", 1)
    head = json.loads(line)
    size = head.pop("binary")
    binary = binaries[:size] if form == "ptx" else binaries[size:]
    return Compiled(**{**head, "ptx": tuple(head["ptx"]), "binary": binary})
