"""Machines made of files: what is under /proc, /sys, /etc and /usr, what tools print, what Python sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from edgellm.jetson.host import Host

MakeHost = Callable[..., Host]
OURS = {"onnxruntime": "1.32.0", "onnx": "1.23.2", "tokenizers": "0.23.3"}
MEMINFO = (
    "MemTotal:       {total} kB\nMemFree:         1000000 kB\nMemAvailable:   {free} kB\nSwapTotal:      {swap} kB\n"
)

# As developer kits show them (L4T 38.4; power mode and clocks as after nvpmodel -m 0 and jetson_clocks).
THOR_FILES: Mapping[str, str] = {
    "etc/nv_tegra_release": "# R38 (release), REVISION: 4.0, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x\n",
    "proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p4071-0000+p3834-0008\0nvidia,p3834-0008\0nvidia,tegra264\0",
    "proc/meminfo": MEMINFO.format(total=125_772 << 10, free=120_000 << 10, swap=8 << 20),
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.00  Release Build\n",
    "usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "13.0.48"}}',
    "usr/lib/aarch64-linux-gnu/libnvinfer.so.10": "",
    "usr/lib/aarch64-linux-gnu/libnvinfer.so.10.13.3": "",
    "sys/class/devfreq/gpu-gpc-0/cur_freq": "1575000000\n",
    "sys/class/devfreq/gpu-gpc-0/min_freq": "1575000000\n",
    "sys/class/devfreq/gpu-gpc-0/max_freq": "1575000000\n",
    "sys/class/devfreq/bwmgr/cur_freq": "4266000000\n",
    "sys/class/devfreq/bwmgr/min_freq": "4266000000\n",
    "sys/class/devfreq/bwmgr/max_freq": "4266000000\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "52906\n",
    "sys/class/thermal/thermal_zone8/type": "tj-thermal\n",
    "sys/class/thermal/thermal_zone8/temp": "56906\n",
}
THOR_TOOLS: Mapping[str, str] = {
    "nvpmodel -q": "NV Power Mode: MAXN\n0\n",
    "nvidia-smi": "NVIDIA Thor, 11.0, 580.00, [N/A]\n",
}
THOR_PACKAGES = {**OURS, "tensorrt": "10.13.3.9", "nvidia-cuda-nvrtc": "13.0.88"}


@pytest.fixture
def make_host(tmp_path: Path) -> MakeHost:
    """`make_host(files, tools, packages, cuda=…, environ=…)`: a tool answers when its command begins with the key."""
    numbers = count()

    def make(
        files: Mapping[str, str] | None = None,
        tools: Mapping[str, str] | None = None,
        packages: Mapping[str, str] | None = None,
        *,
        cuda: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Host:
        root = tmp_path / f"root{next(numbers)}"
        for path, text in (files or {}).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)

        def run(command: Any) -> str | None:
            line = " ".join(command)
            return next((text for key, text in (tools or {}).items() if line.startswith(key)), None)

        return Host(root, run, (OURS if packages is None else packages).get, lambda: cuda, environ or {})

    return make


@pytest.fixture
def thor(make_host: MakeHost) -> MakeHost:
    """The same for a Thor: `thor(files={…}, tools={…}, packages={…})` changes it; a value of None removes one."""

    def changed(base: Mapping[str, str], changes: Mapping[str, str | None] | None) -> dict[str, str]:
        return {key: value for key, value in {**base, **(changes or {})}.items() if value is not None}

    def make(
        files: Mapping[str, str | None] | None = None,
        tools: Mapping[str, str | None] | None = None,
        packages: Mapping[str, str | None] | None = None,
        *,
        cuda: str | None = "13.0",
        environ: Mapping[str, str] | None = None,
    ) -> Host:
        return make_host(
            changed(THOR_FILES, files),
            changed(THOR_TOOLS, tools),
            changed(THOR_PACKAGES, packages),
            cuda=cuda,
            environ=environ,
        )

    return make
