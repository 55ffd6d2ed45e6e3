"""What each command prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

from edgellm.checkpoint.reader import Checkpoint
from edgellm.errors import BundleError, ConfigError


def generated(run: Run, *args: object) -> dict[str, Any]:
    result = run("generate", *args, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_generate_prints_the_tokens_whatever_the_speculation_and_the_cache(run: Run, bundle: Path) -> None:
    plain = generated(run, bundle, "Hello", "--max-tokens", 12, "--ignore-eos", "--no-speculation", "--no-cache")
    assert len(plain["token_ids"]) == 12
    assert plain["finish_reason"] == "length"
    assert plain["usage"]["completion_tokens"] == 12
    fast = generated(run, bundle, "Hello", "--max-tokens", 12, "--ignore-eos")
    assert (fast["token_ids"], fast["text"]) == (plain["token_ids"], plain["text"])


def test_generate_is_repeatable_with_a_seed(run: Run, bundle: Path) -> None:
    args = (bundle, "Hello", "--raw", "--max-tokens", 8, "--temperature", 1.0, "--seed", 5, "--ignore-eos")
    assert generated(run, *args)["token_ids"] == generated(run, *args)["token_ids"]


def test_generate_prints_text_for_people(run: Run, bundle: Path) -> None:
    result = run("generate", bundle, "Hello", "--max-tokens", 4, "--ignore-eos")
    assert result.exit_code == 0
    assert "completion_tokens" in result.stderr
    assert "completion_tokens" not in result.stdout


def test_bench_prints_the_promised_figures(run: Run, bundle: Path) -> None:
    result = run("bench", bundle, "--depth", 256, "--rounds", 3, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    wanted = (
        "decode_tokens_per_s",
        "decode_bandwidth_fraction",
        "prefill_tokens_per_s",
        "tree_over_chain",
        "host_overhead_ms_per_step",
        "memory_bandwidth_gb_s",
        "restore_ms",
    )
    assert all(figures[name] > 0 for name in wanted), figures


def test_replay_counts_what_was_prefilled(run: Run, bundle: Path, tmp_path: Path) -> None:
    def row(turn: int, **rest: object) -> str:
        return json.dumps({"conversation_id": "one", "turn": turn, **rest})

    rows = [
        row(1, role="user", content="List the files, please."),
        row(2, role="assistant", content="There are two."),
        row(3, role="user", content="And now?"),
        row(4, role="assistant", content="Three."),
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(rows), encoding="utf-8")
    result = run("replay", bundle, "--trace", trace, "--max-tokens", 2, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["turns"]) == 2
    total = report["total"]
    assert total["prompt_tokens"] == total["cached_tokens"] + total["prefilled_tokens"]
    assert total["cached_tokens"] > 0


def test_doctor_finds_the_bundle_good(run: Run, bundle: Path) -> None:
    result = run("doctor", bundle, "--json")
    assert result.exit_code == 0, result.output
    assert all(finding["status"] != "fail" for finding in json.loads(result.stdout))


@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        (("generate", "missing.bundle", "x"), BundleError, "missing.bundle"),
        (("serve", "missing.bundle"), BundleError, "missing.bundle"),
        (("build", "./missing", "--out", "x.bundle"), ConfigError, "missing"),
        (("bench", "--preset", "huge"), ConfigError, "huge"),
        (("make-checkpoint", "x", "--preset", "huge"), ConfigError, "huge"),
        (("replay", "http://127.0.0.1:9", "--trace", "missing.jsonl"), ConfigError, "missing.jsonl"),
    ],
)
def test_wrong_input_is_named(
    run: Run, args: tuple[str, ...], kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert isinstance(result.exception, kind), result.exception
    assert words in str(result.exception)
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_an_existing_bundle_is_kept_without_force(run: Run, checkpoint: Path, bundle: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in bundle.iterdir())
    result = run("build", checkpoint, "--out", bundle)
    assert isinstance(result.exception, ConfigError)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in bundle.iterdir()) == before


def test_an_error_is_one_line_and_status_1(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "edgellm.cli", "generate", str(tmp_path / "no.bundle"), "x"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_what_the_machine_refuses_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    out = str(tmp_path / "a file" / "out")
    call = [sys.executable, "-m", "edgellm.cli", "quantize", str(checkpoint), "-o", out]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.strip()] == [f"error: {out}: Not a directory"]


def test_bundles_that_cannot_be_compared(run: Run, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one two three")
    assert run("make-checkpoint", tmp_path / "other", "--preset", "parity-grouped", "--layers", "4").exit_code == 0
    assert run("build", tmp_path / "other", "-o", tmp_path / "other.bundle").exit_code == 0
    against = run("eval", "kl", bundle, "--against", tmp_path / "other.bundle", "--data", tmp_path / "data.txt")
    assert "the bundles have different tokenizers" in str(against.exception)
    short = run("eval", "ppl", bundle, "--data", tmp_path / "data.txt", "--generate", "3")
    assert "--generate must be 0 or at least 8" in str(short.exception)


def test_quantize_build_and_eval(run: Run, checkpoint: Path, bundle: Path, tmp_path: Path) -> None:
    assert run("quantize", checkpoint, "-o", tmp_path / "nvfp4", "--recipe", "nvfp4-all").exit_code == 0
    again = run("quantize", checkpoint, "-o", tmp_path / "nvfp4")
    assert isinstance(again.exception, ConfigError)
    quantized = tmp_path / "nvfp4.bundle"
    assert run("build", tmp_path / "nvfp4", "-o", quantized, "--recipe", "cpu-nvfp4").exit_code == 0
    built = run("build", tmp_path / "nvfp4", "-o", tmp_path / "default.bundle")
    assert "recipe cpu-nvfp4; peak memory 0." in " ".join(built.stderr.split())
    (tmp_path / "data.jsonl").write_text(
        '{"text": "one two three four"}\n{"messages": [{"role": "user", "content": "x"}]}'
    )
    found = json.loads(
        run("eval", "kl", quantized, "--against", bundle, "--data", tmp_path / "data.jsonl", "--json").stdout
    )
    assert found["texts"] == 2
    assert 0 < found["kl"] < 1
    alone = json.loads(run("eval", "ppl", quantized, "--data", tmp_path / "data.jsonl", "--json").stdout)
    assert alone == {name: found[name] for name in ("texts", "tokens", "perplexity", "accepted_length")}
    assert found["reference_accepted_length"] > 1
    calibrated = ("quantize", checkpoint, "-o", tmp_path / "w4a4", "--calib", tmp_path / "data.jsonl", "--feedback")
    assert "of outputs" in run(*calibrated).stdout
    assert Checkpoint.open(tmp_path / "w4a4").kv_scales
    theirs = run("quantize", checkpoint, "-o", tmp_path / "theirs", "--recipe", "modelopt", "--weight-only")
    assert "takes none of --only" in str(theirs.exception)
