"""The doctor's findings on the accelerator: releases, driver, TensorRT, NVRTC, power mode, clocks, heat.

What must stay true: on a machine without an NVIDIA device there is one finding that says so and none that complains.
"""

from __future__ import annotations

from edgellm.jetson.findings import Finding
from edgellm.jetson.host import Host
from edgellm.jetson.machine import Gpu, Machine, Toolchain
from edgellm.jetson.releases import (
    MISCOMPILES_BEFORE,
    NVRTC_WANTED,
    RELEASES,
    TENSORRT_OLDEST,
    TENSORRT_WANTED,
    WORKAROUND,
    WORKAROUND_VARIABLE,
    numbers,
    release_of,
)

HOT_C = 90.0  # a junction that warm is close to throttling
_INSTALL = "sudo apt install python3-libnvinfer; make the environment with `python3 -m venv --system-site-packages`"
_NVRTC_PIN = "pip install 'nvidia-cuda-nvrtc==13.0.*'"


def device_findings(machine: Machine, host: Host) -> list[Finding]:
    """The device and what drives it."""
    gpu = machine.gpu
    if gpu is None:
        return [Finding("device", "info", "no NVIDIA device: the CPU executor runs everything")]
    findings = [_gpu(gpu)]
    if machine.is_jetson:
        findings.append(_release(machine))
    return [*findings, _cuda(machine), _tensorrt(gpu, machine.tools, host), *_rtx(machine.tools), _nvrtc(machine)]


def power_findings(machine: Machine) -> list[Finding]:
    """Power mode, clocks and heat; of a Jetson whole, elsewhere what there is to see."""
    power, found = machine.power, []
    if machine.is_jetson:
        found.append(_mode(machine))
    if machine.gpu is not None and power.clocks:
        moving = [clock for clock in power.clocks if clock.name != "cpu" and not clock.pinned]
        seen = ", ".join(f"{c.name} {c.mhz:.0f} of {c.lowest_mhz:.0f} to {c.highest_mhz:.0f} MHz" for c in power.clocks)
        advice = "sudo jetson_clocks before a measurement" if moving and machine.is_jetson else ""
        found.append(Finding("clocks", "warn" if advice else "info", seen, advice))
    elif machine.is_jetson:
        advice = "run `sudo jetson_clocks --show`: devfreq shows none to this user"
        found.append(Finding("clocks", "warn", "not readable", advice))
    if power.temperatures:
        found.append(_heat(power.temperatures))
    if power.throttling:
        seen = ", ".join(f"{name} {value}" for name, value in power.throttling.items())
        advice = "look at cooling and power supply, and compare the counters before and after a measurement"
        found.append(Finding("throttling", "warn", seen, advice))
    return found


def _gpu(gpu: Gpu) -> Finding:
    name = gpu.name or "NVIDIA GPU (nvidia-smi does not answer)"
    memory = "shares the system's memory" if gpu.memory is None else f"{gpu.memory / 2**30:.0f} GiB of its own"
    return Finding("device", "info", f"{name}, {gpu.architecture or 'architecture unknown'}, {memory}")


def _release(machine: Machine) -> Finding:
    if machine.l4t is None:
        return Finding(
            "jetpack",
            "warn",
            f"JetPack {machine.jetpack or 'unknown'}; no /etc/nv_tegra_release here",
            "in a container: mount it, so that results say which release they are of",
        )
    seen = f"L4T {machine.l4t}, JetPack {machine.jetpack or 'unknown'}"
    if release_of(machine.l4t) is None:
        known = ", ".join(f"{l4t} (JetPack {release.jetpack})" for l4t, release in RELEASES.items())
        return Finding("jetpack", "warn", seen, f"known are L4T {known}: check that the engines build and answer")
    return Finding("jetpack", "ok", seen)


def _cuda(machine: Machine) -> Finding:
    tools, gpu = machine.tools, machine.gpu
    driver = gpu.driver if gpu is not None else None
    seen = (
        f"driver {driver or 'version unknown'}, runs CUDA up to {tools.cuda_driver or 'unknown'}; "
        f"toolkit {tools.cuda_toolkit or 'not installed'}"
    )
    if tools.cuda_driver is None:
        advice = "libcuda.so.1 cannot be loaded: install the driver; in a container: --runtime nvidia"
        return Finding("cuda", "warn", seen, advice)
    return Finding("cuda", "ok", seen)


def _tensorrt(gpu: Gpu, tools: Toolchain, host: Host) -> Finding:
    module, library = tools.tensorrt, tools.tensorrt_library
    if module is None:
        if tools.tensorrt_elsewhere is not None:
            seen = (
                f"module {tools.tensorrt_elsewhere} is installed for the system's Python, which this one does not see"
            )
            return Finding("tensorrt", "warn", seen, "make the environment with --system-site-packages")
        seen = f"no Python module `tensorrt`; library {library or 'not found'}: device engines cannot be built or run"
        return Finding("tensorrt", "warn", seen, _INSTALL)
    seen = f"module {module}, library {library or 'not found on the system (the wheel may bring its own)'}"
    if library is not None and numbers(module)[:2] != numbers(library)[:2] and len(numbers(library)) > 1:
        return Finding(
            "tensorrt", "fail", seen, "module and library must be of one version: install both from one source"
        )
    version = numbers(module)[:2]
    if version < TENSORRT_OLDEST:
        return Finding("tensorrt", "fail", seen, f"update: {_dotted(TENSORRT_OLDEST)} is the oldest that is supported")
    if version < MISCOMPILES_BEFORE and gpu.architecture == "sm_110":
        setting = f'{WORKAROUND_VARIABLE}="{WORKAROUND}"'
        if host.environ.get(WORKAROUND_VARIABLE, "") == WORKAROUND:
            return Finding(
                "tensorrt", "warn", f"{seen}; {WORKAROUND_VARIABLE} is set", "update to JetPack 7.2 if you can"
            )
        advice = f"it miscompiles batch 1 on sm_110: update to JetPack 7.2, or export {setting} before building"
        return Finding("tensorrt", "warn", seen, advice)
    if version < TENSORRT_WANTED:
        return Finding("tensorrt", "warn", seen, f"{_dotted(TENSORRT_WANTED)} or newer is wanted")
    return Finding("tensorrt", "ok", seen)


def _rtx(tools: Toolchain) -> list[Finding]:
    return [] if tools.tensorrt_rtx is None else [Finding("tensorrt-rtx", "info", f"module {tools.tensorrt_rtx}")]


def _nvrtc(machine: Machine) -> Finding:
    tools = machine.tools
    if tools.nvrtc is None:
        return Finding("nvrtc", "warn", "not found: kernels cannot be compiled", _NVRTC_PIN)
    version, driver = numbers(tools.nvrtc)[:2], numbers(tools.cuda_driver or "")[:2]
    if driver and version > driver:
        seen = f"{tools.nvrtc}, newer than the driver's CUDA {tools.cuda_driver}: its PTX will not load here"
        return Finding("nvrtc", "fail", seen, _NVRTC_PIN)
    if version > NVRTC_WANTED and machine.is_jetson:
        seen = f"{tools.nvrtc}: engines built with it do not load on JetPack releases with an older driver"
        return Finding("nvrtc", "warn", seen, _NVRTC_PIN)
    if version < NVRTC_WANTED and machine.is_jetson:
        return Finding("nvrtc", "warn", f"{tools.nvrtc}: it may not know sm_110", _NVRTC_PIN)
    return Finding("nvrtc", "ok", tools.nvrtc)


def _mode(machine: Machine) -> Finding:
    mode = machine.power.mode
    if mode is None:
        advice = "run `sudo nvpmodel -q`; results of this machine will not say their power mode"
        return Finding("power mode", "warn", "nvpmodel is not there or does not answer", advice)
    if mode.startswith("MAXN"):
        return Finding("power mode", "ok", mode)
    return Finding("power mode", "warn", mode, "sudo nvpmodel -m 0 (MAXN): published figures assume it")


def _heat(temperatures: dict[str, float]) -> Finding:
    name = "tj-thermal" if "tj-thermal" in temperatures else max(temperatures, key=lambda zone: temperatures[zone])
    seen = f"{name} {temperatures[name]:.0f} °C"
    if temperatures[name] < HOT_C:
        return Finding("temperature", "info", seen)
    return Finding(
        "temperature", "warn", seen, "let it cool down, and look at the fan: figures will be those of a throttled box"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
