"""The packaged chat template renders the family's format, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

Render = Callable[..., str]
Message = dict[str, Any]

TOOL = {"type": "function", "function": {"name": "bash", "description": "Führt aus <b>", "parameters": {}}}
USER: Message = {"role": "user", "content": "hi"}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": "c1", "function": {"name": name, "arguments": arguments}}


def assistant(content: Any = None, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def tool(content: Any) -> Message:
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def test_plain_turns_and_generation_prompts(template: Render) -> None:
    messages = [{"role": "system", "content": " Be brief.\n"}, USER]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert template(messages) == text
    thinking = text + "<|im_start|>assistant\n<think>\n"
    assert template(messages, add_generation_prompt=True) == thinking
    assert template(messages, add_generation_prompt=True, enable_thinking=True) == thinking
    off = text + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert template(messages, add_generation_prompt=True, enable_thinking=False) == off


def test_tools_block(template: Render) -> None:
    text = template([{"role": "system", "content": "Be brief."}, USER], tools=[TOOL, TOOL])
    line = json.dumps(TOOL, ensure_ascii=False)
    head = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
    assert text.startswith(f"{head}\n{line}\n{line}\n</tools>\n\n")
    assert text.endswith("\n\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n")
    assert "</parameter>\n</function>\n</tool_call>\n" in text
    without_system = template([USER], tools=[TOOL])
    assert without_system == text.replace(line + "\n", "", 1).replace("\n\nBe brief.<|im_end|>", "<|im_end|>")


def test_thinking_of_past_turns_is_dropped_unless_kept(template: Render) -> None:
    messages = [
        USER,
        assistant("one", reasoning_content="old\n"),
        {"role": "user", "content": "more"},
        assistant("two", reasoning_content="\nnew"),
    ]
    user = "<|im_start|>user\nhi<|im_end|>\n"
    more = "<|im_start|>user\nmore<|im_end|>\n"
    new = "<|im_start|>assistant\n<think>\nnew\n</think>\n\ntwo<|im_end|>\n"
    assert template(messages) == f"{user}<|im_start|>assistant\none<|im_end|>\n{more}{new}"
    kept = f"{user}<|im_start|>assistant\n<think>\nold\n</think>\n\none<|im_end|>\n{more}{new}"
    assert template(messages, preserve_thinking=True) == kept
    assert template(messages, preserve_thinking=False) == template(messages)


def test_thinking_inside_the_content_is_found(template: Render) -> None:
    inline = template([USER, assistant("<think>\na\n</think>\n\nb")])
    assert inline == template([USER, assistant("b", reasoning_content="a")])
    history = [USER, assistant("<think>\na\n</think>\n\nb"), USER]
    assert template(history) == template([USER, assistant("b"), USER])


def test_no_thinking_still_opens_and_closes_the_block(template: Render) -> None:
    assert template([USER, assistant("b")]).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nb<|im_end|>\n")


def test_tool_calls_and_results(template: Render) -> None:
    calls = [call("read", {"path": "a b", "lines": [1, None], "all": True}), call("ls", {})]
    text = template([USER, assistant(tool_calls=calls), tool("x\n"), tool("y")], add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "<tool_call>\n<function=read>\n<parameter=path>\na b\n</parameter>\n"
        "<parameter=lines>\n[1, null]\n</parameter>\n<parameter=all>\ntrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=ls>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    spoken = template([USER, assistant("Let me look.", tool_calls=calls[1:])])
    assert "</think>\n\nLet me look.\n\n<tool_call>\n<function=ls>\n</function>\n</tool_call><|im_end|>" in spoken


def test_separate_tool_turns_are_not_joined(template: Render) -> None:
    text = template([USER, assistant(tool_calls=[call("a", {})]), tool("1"), assistant("b"), tool("2")])
    assert text.count("<|im_start|>user\n<tool_response>") == 2


def test_tool_results_are_not_a_user_query(template: Render) -> None:
    wrapped = {"role": "user", "content": "<tool_response>\nx\n</tool_response>"}
    text = template([USER, assistant("a", reasoning_content="r"), wrapped])
    assert "<think>\nr\n</think>" in text
    with pytest.raises(jinja2.TemplateError, match="no user query"):
        template([wrapped])


def test_absent_null_and_listed_content(template: Render) -> None:
    calls = [call("ls", {})]
    texts = {
        template([USER, message, tool("x")])
        for message in (
            {"role": "assistant", "tool_calls": calls},
            assistant(None, tool_calls=calls),
            assistant("", tool_calls=calls),
            assistant([], tool_calls=calls),
            assistant("", tool_calls=[call("ls", None)]),
            assistant("", tool_calls=[call("ls", "")]),
            assistant("", tool_calls=[calls[0]["function"]]),
        )
    }
    assert len(texts) == 1
    parts = [{"type": "text", "text": "10"}, {"type": "text", "text": "525"}]
    assert template([USER, assistant(tool_calls=calls), tool(parts)]).endswith("\n10525\n</tool_response><|im_end|>\n")
    image = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "?"}],
    }
    assert template([image]) == "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>?<|im_end|>\n"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "no messages"),
        ([{"role": "system", "content": "s"}], "no user query"),
        ([assistant("a")], "no user query"),
        ([USER, {"role": "system", "content": "s"}], "System message must be at the beginning"),
        ([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, USER], "must be at the beginning"),
        ([USER, {"role": "developer", "content": "s"}], "Unexpected message role: developer"),
        ([{"role": "system", "content": [{"type": "image", "image": "x"}]}, USER], "cannot contain images"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "Unknown content part"),
        ([{"role": "user", "content": 5}], "must be a string"),
        ([USER, assistant(tool_calls=[call("f", '{"a": 1}')])], "Arguments of a tool call must be an object"),
    ],
)
def test_refusals(template: Render, messages: list[Message], named: str) -> None:
    with pytest.raises(jinja2.TemplateError, match=named):
        template(messages)


def recorded(path: Path) -> Iterator[tuple[list[Message], Any]]:
    """The conversations of the benchmark's recording, whole, as a client sends them (arguments decoded)."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row["conversation_id"], []).append(row)
    for conversation in rows.values():
        messages: list[Message] = [{"role": "system", "content": conversation[0]["system"]}]
        for row in conversation:
            if row["role"] == "tool":
                messages += [tool(result["content"]) for result in row["tool_results"]]
                continue
            calls = [
                call(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in row.get("tool_calls") or []
            ]
            messages.append({**row, "tool_calls": calls})
        yield messages, conversation[0]["tools"]


@pytest.mark.slow
def test_prompt_tokens_of_the_agentic_benchmark(template: Render, shared_dir: Path, qwen_tokenizer: Tokenizer) -> None:
    """The known total with the real vocabulary: every turn's prompt, thinking off.

    Tokens never cross `<|im_start|>`, so a prompt is the sum of its turns' tokens.
    """
    start, prompts, total = "<|im_start|>", 0, 0
    closing = len(qwen_tokenizer.encode(f"{start}assistant\n<think>\n\n</think>\n\n").ids)
    for messages, tools in recorded(shared_dir / "data" / "agentic_coding_2.5h.jsonl"):
        length = 0
        for turn in template(messages, tools=tools).split(start)[1:]:
            if turn.startswith("assistant"):
                total += length + closing
                prompts += 1
            length += len(qwen_tokenizer.encode(start + turn).ids)
    assert (prompts, total) == (1007, 13_560_633)
