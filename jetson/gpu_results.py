"""The result of a run of `bench_gpu`: what every figure is of, written to the disk after every item.

What must stay true: gpu.json is whole at any moment; a run on anything but a GPU says so in the card's name.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from edgellm.engine.device.gpu import read_gpu
from edgellm.jetson.gpu_phases import Record
from edgellm.jetson.gpu_report import markdown
from edgellm.jetson.gpu_sanitizer import Sanitized
from edgellm.jetson.gpu_scale import TARGET

_CLOCKS: Final = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
_WRONG: Final = ("failed", "error")


class Results:
    """Collects records; `folder` gets gpu.json, and gpu.md at the end.

    Raises:
        ConfigError: there is no driver.
        ExecutionError: there is no GPU.
    """

    def __init__(self, folder: Path, binaries: str, command: str, driver: Any = None) -> None:
        self._folder = folder
        self.value: dict[str, Any] = {
            "gpu": asdict(read_gpu(driver)),
            "machine": _machine(),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "edgellm": _version(),
            "command": command,
            "binaries": binaries,
            "clocks": {},
            "target": TARGET,
            "parity": [],
            "copy": [],
            "bandwidth": [],
            "graphs": [],
            "sanitizer": [],
            "skipped": [],
            "errors": [],
            "seconds": 0.0,
            "finished": False,
        }
        self.read_clocks("before")

    def headline(self) -> str:
        """What is measured, in one line."""
        gpu = self.value["gpu"]
        return f"{gpu['name']}, CUDA {gpu['cuda_driver']}, {self.value['machine']['summary']}; {self.value['date']}"

    def add(self, part: str, record: Record) -> None:
        """Keep the result of an item."""
        if record.status == "skipped":
            self.skip(f"{record.label}: {record.detail}")
            return
        if part == "parity" and record.value:
            self.value["parity"].append(record.value)
        elif record.status in _WRONG:
            self.value["errors"].append(f"{part}: {record.label}: {record.detail}")
        elif part == "graph":
            self.value["graphs"] = record.value["graphs"]
        elif "rates" in record.value:
            self.value["copy"] = record.value["rates"]
        else:
            self.value["bandwidth"].append(record.value)
        self._write()

    def sanitized(self, one: Sanitized) -> None:
        """Keep what compute-sanitizer said."""
        self.value["sanitizer"].append(asdict(one))
        self._write()

    def skip(self, reason: str) -> None:
        """Say what was not run."""
        self.value["skipped"].append(reason)
        self._write()

    def read_clocks(self, moment: str) -> None:
        """Ask nvidia-smi, while the clocks are still those of the work."""
        query = f"--query-gpu={','.join(_CLOCKS)}"
        try:
            command = ["nvidia-smi", query, "--format=csv,noheader"]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            answer = ""
        cells = [cell.strip() for cell in answer.splitlines()[0].split(",")] if answer else []
        self.value["clocks"][moment] = dict(zip(_CLOCKS, cells, strict=False))
        self._write()

    def finish(self, seconds: float) -> None:
        """Write both files."""
        self.value |= {"seconds": round(seconds, 1), "finished": True}
        self._write()
        (self._folder / "gpu.md").write_text(markdown(self.value), encoding="utf-8")

    def failed(self, asked: Sequence[str]) -> bool:
        """Whether something is wrong: a kernel, a run, the sanitizer's finding, or parity without one comparison."""
        found: list[Mapping[str, Any]] = [*self.value["parity"], *self.value["sanitizer"]]
        nothing = "parity" in asked and not self.value["parity"]
        return nothing or bool(self.value["errors"]) or any(one["status"] in _WRONG for one in found)

    def summary(self) -> str:
        """For the end of the output: what is wrong, what missed its target, what was not run."""
        value = self.value
        wrong = [one for one in value["parity"] if one["status"] in _WRONG]
        missed = [
            f"{one['name']}, {one['detail']}: {one['ratio']['median']:.0%} of the copy's rate"
            for one in value["bandwidth"]
            if one["target"] is not None and one["ratio"]["median"] < one["target"]
        ]
        lines = []
        if value["parity"]:
            lines.append(f"parity: {len(value['parity']) - len(wrong)} of {len(value['parity'])} cases are right")
        lines += [f"  wrong: {one['kernel']}, {one['shape']} {one['io']}, {one['detail']}" for one in wrong]
        lines += [f"below {TARGET:.0%}: {one}" for one in missed]
        lines += [f"error: {one}" for one in value["errors"]]
        return "\n".join([*lines, *(f"not run: {one}" for one in value["skipped"])])

    def _write(self) -> None:
        target = self._folder / "gpu.json"
        scratch = target.with_suffix(".part")
        scratch.write_text(json.dumps(self.value, indent=1), encoding="utf-8")
        scratch.replace(target)


def _machine() -> dict[str, Any]:
    """`Machine.to_dict`; a summary alone where the packages that read it are missing."""
    try:
        from edgellm.jetson.machine import read_machine
    except ImportError as error:
        return {"summary": f"not read: {error}", "gpu": None}
    return read_machine().to_dict()


def _version() -> str:
    """Of the library; a source tree that was never installed does not know it."""
    try:
        return importlib.metadata.version("edgellm")
    except importlib.metadata.PackageNotFoundError:
        return "from a source tree"
