"""The server seen by real clients: the harness's bytes and parsing, and curl."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgellm.mlperf.client import AnswerError, HarnessClient
from edgellm.mlperf.trace import bfcl_request, load_trace, turn_requests
from edgellm.server.run import ready_text
from edgellm.server.settings import ServerSettings

CALL = "<tool_call>\n<function=bash>\n<parameter=command>\nls -la\n</parameter>\n</function>\n</tool_call>"
BASH = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
}


def test_recorded_turns_are_all_served(start: Any, script: Any, shared_dir: Path) -> None:
    """The first conversation's turns that fit the test's context, as the harness sends them."""
    running = start(script(reply=CALL), context=65536)
    conversation = load_trace(shared_dir / "data" / "agentic_coding_2.5h.jsonl")[0]
    with HarnessClient(f"http://127.0.0.1:{running.port}") as client:
        for body in turn_requests(conversation, model="tiny")[:12]:
            answer = client.chat(body, session_id=conversation.id)
            assert answer.warnings == ()
            assert not answer.truncated
            assert not answer.empty
            assert answer.finish_reason == "tool_calls"
            assert answer.ttft_s is not None
            assert json.loads(answer.tool_calls[0]["function"]["arguments"]) == {"command": "ls -la"}
            assert answer.usage is None
    assert all(request.sampling.seed == 42 for request in running.script.requests)
    assert all(request.sampling.max_tokens == 1024 for request in running.script.requests)


def test_function_calling_samples_are_served(start: Any, script: Any, shared_dir: Path) -> None:
    running = start(script(reply="No suitable function."), context=65536)
    lines = (shared_dir / "data" / "bfcl_calib.jsonl").read_text(encoding="utf-8").split("\n")[:12]
    with HarnessClient(f"http://127.0.0.1:{running.port}/") as client:
        for record in map(json.loads, lines):
            answer = client.chat(bfcl_request(record["messages"], record["tools"], model="tiny"))
            assert (answer.content, answer.warnings) == ("No suitable function.", ())


def test_the_harness_client_reports_failures(start: Any, script: Any) -> None:
    running = start(script(reply="one two three " * 20, decode_step_s=0.01, fail_in=30))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with HarnessClient(f"http://127.0.0.1:{running.port}") as client:
        answer = client.chat(body)
        assert answer.truncated
        running.script.fail_in = 1
        with pytest.raises(AnswerError) as caught:
            client.chat(body)
        assert caught.value.status == 500
        running.script.fail_in = None
        running.script.reply = "one two three"
        assert client.chat(body).content == "one two three"
        whole = client.chat({**body, "stream": False})
        assert (whole.content, whole.finish_reason) == ("one two three", "stop")
        assert client.chat({**body, "stream_options": {"include_usage": True}}).usage is not None


def test_the_printed_curl_command_works(running: Any) -> None:
    command = ready_text(ServerSettings(model="tiny"), running.port).split("try: ", 1)[1]
    done = subprocess.run(
        [*shlex.split(command), "-s", "--noproxy", "*"], capture_output=True, check=False, env={**os.environ}
    )
    if done.returncode == 127:
        pytest.skip("curl is not installed")
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "Hello there."
