"""`edgellm serve` as a process of its own: its options, its log and how it stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Run

from edgellm.errors import ConfigError

HI = [{"role": "user", "content": "confidential"}]


def test_a_served_bundle_stops_cleanly_on_sigterm(bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from-file\n", encoding="utf-8")
    options = ["--port", 0, "--threads", 1, "--alias", "other", "--alias", "third", "--api-key", "from-flag"]
    options += ["--api-key", "second-flag", "--api-key-file", keys, "--log-format", "json"]
    options += ["--cache-dir", tmp_path / "cache", "--shutdown-grace", 20]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgellm.cli", "serve", str(bundle), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EDGELLM_API_KEYS": "from-env,another"},
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("edgellm is ready: http://127.0.0.1:"), (ready, process.poll())
        url = ready.split()[3].removesuffix("/v1")
        for key in ("from-flag", "second-flag", "from-file", "from-env", "another"):
            models = httpx.get(f"{url}/v1/models", headers={"x-api-key": key}).json()["data"]
            assert [card["id"] for card in models] == ["tiny", "other", "third"]
        assert httpx.get(f"{url}/v1/models").status_code == 401
        body: dict[str, Any] = {"model": "other", "messages": HI, "max_tokens": 4, "ignore_eos": True}
        headers = {"Authorization": "Bearer from-env", "x-request-id": "mine"}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    entries = [json.loads(line) for line in log.splitlines()]
    (entry,) = [entry for entry in entries if entry.get("request_id") == "mine"]
    assert (entry["path"], entry["status"], entry["completion"]) == ("/v1/chat/completions", 200, 4)
    for secret in ("confidential", "from-flag", "from-file", "from-env"):
        assert secret not in out + log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--api-key", ""), "api_keys"),
        (("--api-key-file", "missing"), "api_key_file"),
        (("--tls-cert", "missing.pem"), "tls_key"),
        (("--cors-origin", "example.com"), "cors_origins"),
        (("--log-format", "xml"), "log_format"),
        (("--port", 70000), "port"),
        (("--alias", ""), "model name"),
        (("--sampling", "greedy"), "sampling"),
    ],
)
def test_wrong_options_are_named_before_the_model_is_opened(run: Run, options: tuple[str, ...], words: str) -> None:
    result = run("serve", "missing.bundle", *options)
    assert isinstance(result.exception, ConfigError), result.exception
    assert words in str(result.exception)


@pytest.mark.parametrize(("option", "temperature", "top_k"), [("model", 0.7, 20), ("openai", 1.0, 0)])
def test_requests_that_are_silent_follow_the_checkpoint(
    run: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, temperature: float, top_k: int
) -> None:
    served: list[Any] = []
    monkeypatch.setattr("edgellm.server.run.run_server", lambda _, settings: served.append(settings.sampling))
    copy = shutil.copytree(bundle, tmp_path / "copy.bundle")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"sampling": {"temperature": 0.7, "top_k": 20}}))
    result = run("serve", copy, "--sampling", option)
    assert result.exit_code == 0, result.exception
    (sampling,) = served
    assert (sampling.temperature, sampling.top_k) == (temperature, top_k)
