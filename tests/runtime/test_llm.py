"""The Python API over a scripted model: whole answers, streams, chats, from ordinary and asynchronous code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgellm
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.builder import build_bundle
from edgellm.engine.recipe import Recipe
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.engine.scripts import ReplyScript
from edgellm.errors import BundleError, ConfigError, EngineDeadError, ExecutionError, RequestError
from edgellm.runtime.llm import LLM, RequestOptions
from edgellm.runtime.types import CacheParams
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

SAMPLING = SamplingParams(max_tokens=200)
USER = [{"role": "user", "content": "What is the weather in Rome?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
CALL = (
    "Let me look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
Make = Callable[..., LLM]


@pytest.fixture
def make(tokenizer: Tokenizer, renderer: ChatRenderer) -> Iterator[Make]:
    """Opens models that always say the given text."""
    opened: list[LLM] = []

    def build(said: str, **options: Any) -> LLM:
        eos = tokenizer.eos_token_ids[0]
        ids = tokenizer.encode(said, allow_special=True)
        script = ReplyScript(ids, eos=eos, vocab_size=tokenizer.vocab_size)
        hook = options.pop("on_call", None)
        executor = ScriptedExecutor(script, vocab_size=tokenizer.vocab_size, on_call=hook)
        opened.append(LLM.from_parts(executor, tokenizer, renderer, **options))
        return opened[-1]

    yield build
    for llm in opened:
        llm.close()


def test_generate(make: Make, tokenizer: Tokenizer) -> None:
    llm = make("a fine answer")
    result = llm.generate("Say something", SAMPLING)
    assert (result.text, result.finish_reason) == ("a fine answer", "stop")
    assert result.usage.prompt_tokens == len(tokenizer.encode("Say something", allow_special=True))
    assert result.usage.completion_tokens == len(result.token_ids)
    assert 0 <= result.timing.queued_s <= result.timing.first_token_s <= result.timing.total_s
    assert result.logprobs is None
    assert llm.generate([5, 6, 7], SAMPLING).text == "a fine answer"
    assert llm.generate((5, 6, 7), SamplingParams(max_tokens=2, logprobs=0)).logprobs is not None


def test_generate_many(make: Make) -> None:
    llm = make("yes", max_queue=3)
    prompts = [f"question {index}" for index in range(30)]  # more than the queue takes
    results = llm.generate(prompts, SAMPLING)
    assert [result.text for result in results] == ["yes"] * 30
    assert [result.text for result in llm.generate([[1, 2], [3]], SAMPLING)] == ["yes", "yes"]
    for nothing in ([], ""):
        with pytest.raises(RequestError, match="empty"):
            llm.generate(nothing)


def test_chat_parts(make: Make) -> None:
    llm = make(CALL)
    answer = llm.chat(USER, SAMPLING, tools=[TOOL], enable_thinking=False)
    (call,) = answer.tool_calls
    assert call.name == "weather"
    assert json.loads(call.arguments) == {"city": "Rome", "days": 3}
    assert answer.content.strip() == "Let me look."
    assert answer.reasoning == ""
    assert answer.result.finish_reason == "stop"
    assert "<tool_call>" in llm.chat(USER, SAMPLING, enable_thinking=False).content  # no tools: text is text


def test_chat_reasoning(make: Make) -> None:
    answer = make("I think so.\n</think>\n\nYes.").chat(USER, SAMPLING, enable_thinking=True)
    assert (answer.reasoning.strip(), answer.content.strip()) == ("I think so.", "Yes.")


def test_conversation_reuses_its_prefix(make: Make) -> None:
    llm = make("Sunny.")
    first = llm.chat(USER, SAMPLING, enable_thinking=False).result.usage
    messages = [*USER, {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "And tomorrow?"}]
    second = llm.chat(messages, SAMPLING, enable_thinking=False).result.usage
    assert first.cached_tokens == 0
    assert second.cached_tokens >= first.prompt_tokens - 8
    options = RequestOptions(cache=CacheParams(read=False))
    assert llm.chat(messages, SAMPLING, options, enable_thinking=False).result.usage.cached_tokens == 0


def test_stream(make: Make) -> None:
    llm = make("one two three")
    for prompt, extra in (("text", {}), ([1, 2], {}), (USER, {"enable_thinking": False})):
        outputs = list(llm.stream(prompt, SAMPLING, **extra))
        assert "".join(output.text for output in outputs) == "one two three"
        assert outputs[-1].finish_reason == "stop"
    with pytest.raises(RequestError, match="messages"):
        llm.stream("text", SAMPLING, tools=[TOOL])


def test_async_twins(make: Make) -> None:
    llm = make(CALL)

    async def use() -> tuple[str, int, str]:
        results = await asyncio.gather(*[llm.agenerate(f"q{index}", SAMPLING) for index in range(5)])
        assert len({result.text for result in results}) == 1
        answer = await llm.achat(USER, SAMPLING, tools=[TOOL], enable_thinking=False)
        pieces = [output.text async for output in llm.astream(USER, SAMPLING, enable_thinking=False)]
        stream = llm.astream("q", SamplingParams(max_tokens=5000, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        return results[0].text, len(answer.tool_calls), "".join(pieces)

    assert asyncio.run(use()) == (CALL, 1, CALL)


def test_failures_are_raised(make: Make) -> None:
    def hook(name: str, number: int) -> None:
        if (name, number) == ("advance", 2):
            raise RuntimeError("the device is on fire")

    llm = make("x" * 50, on_call=hook, speculation=None)
    with pytest.raises(ExecutionError, match="on fire"):
        llm.generate("hello", SAMPLING)
    assert llm.generate("hello", SAMPLING).finish_reason == "stop"
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError):
        llm.generate("hello")


def test_bad_settings_close_the_executor(tokenizer: Tokenizer, renderer: ChatRenderer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, message in [
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"speculation": "always"}, "speculation"),
        ({"prefill_chunk": 0}, "prefill_chunk"),
        ({"max_queue": 0}, "max_queue"),
        ({"cache_dir": tmp_path / "file"}, "cache_dir"),
    ]:
        executor = ScriptedExecutor(vocab_size=tokenizer.vocab_size)
        with pytest.raises(ConfigError, match=message):
            LLM.from_parts(executor, tokenizer, renderer, **options)
        with pytest.raises(AssertionError, match="closed"):
            executor.reset(0)


def test_a_bundle(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        LLM(checkpoint)
    bundle = build_bundle(checkpoint, tmp_path / "bundle", Recipe(context=256, prefill_chunk=64))
    sampling = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    answers = []
    for speculation in ("auto", None, SpeculationParams(2, 2, 4)):
        with LLM(bundle, slots=2, threads=1, speculation=speculation) as llm:
            assert llm.info.max_tokens == 256
            assert llm.engine.stats().steps == 0
            answers.append(llm.generate("def fib(n):", sampling).token_ids)
            assert llm.chat(USER, sampling, enable_thinking=False).result.usage.completion_tokens > 0
    assert answers[0] == answers[1] == answers[2]


def test_importing_the_package_is_light() -> None:
    code = "import sys, edgellm; assert not {'numpy', 'onnxruntime', 'tokenizers', 'jinja2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert edgellm.LLM is LLM
    assert edgellm.SamplingParams is SamplingParams
    assert set(edgellm.__all__) <= set(dir(edgellm))
    with pytest.raises(AttributeError, match="nothing"):
        _ = edgellm.nothing


def test_a_chat_keeps_its_system_prompt_longest(make: Make) -> None:
    llm = make("a fine answer " * 40)
    system = {"role": "system", "content": "Be brief. " * 60}
    llm.chat([system, *USER], SAMPLING, tools=[TOOL], enable_thinking=False)
    head = llm.renderer.render([system, *USER], tools=[TOOL], enable_thinking=False).head_length
    size = llm.info.block_bytes
    assert llm.engine.stats().cache.block_bytes_by_priority["90"] == -(-head // llm.info.block_tokens) * size
    llm.generate("Be brief. " * 60, SAMPLING)  # no conversation: all of it has the default
    assert llm.engine.stats().cache.block_bytes_by_priority["35"] > size


def test_options_of_the_second_tier(make: Make, tmp_path: Path) -> None:
    llm = make("yes", offload_bytes=1 << 20, offload_dir=tmp_path, retained_share=0.25)
    assert llm.engine.stats().tier.budget_bytes == 1 << 20
    assert len(list(tmp_path.glob("*/"))) == 1
    with pytest.raises(ConfigError, match="offload_dir"):
        make("yes", offload_dir=tmp_path)
    with pytest.raises(ConfigError, match="retained_share"):
        make("yes", retained_share=2.0)
