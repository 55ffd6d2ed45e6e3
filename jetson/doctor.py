"""`edgellm doctor`: what this machine is, what edgellm would use of it, and what to do about what is missing.

What must stay true: a finding says what was seen; when it is not ok it also says what to do; nothing that is absent
makes the doctor fail itself.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from edgellm.errors import EdgeLLMError
from edgellm.jetson.device_checks import device_findings, power_findings
from edgellm.jetson.findings import Finding
from edgellm.jetson.host import Host
from edgellm.jetson.machine import Machine, read_machine

_PACKAGES = (("onnxruntime", "the CPU executor"), ("onnx", "building bundles"), ("tokenizers", "text"))


def examine(bundle: Path | None = None, host: Host | None = None) -> list[Finding]:
    """Check Python, packages, the machine, its device and, when given, a bundle.

    Args:
        host: the machine to look at; None: this one.
    """
    host = host or Host()
    machine = read_machine(host)
    findings = [_python(), *_packages(host), _machine(machine), _cores(machine), *_memory(machine), _disk()]
    findings += [*device_findings(machine, host), *power_findings(machine)]
    if bundle is not None:
        findings.append(_bundle(bundle, machine))
    return findings


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}")


def _packages(host: Host) -> list[Finding]:
    return [
        Finding(name, "ok", version)
        if (version := host.package(name))
        else Finding(name, "fail", f"missing: needed for {need}", "reinstall edgellm")
        for name, need in _PACKAGES
    ]


def _machine(machine: Machine) -> Finding:
    names = [name for name in (machine.model, machine.processor) if name]
    kind = "a Jetson" if machine.is_jetson else "no Jetson"
    return Finding("machine", "info", f"{', '.join(names) or 'it does not say its name'} ({kind})")


def _cores(machine: Machine) -> Finding:
    seen = f"{machine.cores} usable"
    if machine.cores > 1:
        return Finding("cores", "ok", seen)
    return Finding("cores", "warn", seen, "give the process more: the engine and the server run at the same time")


def _memory(machine: Machine) -> list[Finding]:
    memory = machine.memory
    seen = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available (MemAvailable)"
    found = [
        Finding("memory", "ok", seen)
        if memory.available > 4 << 30
        else Finding("memory", "warn", seen, "stop other programs; `edgellm plan` says what a model needs")
    ]
    if memory.swap and machine.gpu is not None:
        found.append(
            Finding(
                "swap",
                "info",
                f"{memory.swap / 2**30:.1f} GiB: it does not back memory that CUDA holds",
                "count on the memory alone",
            )
        )
    return found


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    seen = f"{free / 2**30:.0f} GiB free here"
    if free > 10 << 30:
        return Finding("disk", "ok", seen)
    return Finding("disk", "warn", seen, "a checkpoint of 27 B and its bundle take tens of GB: use another disk")


def _bundle(path: Path, machine: Machine) -> Finding:
    from edgellm.engine.bundle import Bundle

    if not path.is_dir():
        return Finding("bundle", "fail", f"{path} is no folder", "give the folder that `edgellm build` wrote")
    try:
        bundle = Bundle.open(path, verify="full")
    except EdgeLLMError as error:
        return Finding("bundle", "fail", str(error), "see `edgellm build`, where the message does not say what to do")
    needed, available = sum(entry.bytes for entry in bundle.manifest.files), machine.memory.available
    if needed > available:
        seen = f"needs {needed} bytes for its files alone, {available} are available"
        return Finding("bundle", "fail", seen, "stop other programs, or build in a smaller precision")
    return Finding("bundle", "ok", f"{path}: all hashes match, {needed / 2**20:.0f} MiB, {bundle.manifest.target}")
