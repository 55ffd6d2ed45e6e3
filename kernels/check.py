"""`python -m edgellm.kernels.check`: what the 27B model needs of a device, against what it grants.

Neither a GPU nor its driver is needed. What must stay true: a kernel that passes fits the registers, loads on JetPack 7
as PTX, and, when TensorRT launches it, needs no more shared memory than TensorRT can ask for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from edgellm.errors import EdgeLLMError
from edgellm.kernels.catalog import DEVICE_PROFILES, Profile
from edgellm.kernels.nvrtc import JETPACK_PTX, Compiled, CompileError, compile_kernel

ARCHITECTURES: Final = ("sm_110a", "sm_100a", "sm_90a")  # Thor, and the data-center GPUs nearest to it
PLUGIN_SHARED: Final = 48 * 1024  # what a launch gets without asking; TensorRT does not ask
REGISTERS: Final = 65536  # of a multiprocessor, so of a block too


@dataclass(frozen=True, slots=True)
class Checked:
    """A kernel of a profile, compiled."""

    profile: Profile
    arch: str
    compiled: Compiled

    @property
    def violations(self) -> tuple[str, ...]:
        """What a device would not grant."""
        kernel, made = self.profile.kernel, self.compiled
        expected = len(kernel.pointers)
        registers = kernel.threads(self.profile.sizes) * -(-made.registers // 8) * 8
        findings = (
            (made.spills > 0, f"{made.spills} bytes of registers spilled"),
            (registers > REGISTERS, f"a block needs {registers} registers"),
            (kernel.plugin and made.shared > PLUGIN_SHARED, f"{made.shared} bytes of shared memory in a plugin"),
            (made.ptx != JETPACK_PTX, f"PTX {_dotted(made.ptx)}, not {_dotted(JETPACK_PTX)}"),
            (made.parameters != expected, f"{made.parameters} parameters, described are {expected}"),
        )
        return tuple(text for found, text in findings if found)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        made = self.compiled
        return {
            "kernel": self.profile.kernel.name,
            "part": self.profile.part,
            "arch": self.arch,
            "registers": made.registers,
            "spills": made.spills,
            "shared": made.shared,
            "ptx": _dotted(made.ptx),
            "parameters": made.parameters,
            "violations": list(self.violations),
        }


def check(profile: Profile, arch: str) -> Checked:
    """Compile one kernel; errors are those of `compile_kernel`."""
    return Checked(profile, arch, compile_kernel(profile.kernel, profile.sizes, arch))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or with --json an array; 1 when something is violated."""
    parser = argparse.ArgumentParser(prog="python -m edgellm.kernels.check", description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES, help="real architectures")
    parser.add_argument("--json", action="store_true", help="an array instead of a table")
    options = parser.parse_args(arguments)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            pairs = [(profile, arch) for profile in DEVICE_PROFILES for arch in options.arch]
            checked = list(pool.map(lambda pair: check(*pair), pairs))
    except (EdgeLLMError, CompileError) as error:
        print(error, file=sys.stderr)
        return 1
    rows = [one.as_dict() for one in checked]
    print(json.dumps(rows, indent=1) if options.json else _table(rows))
    return 1 if any(one.violations for one in checked) else 0


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [list(rows[0]), *([*map(str, list(row.values())[:-1]), "; ".join(row["violations"])] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


if __name__ == "__main__":
    sys.exit(main())
