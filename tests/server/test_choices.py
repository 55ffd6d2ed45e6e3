"""Several choices and prompts in one request: each is what it would be alone, and they share one fate."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from answers import BASH, call, events, merged, whole, without_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sockets import LONG, connect, read_until


def by_index(chunks: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Chunks of each choice; every chunk has exactly one."""
    found: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        found.setdefault(choice["index"], []).append(chunk)
    return found


def one_by_one(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole body as one body for each choice."""
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return [{**body, "choices": [choice]} for choice in body["choices"]]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_choice_is_the_answer_with_its_seed(tree: Any, data: st.DataObject) -> None:
    tree.script.reply = data.draw(
        st.sampled_from([f"Why.\n</think>\n\nOk {call('ls')}\n{call('pwd')}", "Hello é😀 there.", f"{call('ls')} x"])
    )
    n = data.draw(st.integers(1, 3))
    body = {
        "tools": [BASH],
        "enable_thinking": data.draw(st.booleans()),
        "max_tokens": data.draw(st.sampled_from([None, 7, 40])),
        "parallel_tool_calls": data.draw(st.booleans()),
        "temperature": data.draw(st.sampled_from([0, 2])),
        "logprobs": data.draw(st.booleans()),
        "seed": 5,
    }
    alone = [without_ids(whole(tree.post(**{**body, "seed": 5 + i}).json())) for i in range(n)]
    answer = tree.post(**body, n=n).json()
    assert [without_ids(whole(each)) for each in one_by_one(answer)] == alone
    streams = by_index(events(tree.post(**body, n=n, stream=True)))
    assert sorted(streams) == list(range(n))
    assert [without_ids(merged(streams[index])) for index in range(n)] == alone
    for chunks in streams.values():
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_calls_of_different_choices_have_different_ids(running: Any) -> None:
    running.script.reply = f"{call('ls')}\n{call('pwd')}"
    choices = running.post(n=3, tools=[BASH]).json()["choices"]
    ids = [made["id"] for choice in choices for made in choice["message"]["tool_calls"]]
    assert len(set(ids)) == len(ids) == 6


def test_choices_are_interleaved(start: Any, script: Any) -> None:
    running = start(script(reply="one two three four five six seven eight", decode_step_s=0.002), slots=4)
    chunks = events(running.post(n=4, stream=True))
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert len({chunk["id"] for chunk in chunks}) == 1
    changes = sum(a != b for a, b in pairwise(order))
    assert changes > 3, order


def test_usage_counts_the_prompt_once(running: Any) -> None:
    single = running.post(seed=3).json()["usage"]
    body = running.post(n=3, seed=3).json()
    usage = body["usage"]
    assert usage["prompt_tokens"] == single["prompt_tokens"]
    assert usage["completion_tokens"] == 3 * single["completion_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    options = {"include_usage": True}
    *_, last = events(running.post(n=3, seed=3, stream=True, stream_options=options))
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], usage["completion_tokens"])


def test_several_prompts(running: Any) -> None:
    ids = running.llm.tokenizer.encode("of ids", allow_special=True)
    alone = {}
    for prompt in ("One", "Two", ids):
        running.script.reply = "fixed"
        alone[str(prompt)] = running.post("/v1/completions", prompt=prompt, seed=4).json()
    body = {"n": 2, "best_of": 2, "seed": 4, "max_tokens": 9, "echo": True}
    answer = running.post("/v1/completions", prompt=["One", "Two"], **body).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["Onefixed", "Onefixed", "Twofixed", "Twofixed"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == sum(alone[p]["usage"]["prompt_tokens"] for p in ("One", "Two"))
    assert answer["usage"]["completion_tokens"] == 4 * alone["One"]["usage"]["completion_tokens"]
    streams = by_index(events(running.post("/v1/completions", prompt=["One", "Two"], stream=True, **body)))
    assert ["".join(c["choices"][0]["text"] for c in streams[index]) for index in range(4)] == texts
    for chunks in streams.values():
        assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"
    tokens = running.post("/v1/completions", prompt=[ids, ids], echo=True).json()
    assert [choice["text"] for choice in tokens["choices"]] == ["of idsfixed"] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_cancels_all_choices(start: Any, script: Any, stream: bool) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), slots=2)
    with connect(running, {"stream": stream, "n": 4}) as sock:
        if stream:
            read_until(sock, b"word")
        assert running.wait_for(lambda stats: stats.running == 2 and stats.queued == 2)
    assert running.settled(2.0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_does_not_fit_the_queue_leaves_nothing_there(start: Any, script: Any, stream: bool) -> None:
    running = start(script(reply=LONG, decode_step_s=0.05), slots=1, max_queue=2)
    response = running.post(n=4, stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_full")
    assert running.settled(2.0)
    running.script.reply = "short"
    assert len(running.post(n=3, stream=stream).text) > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_fails_the_whole_request(start: Any, script: Any, stream: bool) -> None:
    running = start(script(reply=LONG, fail_in=1), slots=2)
    response = running.post(n=2, stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")
    running.script.fail_in = None
    running.script.reply = "fine"
    assert len(running.post(n=2).json()["choices"]) == 2
    assert running.settled()


def test_the_log_has_one_line_with_the_sums(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        usage = running.post(n=2).json()["usage"]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "edgellm.server.access"]
    assert f"prompt={usage['prompt_tokens']} " in line
    assert f"completion={usage['completion_tokens']} " in line
