"""The data of edge-tiny: what a call holds can be had from the prompt, and what is rendered is what is expected."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import parse

from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "edge-tiny"))

from edgetiny.conversations import KINDS, conversation
from edgetiny.rendering import render, render_prompt
from edgetiny.tokenizer import VOCAB, chat_template, save, train

CASES = [(split, stage, kind) for split in ("train", "held_out") for stage in (0.0, 0.5, 1.0) for kind in KINDS]
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
TEMPLATE = chat_template()


def some(split: str, stage: float, kind: str, count: int = 12) -> list[dict[str, Any]]:
    return [conversation(7, index, split, stage, kind) for index in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    conversations = [conversation(1, index, "train", (index % 3) / 2) for index in range(2500)]
    texts = (TEMPLATE.render(messages=c["messages"], tools=c["tools"]) for c in conversations)
    made = tmp_path_factory.mktemp("edge-tiny")
    save(train(texts), made)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def test_same_arguments_same_conversation() -> None:
    for kind in KINDS:
        assert some("train", 0.5, kind, 3) == some("train", 0.5, kind, 3)
    drawn = [conversation(7, index, "train", 1.0) for index in range(300)]
    assert {conv["kind"] for conv in drawn} == set(KINDS)
    assert len({json.dumps(conv) for conv in drawn}) > 290


def test_held_out_functions_and_parameters_are_never_trained_on() -> None:
    def names(split: str) -> set[str]:
        found = set()
        for kind in ("single", "multiple", "typed", "parallel", "irrelevant"):
            for conv in some(split, 1.0, kind, 150):
                for tool in conv["tools"]:
                    function = tool["function"]
                    found |= {function["name"], *function["parameters"]["properties"]}
        return found

    assert not names("train") & names("held_out")


@pytest.mark.parametrize(("split", "stage", "kind"), CASES)
def test_calls_fit_their_schema_and_their_prompt(split: str, stage: float, kind: str) -> None:
    for conv in some(split, stage, kind):
        tools = {tool["function"]["name"]: tool["function"] for tool in conv["tools"] or ()}
        assert len(tools) == len(conv["tools"] or ())
        said = "\n".join(message["content"] for message in conv["messages"][:-1])
        for call in conv["expected"]:
            schema = tools[call["name"]]["parameters"]
            assert set(schema.get("required", ())) <= call["arguments"].keys()
            for name, value in call["arguments"].items():
                fits(value, schema["properties"][name])
                for leaf in leaves(value):
                    assert stands_in(str(leaf), said), (leaf, said)


def fits(value: Any, schema: dict[str, Any]) -> None:
    kind = schema["type"]
    assert isinstance(value, TYPES[kind]), (value, schema)
    assert kind == "boolean" or not isinstance(value, bool)
    assert value in schema.get("enum", [value])
    if kind == "array":
        for item in value:
            fits(item, schema["items"])
    if kind == "object":
        assert value.keys() == schema["properties"].keys()
        for name, item in value.items():
            fits(item, schema["properties"][name])


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if isinstance(value, bool) else [value]


def stands_in(text: str, said: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", said) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_rendered_as_served_and_parsed_back(kind: str, folder: Path, tokenizer: Tokenizer) -> None:
    renderer = ChatRenderer.load(folder, tokenizer)
    for conv in some("train", 1.0, kind, 15):
        messages, tools, thinking = conv["messages"], conv["tools"], conv["thinking"]
        ids, mask = render(conv, tokenizer, TEMPLATE)
        prompt = render_prompt(conv, tokenizer, TEMPLATE)
        keep = conv["preserve_thinking"]
        whole = renderer.render(messages, tools, add_generation_prompt=False, preserve_thinking=keep)
        assert ids == list(whole.token_ids)
        asked = renderer.render(messages[:-1], tools, enable_thinking=thinking, preserve_thinking=keep)
        assert prompt == list(asked.token_ids)
        assert ids[: len(prompt)] == prompt
        assert not mask[len(prompt) - 1]
        written = tokenizer.decode(i for i, learned in zip(ids, mask, strict=True) if learned)
        answers = [turn.removesuffix("<|im_end|>") for turn in re.findall(r".*?<\|im_end\|>", written, re.S)]
        assert len(answers) == sum(message["role"] == "assistant" for message in messages)
        last = tokenizer.decode(ids[len(prompt) :])
        assert last == f"{answers[-1]}<|im_end|>\n"
        answer = parse(answers[-1], tools or [], thinking=thinking)
        assert answer.content == messages[-1]["content"].strip()
        assert answer.arguments() == [(call["name"], call["arguments"]) for call in conv["expected"]]


def test_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == VOCAB
    assert max(tokenizer.added.values()) == VOCAB - 1


@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.text("<>/=\n {}\"',:aB1é🦊_"))
def test_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    for special in (False, True):
        assert tokenizer.decode(tokenizer.encode(text, allow_special=special)) == text


@given(data=st.binary(max_size=40))
def test_every_byte_has_a_token(tokenizer: Tokenizer, data: bytes) -> None:
    ids = {tokenizer.token_bytes(token_id): token_id for token_id in range(VOCAB)}
    assert b"".join(tokenizer.token_bytes(ids[bytes([byte])]) for byte in data) == data


@pytest.mark.parametrize("word", ["Paris", "guest", "/etc/hosts.txt", "AB-1234", "plodrunk", "12.5", "name@mail.com"])
def test_a_value_is_the_same_tokens_wherever_it_stands(tokenizer: Tokenizer, word: str) -> None:
    alone = tokenizer.encode(word, allow_special=False)
    for before, behind in (
        ("in ", "."),
        ('"', '", "'),
        ("x: ", "\n"),
        ("<parameter=x>\n", "\n</parameter>\n</function>\n"),
    ):
        ids = tokenizer.encode(before + word + behind, allow_special=False)
        assert any(ids[n : n + len(alone)] == alone for n in range(len(ids))), (before, behind)


def test_what_is_no_call_begins_in_one_way() -> None:
    """Greedy decoding calls when refusing is likelier but split between several beginnings."""
    replies = [conversation(3, index, "train", 1.0, "irrelevant")["messages"][-1]["content"] for index in range(200)]
    assert {reply.split()[0] for reply in replies} == {"Sorry,", "What"}
