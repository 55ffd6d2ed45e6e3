"""`python -m edgellm.jetson.bench_thor CHECKPOINT`: everything that is measured on a Jetson AGX Thor, step by step.

Each step is a command of its own with a time limit. What it printed, how long it took, and the power mode, clocks and
temperatures before and after it are kept in thor.json whether or not it succeeded, and thor.md shows them. Started
again with the same --out it keeps the steps that succeeded and runs the others. What must stay true: no step's failure
loses another step's result, and a step that was not run says why.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from edgellm.errors import ConfigError, EdgeLLMError
from edgellm.jetson.gpu_report import table
from edgellm.jetson.machine import Machine, read_machine

RECIPE: Final = "qwen3.6-27b-nvfp4-thor"
_CONVERSATIONS: Final = 3
_KILLED_AFTER: Final = 10.0  # seconds between asking a step to end and ending it
_TAIL: Final = 2000  # characters of a failed step's messages that are kept


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        minutes: that it may take.
        needs: steps that must have succeeded.
        skip: why it is not run; None: it is.
        as_json: whether its output's last line is a JSON object, which is kept.
    """

    name: str
    command: tuple[str, ...]
    minutes: float
    needs: tuple[str, ...] = ()
    skip: str | None = None
    as_json: bool = True


def thor_steps(checkpoint: str, out: Path, bundle: Path, recipe: str, trace: Path | None) -> list[Step]:
    """All steps, in order."""
    edgellm = (sys.executable, "-m", "edgellm.cli")
    bench = (sys.executable, "-m", "edgellm.bench.steps")
    built = ("build",)
    build = (*edgellm, "build", checkpoint, "--target", "tensorrt", "--recipe", recipe, "-o", str(bundle), "--force")
    kernels = (sys.executable, "-m", "edgellm.jetson.bench_gpu", "--quick", "--minutes", "15")
    replay = (*edgellm, "replay", str(bundle), "--trace", str(trace), "--conversations", str(_CONVERSATIONS), "--json")
    without = None if trace else "no --trace: the recorded conversations are not part of this repository"
    mlperf = "edgellm has no command for the MLPerf run yet"
    return [
        Step("doctor", (*edgellm, "doctor", "--json"), 5),
        Step("build", (*build, "--no-self-check"), 180, as_json=False),
        Step("self-check", (*bench, "self-check", checkpoint, str(bundle)), 120, built),
        Step("kernels", (*kernels, "--out", str(out / "kernels")), 20, as_json=False),
        Step("timings", (*bench, "timings", str(bundle)), 60, built),
        Step("restore", (*bench, "restore", str(bundle)), 30, built),
        Step("replay", replay, 180, built, skip=without),
        Step("mlperf", (), 0, built, skip=mlperf),
    ]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a step. `status`: "ok", "failed" (its exit status), "stopped" (by its limit) or "skipped"."""

    name: str
    status: str
    detail: str
    seconds: float
    command: str
    result: dict[str, Any] | list[Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def run_steps(
    steps: Sequence[Step],
    out: Path,
    subject: dict[str, str],
    *,
    machine: Callable[[], Machine] = read_machine,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run what has not succeeded yet; returns what thor.json holds.

    Args:
        subject: what is measured; a folder with results of something else is refused.

    Raises:
        ConfigError: `out` holds results of something else.
    """
    out.mkdir(parents=True, exist_ok=True)
    kept = _kept(out / "thor.json", subject)
    found: dict[str, Any] = {"subject": subject, "machine": machine().to_dict(), "steps": kept}
    for step in steps:
        if kept.get(step.name, {}).get("status") == "ok":
            tell(f"{step.name}: kept from an earlier run")
            continue
        missing = [name for name in step.needs if kept.get(name, {}).get("status") != "ok"]
        reason = step.skip or (f"{', '.join(missing)} did not succeed" if missing else None)
        if reason is None:
            tell(f"{step.name}: {shlex.join(step.command)}")
            done = _run(step, out, machine)
        else:
            done = Done(step.name, "skipped", reason, 0.0, shlex.join(step.command), None, None, None)
        kept[step.name] = asdict(done)
        tell(f"{step.name}: {done.status} after {done.seconds:.0f} s{f': {done.detail}' if done.detail else ''}")
        found["steps"] = {name: kept[name] for name in (one.name for one in steps) if name in kept}
        _write(out, found)
    _write(out, found)
    return found


def _kept(path: Path, subject: dict[str, str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        known, steps = earlier["subject"], dict(earlier["steps"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a result of bench_thor: {error}") from error
    if known != subject:
        raise ConfigError(f"{path} holds results of {known}, not of {subject}: choose another --out")
    return steps


def _run(step: Step, out: Path, machine: Callable[[], Machine]) -> Done:
    logs = out / "logs"
    logs.mkdir(exist_ok=True)
    printed, messages = logs / f"{step.name}.out", logs / f"{step.name}.err"
    before, began = machine(), time.monotonic()
    with printed.open("wb") as stdout, messages.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                step.command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except OSError as error:
            return Done(step.name, "failed", str(error), 0.0, shlex.join(step.command), None, _state(before), None)
        stopped = _wait(process, 60 * step.minutes)
    seconds = round(time.monotonic() - began, 1)
    status, detail = "ok", ""
    if stopped:
        status, detail = "stopped", f"its limit is {step.minutes:g} minutes"
    elif process.returncode:
        said = messages.read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
        status, detail = "failed", f"status {process.returncode}{f': {said}' if said else ''}"
    result = _last_object(printed) if step.as_json else None
    if step.as_json and result is None and status == "ok":
        status, detail = "failed", "it printed no JSON"
    return Done(step.name, status, detail, seconds, shlex.join(step.command), result, _state(before), _state(machine()))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process, and all that it started, had to be stopped."""
    try:
        process.wait(seconds)
    except BaseException as error:
        for way in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, way)
                process.wait(_KILLED_AFTER)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                process.wait()
                break
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return True
    return False


def _last_object(path: Path) -> dict[str, Any] | list[Any] | None:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


def _state(machine: Machine) -> dict[str, Any]:
    """What a figure depends on and a step may change."""
    return {**asdict(machine.power), "memory_available": machine.memory.available}


def _write(out: Path, found: dict[str, Any]) -> None:
    for name, text in (("thor.json", json.dumps(found, indent=1)), ("thor.md", markdown(found))):
        scratch = out / f"{name}.part"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(out / name)


def markdown(found: dict[str, Any]) -> str:
    """The steps, and the figures of those that measured something."""
    subject = ", ".join(f"{name} {value}" for name, value in found["subject"].items())
    lines = ["# bench_thor", "", f"- machine: {found['machine']['summary']}", f"- {subject}", ""]
    rows = []
    for one in found["steps"].values():
        states = [_shown(one[moment]) for moment in ("before", "after")]
        detail = " ".join(one["detail"].split())[:200]
        rows.append([one["name"], one["status"], f"{one['seconds'] / 60:.1f}", *states, detail])
    lines += table(["step", "status", "minutes", "before", "after", "detail"], rows)
    for name in ("timings", "restore"):
        result = (found["steps"].get(name) or {}).get("result")
        if result:
            heads = list(result["depths"][0])
            depths = [[str(row[head]) for head in heads] for row in result["depths"]]
            lines += ["", f"## {name}", "", *table(heads, depths)]
    for name in ("self-check", "replay"):
        result = (found["steps"].get(name) or {}).get("result")
        if result:
            plain = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
            lines += ["", f"## {name}", "", *table(["figure", "value"], [[k, str(v)] for k, v in plain.items()])]
    return "\n".join(lines) + "\n"


def _shown(state: dict[str, Any] | None) -> str:
    if state is None:
        return ""
    clocks = [f"{clock['name']} {clock['mhz']:.0f} MHz" for clock in state["clocks"]]
    hottest = max(state["temperatures"].values(), default=None)
    pieces = [state["mode"], *clocks, None if hottest is None else f"{hottest:.0f} °C"]
    throttled = [f"throttled: {name} {value}" for name, value in state["throttling"].items()]
    return ", ".join(piece for piece in (*pieces, *throttled) if piece)


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 1: a step failed or was stopped."""
    first = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m edgellm.jetson.bench_thor", description=first)
    parser.add_argument("checkpoint", help="folder, or a Hugging Face repository id")
    parser.add_argument("--out", type=Path, default=Path("thor-results"), help="folder for results and logs")
    parser.add_argument("--bundle", type=Path, help="folder to build into (default: in --out)")
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--trace", type=Path, help="recorded conversations, for the replay")
    options = parser.parse_args(arguments)
    bundle = options.bundle or options.out / "thor.bundle"
    steps = thor_steps(options.checkpoint, options.out, bundle, options.recipe, options.trace)
    subject = {"checkpoint": options.checkpoint, "recipe": options.recipe, "bundle": str(bundle)}
    try:
        found = run_steps(steps, options.out, subject)
    except EdgeLLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {options.out / 'thor.json'} and {options.out / 'thor.md'}")
    return 1 if any(one["status"] in ("failed", "stopped") for one in found["steps"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
