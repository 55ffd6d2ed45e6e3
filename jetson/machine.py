"""`Machine`: what a machine is, read from its files and tools into one frozen record.

It is what `edgellm doctor` judges and what every result of a measurement carries. What must stay true: a fact that
could not be read is None or empty, never a default that looks like a fact; nothing here needs torch or a GPU.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from edgellm.engine.trt.machine import l4t_release
from edgellm.jetson.host import Host
from edgellm.jetson.power import Power, read_power
from edgellm.jetson.releases import numbers, release_of

_TENSORRT: Final = ("tensorrt", "tensorrt_cu13", "tensorrt_cu13_bindings")
_TENSORRT_RTX: Final = ("tensorrt_rtx", "tensorrt_rtx_cu13", "tensorrt_rtx_cu13_bindings")
_NVRTC: Final = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_LIBRARY_FOLDERS: Final = ("usr/lib/*-linux-gnu", "usr/local/cuda*/lib64", "usr/local/tensorrt/lib", "opt/tensorrt/lib")
_SMI: Final = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader"]
_SOCS: Final = {"tegra264": "sm_110", "tegra234": "sm_87"}


@dataclass(frozen=True, slots=True)
class Memory:
    """/proc/meminfo in bytes. Swap does not back memory that CUDA holds."""

    total: int
    available: int
    swap: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first NVIDIA GPU. `memory` in bytes; None: it shares the system's, and nvidia-smi says [N/A]."""

    name: str | None
    architecture: str | None  # "sm_110"
    driver: str | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Versions of what builds and runs device engines.

    Attributes:
        cuda_driver: newest CUDA that the driver runs.
        cuda_toolkit: of /usr/local/cuda, or of the runtime's wheel.
        tensorrt: of the Python module that this interpreter sees.
        tensorrt_library: of libnvinfer on the system.
        tensorrt_elsewhere: of a Python module that the system's Python has and this one does not see.
        nvrtc: of its wheel, else of the library in /usr/local/cuda.
    """

    cuda_driver: str | None
    cuda_toolkit: str | None
    tensorrt: str | None
    tensorrt_library: str | None
    tensorrt_elsewhere: str | None
    tensorrt_rtx: str | None
    nvrtc: str | None


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, at the moment it was read. `model` is what its maker calls it."""

    model: str | None
    processor: str | None
    architecture: str
    cores: int  # that this process may use
    memory: Memory
    l4t: str | None
    jetpack: str | None
    gpu: Gpu | None
    tools: Toolchain
    power: Power

    @property
    def is_jetson(self) -> bool:
        return self.l4t is not None or "Jetson" in (self.model or "")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able record of everything and its `summary`, for result files."""
        return {"summary": self.summary(), **asdict(self)}

    def summary(self) -> str:
        """One line for people: model, memory, software, power mode, clocks."""
        clocks = [f"{clock.name} {clock.mhz:.0f} MHz" for clock in self.power.clocks]
        pieces = [
            self.model or self.processor or "unknown machine",
            f"{self.cores} cores",
            f"{self.memory.total / 2**30:.1f} GiB",
            None if self.gpu is None else self.gpu.name,
            None if self.jetpack is None else f"JetPack {self.jetpack}",
            None if self.l4t is None else f"L4T {self.l4t}",
            None if self.power.mode is None else f"power mode {self.power.mode}",
            *clocks,
        ]
        return ", ".join(piece for piece in pieces if piece)


def read_machine(host: Host | None = None) -> Machine:
    """Read `host`, by default this machine. Takes as long as its tools: at most a few seconds each."""
    host = host or Host()
    l4t = l4t_release(host.root / "etc/nv_tegra_release")
    release = None if l4t is None else release_of(l4t)
    return Machine(
        model=_model(host),
        processor=_processor(host),
        architecture=platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=_memory(host),
        l4t=l4t,
        jetpack=_jetpack_package(host) or (None if release is None else release.jetpack),
        gpu=_gpu(host),
        tools=_tools(host),
        power=read_power(host),
    )


def _model(host: Host) -> str | None:
    tree = host.text("proc/device-tree/model") or host.text("sys/firmware/devicetree/base/model")
    if tree:
        return tree
    names = [host.text(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    return " ".join(name for name in names if name) or None


def _processor(host: Host) -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", host.text("proc/cpuinfo") or "", re.MULTILINE)
    return found[1].strip() if found else None


def _memory(host: Host) -> Memory:
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB$", host.text("proc/meminfo") or "", re.MULTILINE))
    if "MemTotal" in rows and "MemAvailable" in rows:
        return Memory(*(int(rows.get(name, 0)) << 10 for name in ("MemTotal", "MemAvailable", "SwapTotal")))
    here = psutil.virtual_memory()  # a system without /proc
    return Memory(here.total, here.available, psutil.swap_memory().total)


def _jetpack_package(host: Host) -> str | None:
    """Version of the package nvidia-jetpack, without its build: "7.0" of "7.0-b128"."""
    status = host.text("var/lib/dpkg/status") or ""
    found = re.search(r"^Package: nvidia-jetpack\n(?:.+\n)*?Version: ([\d.]+)", status, re.MULTILINE)
    return found[1] if found else None


def _gpu(host: Host) -> Gpu | None:
    answer = host.run(_SMI)
    if answer and len(cells := [_known(cell) for cell in answer.splitlines()[0].split(",")]) == 4:
        name, capability, driver, size = cells
        architecture = None if capability is None else f"sm_{capability.replace('.', '')}"
        memory = re.fullmatch(r"(\d+) MiB", size or "")
        return Gpu(name, architecture or _soc(host), driver, int(memory[1]) << 20 if memory else None)
    module = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", host.text("proc/driver/nvidia/version") or "")
    architecture = _soc(host)
    if architecture is None and module is None:
        return None
    return Gpu(None, architecture, module[1] if module else None, None)


def _known(cell: str) -> str | None:
    """nvidia-smi writes [N/A] or [Not Supported] for what it cannot say."""
    cell = cell.strip()
    return None if not cell or cell.startswith("[") or cell == "N/A" else cell


def _soc(host: Host) -> str | None:
    compatible = host.text("proc/device-tree/compatible") or host.text("sys/firmware/devicetree/base/compatible") or ""
    return next((sm for soc, sm in _SOCS.items() if soc in compatible), None)


def _tools(host: Host) -> Toolchain:
    return Toolchain(
        cuda_driver=host.cuda_driver(),
        cuda_toolkit=_toolkit(host),
        tensorrt=_package(host, _TENSORRT),
        tensorrt_library=_library(host, "libnvinfer"),
        tensorrt_elsewhere=_system_tensorrt(host),
        tensorrt_rtx=_package(host, _TENSORRT_RTX),
        nvrtc=_package(host, _NVRTC) or _library(host, "libnvrtc"),
    )


def _package(host: Host, names: tuple[str, ...]) -> str | None:
    return next((version for name in names if (version := host.package(name))), None)


def _toolkit(host: Host) -> str | None:
    try:
        version = json.loads(host.text("usr/local/cuda/version.json") or "")["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        return host.package("nvidia-cuda-runtime")
    return version if isinstance(version, str) else None


def _library(host: Host, stem: str) -> str | None:
    """Version in the longest name of the shared library: "10.13.3" of libnvinfer.so.10.13.3."""
    paths = [path for folder in _LIBRARY_FOLDERS for path in host.find(f"{folder}/{stem}.so.*")]
    versions = [path.rpartition(".so.")[2] for path in paths]
    return max(versions, key=lambda version: (len(numbers(version)), numbers(version)), default=None)


def _system_tensorrt(host: Host) -> str | None:
    folders = host.find("usr/lib/python3*/dist-packages/tensorrt-*.dist-info")
    found = re.search(r"tensorrt-([\d.]+)\.dist-info$", folders[-1]) if folders else None
    return found[1] if found else None
