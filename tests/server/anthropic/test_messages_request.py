"""From a body to the engine: the same prompt and request as a chat body that says the same; fields do what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bare_llm import bare_llm
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cache.retention import TokenRange, default_ranges
from edgellm.errors import RequestError
from edgellm.runtime.types import Request
from edgellm.server.answer import Job
from edgellm.server.anthropic.cache_marks import MARKED_PRIORITY
from edgellm.server.anthropic.messages import count_tokens, read_messages
from edgellm.server.chat import read_chat
from edgellm.server.errors import ApiError
from edgellm.server.settings import ServerSettings

SETTINGS = ServerSettings(model="m", aliases=("claude-x",))
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "Runs a command.", "input_schema": SCHEMA}
CHAT_BASH = {"type": "function", "function": {"name": "bash", "description": "Runs a command.", "parameters": SCHEMA}}
HI = {"role": "user", "content": "hi"}
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.1; cc_entrypoint=cli;"
MARK = {"cache_control": {"type": "ephemeral"}}


@pytest.fixture(scope="module")
def llm(tokenizer: Any) -> Any:
    return bare_llm(*tokenizer, context=4096)


def body(**fields: Any) -> bytes:
    return json.dumps({"max_tokens": 100, "messages": [HI], **fields}).encode()


def job(llm: Any, **fields: Any) -> Job:
    return read_messages(body(**fields), llm, SETTINGS)


def request(llm: Any, **fields: Any) -> Request:
    return job(llm, **fields).requests[0]


def chat_prompt(llm: Any, **fields: Any) -> tuple[int, ...]:
    return read_chat(json.dumps({"messages": [HI], **fields}).encode(), llm, SETTINGS).requests[0].prompt


words = st.text("ab \n<>{}é😀", max_size=12)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """One conversation in both forms."""
    ours: list[dict[str, Any]] = []
    chat: list[dict[str, Any]] = []
    ours_system = draw(words)
    if ours_system:
        chat.append({"role": "system", "content": ours_system})
    for _ in range(draw(st.integers(1, 3))):
        asked = draw(words)
        ours.append({"role": "user", "content": asked if draw(st.booleans()) else [{"type": "text", "text": asked}]})
        chat.append({"role": "user", "content": asked})
        for _ in range(draw(st.integers(0, 2))):
            thought, said, command, told = (draw(words) for _ in range(4))
            failed = draw(st.booleans())
            use = {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": command}}
            thinking = {"type": "thinking", "thinking": thought, "signature": "s"}
            ours += [
                {"role": "assistant", "content": [thinking, {"type": "text", "text": said}, use]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": told, "is_error": failed}],
                },
            ]
            called = {"name": "bash", "arguments": json.dumps({"command": command})}
            calls = [{"id": "t", "type": "function", "function": called}]
            chat += [
                {"role": "assistant", "content": said, "reasoning_content": thought or None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": "t", "content": f"Error: {told}" if failed else told},
            ]
    asked = "last"
    ours.append({"role": "user", "content": asked})
    chat.append({"role": "user", "content": asked})
    return (
        {"system": ours_system, "messages": ours, "tools": [BASH]},
        {"messages": chat, "tools": [CHAT_BASH]},
    )


@given(both=conversations(), thinking=st.booleans())
def test_equal_conversations_give_equal_prompts(
    llm: Any, both: tuple[dict[str, Any], dict[str, Any]], thinking: bool
) -> None:
    ours, chat = both
    kind = {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"}
    prompt = request(llm, **ours, thinking=kind).prompt
    assert prompt == chat_prompt(llm, **chat, enable_thinking=thinking)
    counted = count_tokens(json.dumps({**ours, "thinking": kind}).encode(), llm, SETTINGS)
    assert counted == {"input_tokens": len(prompt)}


@pytest.mark.parametrize(
    ("fields", "on", "budget"),
    [
        ({}, False, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True, 1024),
        ({"thinking": {"type": "enabled", "budget_tokens": 1}}, True, 1),
        ({"thinking": {"type": "enabled"}}, True, None),
        ({"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"}}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "between_tools"}}, False, None),
        ({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False}}, False, None),
    ],
)
def test_thinking(llm: Any, fields: dict[str, Any], on: bool, budget: int | None) -> None:
    made = request(llm, **fields)
    assert made.prompt == chat_prompt(llm, enable_thinking=on)
    assert (made.constraint is not None) == (budget is not None)


def test_thinking_by_default_is_the_servers_unless_no_effort_is_asked_for(llm: Any) -> None:
    settings = ServerSettings(model="m", enable_thinking=True)
    for fields, on in [({}, True), ({"output_config": {"effort": "none"}}, False)]:
        made = read_messages(body(**fields), llm, settings).requests[0]
        assert made.prompt == chat_prompt(llm, enable_thinking=on)


def test_a_preamble_is_removed(llm: Any) -> None:
    plain = request(llm, system="You help.").prompt
    blocks = [{"type": "text", "text": BILLING}, {"type": "text", "text": "You help.", **MARK}]
    for system in (f"{BILLING}\nYou help.", blocks):
        made = job(llm, system=system)
        assert made.preamble
        assert made.requests[0].prompt == plain
    assert not job(llm, system="You help.").preamble


def test_fields_reach_the_engine(llm: Any) -> None:
    made = request(llm, temperature=0.5, top_p=0.25, top_k=7, stop_sequences=["STOP"], seed=3, cache_salt="s")
    sampling = made.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop) == (0.5, 0.25, 7, ("STOP",))
    assert (sampling.seed, sampling.max_tokens, made.cache.salt) == (3, 100, "s")
    assert made.id.startswith("msg_")
    assert request(llm, max_tokens=10**6).sampling.max_tokens == 4096 - len(made.prompt)


def test_a_last_word_of_the_assistants_is_continued(llm: Any) -> None:
    said = {"role": "assistant", "content": "The answer is ("}
    made = request(llm, messages=[HI, said]).prompt
    assert made == chat_prompt(llm, messages=[HI, said], continue_final_message=True)
    calling = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "bash", "input": {}}]}
    assert request(llm, messages=[HI, calling], tools=[BASH]).prompt  # a turn of its own follows


def test_triggers(llm: Any) -> None:
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    assert job(llm).trigger == "user_message"
    assert job(llm, messages=[HI, told]).trigger == "tool_result"
    assert job(llm, messages=[HI, {"role": "system", "content": "Be brief."}]).trigger == "other"
    assert job(llm).surface == "messages"


# -- tools


def test_tools_of_anthropics_own_are_left_out(llm: Any) -> None:
    own = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash2"}]
    custom = {**BASH, "type": "custom", **MARK}
    assert request(llm, tools=[*own, custom]).prompt == chat_prompt(llm, tools=[CHAT_BASH])
    assert request(llm, tools=own).prompt == chat_prompt(llm)
    with pytest.raises(RequestError, match=r"tool_choice\.name: 'web_search' is a tool of Anthropic's own"):
        request(llm, tools=[*own, BASH], tool_choice={"type": "tool", "name": "web_search"})


def test_no_tool_is_shown_when_none_may_be_called(llm: Any) -> None:
    assert request(llm, tools=[BASH], tool_choice={"type": "none"}).prompt == chat_prompt(llm)
    assert request(llm, tools=[BASH], tool_choice={"type": "auto"}).prompt == chat_prompt(llm, tools=[CHAT_BASH])


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"tool_choice": {"type": "auto"}}, False),
        ({"tool_choice": {"type": "any"}}, True),
        ({"tool_choice": {"type": "tool", "name": "bash"}}, True),
        ({"tools": [{**BASH, "strict": True}]}, True),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, True),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, True),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}, "tool_choice": {"type": "any"}}, True),
    ],
)
def test_forms_of_the_answer(llm: Any, fields: dict[str, Any], held: bool) -> None:
    made = request(llm, **{"tools": [BASH], **fields})
    assert (made.constraint is not None) == held


# -- marks of the cache


def ranges(llm: Any, **fields: Any) -> tuple[TokenRange, ...]:
    return request(llm, **fields).cache.ranges


def test_a_mark_keeps_the_prompt_longer(llm: Any) -> None:
    system = [{"type": "text", "text": "You help.", **MARK}]
    (head,) = ranges(llm, system=system, tools=[{**BASH, **MARK}])
    assert head == default_ranges(head.end or 0)[0]
    for ttl, seconds in ((None, 300.0), ("5m", 300.0), ("1h", 3600.0)):
        mark = {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        said = [{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}]
        marked = TokenRange(head.end or 0, None, MARKED_PRIORITY, seconds)
        assert ranges(llm, system=system, tools=[BASH], messages=said) == (head, marked)
        assert ranges(llm, system=system, tools=[BASH], **mark) == (head, marked)
    inner = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    told = {"role": "user", "content": [{"type": "tool_result", "content": [inner], **MARK}]}
    assert ranges(llm, messages=[HI, told]) == (TokenRange(0, None, MARKED_PRIORITY, 3600.0),)
    assert ranges(llm) == ()


def test_a_requests_own_ranges_go_before_marks(llm: Any) -> None:
    own = {"token_range_retention_configs": [{"token_start": 0, "token_end": None, "priority": 10}]}
    assert ranges(llm, kv_retention=own, **MARK) == (TokenRange(0, None, 10),)


# -- what is refused


BAD: list[tuple[dict[str, Any], str]] = [
    *(({"max_tokens": value}, "max_tokens") for value in (0, -1, None, "5", 1.5)),
    *(({"temperature": value}, "temperature") for value in (-1, 3, "hot")),
    *(({"top_p": value}, "top_p") for value in (0, 2)),
    ({"top_k": -5}, "top_k"),
    ({"stop_sequences": "STOP"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["x"] * 100}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [BASH], "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [BASH], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [BASH], "tool_choice": {"type": "tool", "name": "ls"}}, "tool_choice.name"),
    ({"tools": [BASH], "tool_choice": "auto"}, "tool_choice"),
    ({"thinking": {"type": "on"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "text"}}, "output_format": {"type": "text"}}, "output_format"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"cache_control": {"type": "forever"}}, "cache_control.type"),
    ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "2d"}}]}, "system[0].ttl"),
    ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"compaction": {"type": "x"}}, "compaction"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_wrong_field_is_named(llm: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        request(llm, **fields)
    assert caught.value.param == param.replace("[0].ttl", "[0].cache_control.ttl")


def test_models(llm: Any) -> None:
    assert request(llm, model="claude-x").prompt == request(llm, model="m").prompt == request(llm).prompt
    for read in (read_messages, count_tokens):
        with pytest.raises(ApiError, match="claude-y") as caught:
            read(body(model="claude-y"), llm, SETTINGS)
        assert caught.value.status == 404


def test_a_prompt_that_is_too_long_is_counted_and_refused(llm: Any) -> None:
    long = [{"role": "user", "content": "x " * 9000}]
    (count,) = count_tokens(body(messages=long), llm, SETTINGS).values()
    assert count > 4096
    with pytest.raises(RequestError, match=f"^prompt is too long: {count} tokens > 4095 maximum$"):
        request(llm, messages=long)


def test_thinking_that_is_kept_stays_in_the_prompt(llm: Any) -> None:
    """What Claude Code asks for with every request: a user's turn then leaves earlier turns as they were."""
    thought = [{"type": "thinking", "thinking": "a plan", "signature": "s"}, {"type": "text", "text": "done"}]
    messages = [HI, {"role": "assistant", "content": thought}, HI]

    def prompt(*edits: Any) -> str:
        made = request(llm, messages=messages, context_management={"edits": list(edits)})
        return str(llm.tokenizer.decode(made.prompt))

    assert "a plan" in prompt({"type": "clear_thinking_20251015", "keep": "all"})
    assert "a plan" not in prompt()
    assert "a plan" not in prompt({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}})
    assert "a plan" not in prompt({"type": "clear_tool_uses_20250919"})
