"""`edgellm plan`: what it prints, what it refuses, and what it takes for a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.cli import app
from edgellm.errors import CheckpointError, ConfigError
from edgellm.jetson.machine import Memory

Plan = Callable[..., Result]


@pytest.fixture
def plan() -> Plan:
    runner = CliRunner(env={"COLUMNS": "200"})
    return lambda *args: runner.invoke(app, ["plan", *map(str, args)])


def found(result: Result) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_the_default_is_the_27b_shape_on_thor(plan: Plan) -> None:
    result = plan("--json")
    assert result.exit_code == 0, result.output
    values = found(result)
    assert values["memory"]["fits"]
    assert values["memory"]["needed"] == sum(item["bytes"] for item in values["memory"]["items"])
    assert values["roofline"]["verify"]["ms_peak"] == pytest.approx(56.2, rel=0.03)
    assert values["roofline"]["steps"][0]["tokens_per_s"]["5"] == pytest.approx(67.3, rel=0.03)
    assert values["roofline"]["variants"]["nvfp4"] == values["roofline"]["verify"]


def test_tables_for_people(plan: Plan) -> None:
    result = plan()
    assert result.exit_code == 0
    for words in ("KV blocks", "estimate", "largest context", "L for 14.68 ms", "nothing here was measured"):
        assert words in result.stdout


def test_what_does_not_fit_is_shown_and_refused_with_the_bytes(plan: Plan) -> None:
    result = plan("--slots", 64, "--json")
    values = found(result)
    assert not values["memory"]["fits"]
    assert isinstance(result.exception, ConfigError)
    assert f"need {values['memory']['needed']} bytes" in str(result.exception)


def test_swap_is_not_counted(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        memory = Memory(total=32 << 30, available=16 << 30, swap=1 << 40)

    monkeypatch.setattr("edgellm.jetson.machine.read_machine", Small)
    result = plan("--device", "this", "--context", 4096, "--json")
    values = found(result)
    assert values["memory"]["memory"] == 16 << 30
    assert values["roofline"] is None
    assert "swap does not count" in str(result.exception)


def test_a_budget_in_bytes(plan: Plan) -> None:
    needed = found(plan("--context", 4096, "--json"))["memory"]["needed"]
    assert plan("--context", 4096, "--memory", needed, "--reserve", 0).exit_code == 0
    assert isinstance(plan("--context", 4096, "--memory", needed - 1, "--reserve", 0).exception, ConfigError)


def test_models_by_preset_config_file_and_folder_are_the_same(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["mid"].config))
    shapes = [found(plan(model, "--json"))["memory"] for model in ("mid", tmp_path / "config.json", tmp_path)]
    assert shapes[0] == shapes[1] == shapes[2]


def test_a_checkpoint_is_planned_as_it_is_stored(plan: Plan, tmp_path: Path) -> None:
    make_checkpoint("tiny", tmp_path / "made")
    stored = found(plan(tmp_path / "made", "--json"))
    assert stored["precision"]["mlp"] == 2.0  # bfloat16
    assert found(plan(tmp_path / "made", "--recipe", "nvfp4", "--json"))["precision"]["mlp"] == 0.5625
    assert found(plan("edge-tiny-nvfp4", "--json"))["precision"]["mlp"] == 0.5625


def test_a_recipe_gives_its_context_and_sizes(plan: Plan, tmp_path: Path) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text('precision = "int8"\ncontext = 2048\ntree_nodes = 4\nblock_tokens = 32\nprefill_chunk = 256\n')
    load = found(plan("tiny", "--recipe", recipe, "--json"))["memory"]["workload"]
    assert (load["context"], load["nodes"], load["block_tokens"], load["chunk"]) == (2048, 4, 32, 256)


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        (("missing",), ConfigError, "'missing' is no checkpoint folder"),
        (("--device", "nano"), ConfigError, "device: 'nano'"),
        (("--recipe", "int3"), ConfigError, "int3"),
        (("--context", 1 << 20), ConfigError, "context: 1048576"),
        (("broken.json",), CheckpointError, "broken.json"),
    ],
)
def test_wrong_input_is_named(
    plan: Plan, args: tuple[object, ...], kind: type[Exception], words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    result = plan(*args)
    assert isinstance(result.exception, kind), result.exception
    assert words in str(result.exception)
