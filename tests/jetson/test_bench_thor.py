"""`bench_thor` with commands of a shell in place of a Thor's."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgellm.bench import steps as bench_steps
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import ConfigError
from edgellm.jetson import bench_thor
from edgellm.jetson.bench_thor import Step, run_steps, thor_steps
from edgellm.jetson.machine import read_machine

SUBJECT = {"checkpoint": "a"}


def shell(name: str, text: str, **how: Any) -> Step:
    return Step(name, ("sh", "-c", text), how.pop("minutes", 1), **how)


def run(steps: list[Step], out: Path) -> dict[str, Any]:
    return run_steps(steps, out, SUBJECT, tell=lambda _: None)["steps"]


def test_every_result_is_kept_whatever_fails(tmp_path: Path) -> None:
    steps = [
        shell("first", "echo noise; echo '{\"a\": 1}'"),
        shell("second", "echo '{\"b\": 2}'; echo broken >&2; exit 3"),
        shell("third", "true", needs=("second",)),
        shell("fourth", "echo no json"),
        Step("fifth", (str(tmp_path / "missing"),), 1),
        shell("sixth", "true", as_json=False),
        Step("seventh", (), 0, skip="not built yet"),
    ]
    found = run(steps, tmp_path)
    assert [found[step.name]["status"] for step in steps] == [
        "ok",
        "failed",
        "skipped",
        "failed",
        "failed",
        "ok",
        "skipped",
    ]
    assert found["first"]["result"] == {"a": 1}
    assert found["second"]["result"] == {"b": 2}
    assert found["second"]["detail"] == "status 3: broken"
    assert found["third"]["detail"] == "second did not succeed"
    assert found["first"]["before"].keys() == found["first"]["after"].keys()
    assert {"mode", "clocks", "temperatures", "throttling", "memory_available"} == found["first"]["after"].keys()
    assert json.loads((tmp_path / "thor.json").read_text())["steps"] == json.loads(json.dumps(found))
    assert read_machine().summary() in (tmp_path / "thor.md").read_text()
    assert (tmp_path / "logs" / "second.err").read_text() == "broken\n"


def test_a_second_run_goes_on_with_what_did_not_succeed(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    steps = [shell("good", f"echo x >> {counter}; echo '[]'"), shell("late", f"echo '{{}}'; test -e {tmp_path / 'go'}")]
    assert run(steps, tmp_path / "out")["late"]["status"] == "failed"
    (tmp_path / "go").touch()
    assert run(steps, tmp_path / "out")["late"]["status"] == "ok"
    assert counter.read_text() == "x\n"
    with pytest.raises(ConfigError, match="holds results of"):
        run_steps(steps, tmp_path / "out", {"checkpoint": "b"}, tell=lambda _: None)


def test_a_step_and_what_it_started_end_at_its_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    text = f"(sleep 60; touch {tmp_path / 'late'}) & sleep 60"
    found = run([shell("slow", text, minutes=0.01), shell("next", "echo '{}'")], tmp_path)
    assert (found["slow"]["status"], found["next"]["status"]) == ("stopped", "ok")
    assert time.monotonic() - began < 30


def test_steps_name_commands_that_exist(tmp_path: Path) -> None:
    steps = {step.name: step for step in thor_steps("ckpt", tmp_path, tmp_path / "b", bench_thor.RECIPE, None)}
    assert steps["replay"].skip
    assert "--trace" in steps["replay"].command
    assert steps["mlperf"].skip
    assert {name for step in steps.values() for name in step.needs} <= steps.keys()
    with pytest.raises(SystemExit):
        bench_steps.main(["unknown"])


def test_the_command_ends_with_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_thor, "thor_steps", lambda *_: [shell("only", "exit 1")])
    assert bench_thor.main(["ckpt", "--out", str(tmp_path)]) == 1
    monkeypatch.setattr(bench_thor, "thor_steps", lambda *_: [shell("only", "echo '{}'")])
    assert bench_thor.main(["ckpt", "--out", str(tmp_path)]) == 0
    assert bench_thor.main(["other", "--out", str(tmp_path)]) == 1


def test_timings_of_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU executor, whose steps and measurements are the same calls."""
    from edgellm.checkpoint.reader import Checkpoint
    from edgellm.engine.builder import build_bundle
    from edgellm.engine.recipe import load_recipe

    source = Checkpoint.open(make_checkpoint("tiny", tmp_path / "ckpt"))
    bundle = str(build_bundle(source, tmp_path / "bundle", load_recipe("cpu-f32")))
    assert bench_steps.main(["timings", bundle, "--depths", "16", "64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in found["depths"]] == [16, 64]
    assert all(row["verify_16_ms"] > 0 and row["draft_ms"] > 0 for row in found["depths"])
    assert bench_steps.main(["restore", bundle, "--depths", "64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["depths"][0]["restore_ms"] > 0
    assert found["snapshot_bytes"] > 0
    assert found["machine"]["summary"]
    assert bench_steps.main(["timings", str(tmp_path)]) == 1
    assert "is not a bundle" in capsys.readouterr().err


def test_the_interpreter_of_the_steps_is_this_one(tmp_path: Path) -> None:
    steps = thor_steps("ckpt", tmp_path, tmp_path / "b", bench_thor.RECIPE, Path("trace"))
    assert {step.command[0] for step in steps if step.command} == {sys.executable}
