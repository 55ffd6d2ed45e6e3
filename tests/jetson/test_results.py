"""Every result of a measurement says what machine it is of."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, edgellm
from rich.console import Console

from edgellm.bench.report import print_table


@pytest.fixture(scope="module")
def run() -> Run:
    return edgellm


@pytest.fixture(scope="module")
def bundle(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    assert run("make-checkpoint", folder / "tiny").exit_code == 0
    assert run("build", folder / "tiny", "--out", folder / "tiny.bundle").exit_code == 0
    return folder / "tiny.bundle"


def check(machine: dict[str, Any]) -> None:
    assert machine["cores"] >= 1
    assert machine["memory"]["total"] > 0
    assert machine["summary"]
    assert {"model", "l4t", "jetpack", "gpu", "tools", "power"} <= machine.keys()
    assert {"mode", "clocks", "temperatures", "throttling"} <= machine["power"].keys()


def test_bench(run: Run, bundle: Path) -> None:
    result = run("bench", bundle, "--depth", 128, "--rounds", 3, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    check(figures["machine"])
    shown = StringIO()
    print_table(figures, Console(file=shown, width=300))
    assert figures["machine"]["summary"] in shown.getvalue()


def test_replay(run: Run, bundle: Path, tmp_path: Path) -> None:
    rows = [
        {"conversation_id": "one", "turn": 1, "role": "user", "content": "List the files."},
        {"conversation_id": "one", "turn": 2, "role": "assistant", "content": "There are two."},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    result = run("replay", bundle, "--trace", trace, "--max-tokens", 2, "--json")
    assert result.exit_code == 0, result.output
    machine = json.loads(result.stdout)["machine"]
    check(machine)
    assert machine["role"] == "engine"
