"""Inputs nobody would write: no crash, no hang, no answer but a result or a clean refusal.

Each target runs for `EDGELLM_FUZZ_S` seconds (15 unless set), from a seed that changes by the day; a failure prints the
shrunk example and its seed. An hour by hand: ``EDGELLM_FUZZ_S=720 pytest tests/fuzz``.
"""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from bare_llm import bare_llm
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import RequestError
from edgellm.server.chat import read_chat
from edgellm.server.completions import read_completion
from edgellm.server.errors import ApiError
from edgellm.server.parameters import CHAT, COMPLETION
from edgellm.server.settings import ServerSettings
from edgellm.text.chat import ChatRenderer
from edgellm.text.dialects import DIALECTS, make_parser
from edgellm.text.grammars import json_grammar
from edgellm.text.tokenizer import Tokenizer

SECONDS = float(os.environ.get("EDGELLM_FUZZ_S", "15"))
SLOW_S = 10.0  # for inputs of a few kB: far beyond any machine's bad moment, far below a hang
MEMORY = 64 << 20  # bytes that one input may take
SETTINGS = ServerSettings(model="m")


def fuzz(run: Callable[..., None], seconds: float = SECONDS, **strategies: Any) -> None:
    """Run until the time is up, one batch of examples after another, each with its own seed."""
    end = time.monotonic() + seconds
    number = int(time.time()) // 86_400 * 1000
    options = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    first, examples = number, [0]
    while time.monotonic() < end:
        number += 1
        seed(number)(options(given(**strategies)(bounded(run, examples))))()
    print(f"{examples[0]} examples, seeds {first + 1} to {number}")


def bounded(run: Callable[..., None], examples: list[int]) -> Callable[..., None]:
    """`run` with its time and, now and then, its memory watched; `examples` counts."""

    def watched(**example: Any) -> None:
        examples[0] += 1
        start = time.perf_counter()
        if examples[0] % 20:
            run(**example)
        else:  # slow
            tracemalloc.start()
            try:
                run(**example)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < MEMORY, f"took {peak >> 20} MiB"
        spent = time.perf_counter() - start
        assert spent < SLOW_S, f"took {spent:.1f} s"

    return watched


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = make_checkpoint("tiny", tmp_path_factory.mktemp("fuzz") / "tiny")
    tokenizer = Tokenizer.load(folder)
    return bare_llm(tokenizer, ChatRenderer.load(folder, tokenizer), context=4096)


# -- parsers

TAGS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=ls>", "<function=rm>", "</function>"),
        *("<parameter=path>", "<parameter=", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "<TOOLCALL>", "</TOOLCALL>"),
        *("<|python_tag|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|channel|>", "<|message|>"),
        *("<|call|>", "<|end|>", "<|start|>", "final", "analysis", "commentary to=functions.ls", "<|constrain|>json"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "```json", "```"),
        *('{"name": "ls", "arguments": ', '{"path": "a"}', "}", "[", "]", ", ", "; ", "ls(path='a')", "[ls()", ")]"),
        *("\n", "\n\n", " ", '"', "\\", "\\u00", "ls", "path", "{", "1e999", "NaN", "null", "é", "😀", "word "),
    ]
)
PIECES = st.lists(
    TAGS | st.text(max_size=6) | st.tuples(TAGS, st.integers(2, 300)).map(lambda p: p[0] * p[1]), max_size=30
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}},
            },
        },
    }
]


def parsed(dialect: str, pieces: list[str], thinking: bool, ended: bool) -> tuple[list[Any], list[Any]]:
    """(deltas joined as a client joins them, arguments of whole calls)."""
    parser = make_parser(dialect, TOOLS, thinking_open=thinking, id_seed="fuzz")
    found: list[list[Any]] = []
    whole = []
    for delta in [*(d for piece in pieces for d in parser.feed(piece)), *parser.finish(ended)]:
        kind, text = type(delta).__name__, getattr(delta, "text", getattr(delta, "fragment", None))
        if text is not None and found and found[-1][0] == kind:
            found[-1][1] += text
        else:
            found.append([kind, text if text is not None else repr(delta)])
        if kind == "ToolCallEnd":
            whole.append(next(text for kind, text in reversed(found) if kind == "ToolCallArguments"))
    return found, whole


@pytest.mark.parametrize("dialect", DIALECTS)
def test_parsers(dialect: str) -> None:
    def run(pieces: list[str], cuts: list[int], thinking: bool, ended: bool) -> None:
        text = "".join(pieces)
        places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
        cut_up = [text[start:stop] for start, stop in pairwise(places)]
        once, arguments = parsed(dialect, [text], thinking, ended)
        assert parsed(dialect, cut_up, thinking, ended)[0] == once
        for each in arguments:
            assert isinstance(json.loads(each), dict)

    fuzz(
        run,
        SECONDS / len(DIALECTS),
        pieces=PIECES,
        cuts=st.lists(st.integers(0, 5000), max_size=40),
        thinking=st.booleans(),
        ended=st.booleans(),
    )


# -- what clients send

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | TAGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", ""])
FUNCTION = st.fixed_dictionaries({"name": st.just("ls") | JSON, "arguments": JSON | st.just('{"path": "a"}')})
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES | JSON},
    optional={
        "content": st.text() | st.lists(TAGS, max_size=5).map("".join) | JSON,
        "reasoning_content": st.text(max_size=9) | JSON,
        "tool_calls": st.lists(st.fixed_dictionaries({"function": FUNCTION | JSON}, optional={"id": JSON}), max_size=3),
        "tool_call_id": JSON,
        "name": JSON,
    },
)


def test_template_inputs(llm: Any) -> None:
    def run(messages: list[Any], tools: Any, kwargs: dict[str, Any], generate: bool, go_on: bool) -> None:
        try:
            rendered = llm.renderer.render(
                messages, tools, add_generation_prompt=generate, continue_final_message=go_on, **kwargs
            )
        except RequestError:
            return
        assert all(0 < length <= len(rendered.token_ids) for length in rendered.stable_lengths)

    names = st.sampled_from(["enable_thinking", "preserve_thinking", "x"])
    fuzz(
        run,
        messages=st.lists(MESSAGE, max_size=6),
        tools=st.none() | st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=4), max_size=3) | st.just(TOOLS),
        kwargs=st.dictionaries(names, JSON, max_size=2),
        generate=st.booleans(),
        go_on=st.booleans(),
    )


FIELDS = st.sampled_from(sorted({*CHAT.honoured, *CHAT.refused, *COMPLETION.honoured, *COMPLETION.refused}))
SCHEMA = st.recursive(
    st.sampled_from(
        [{"type": "string"}, {"type": "integer"}, {"enum": ["a", 1]}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {}, True]
    ),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers()})
        | st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=4), inner)})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"type": st.just("string"), "pattern": st.text("ab(){}[]+*?^$\\d|", max_size=8)})
        | st.fixed_dictionaries({"$defs": st.fixed_dictionaries({"a": inner}), "$ref": st.just("#/$defs/a")})
    ),
    max_leaves=8,
)
GOOD = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "prompt": "hi"}


def test_request_bodies(llm: Any) -> None:
    def run(changes: dict[str, Any], schema: Any, damage: list[tuple[int, int]], chat: bool) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = bytearray(json.dumps({**GOOD, "response_format": wanted, **changes}).encode())
        for place, byte in damage:
            body[place % len(body)] = byte
        try:
            job = (read_chat if chat else read_completion)(bytes(body), llm, SETTINGS)
        except (RequestError, ApiError):
            return
        assert job.requests

    fuzz(
        run,
        changes=st.dictionaries(FIELDS, JSON | st.lists(MESSAGE, max_size=3), max_size=4),
        schema=SCHEMA,
        damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=2),
        chat=st.booleans(),
    )


def test_schemas(llm: Any) -> None:
    def run(schema: Any, tokens: list[int]) -> None:
        try:
            constraint = llm.constraints.make(json_grammar(schema), param="x", thinking_open=False)
            for pick in tokens:
                allowed = constraint.mask().nonzero()[0]
                assert len(allowed)
                constraint.advance(int(allowed[pick % len(allowed)]))
        except RequestError:
            return

    fuzz(run, schema=SCHEMA | JSON, tokens=st.lists(st.integers(0, 5000), max_size=30))
