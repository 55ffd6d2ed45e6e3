"""Perplexity and divergence against the reference arithmetic; texts from files, with every bad line named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.base import Executor
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import load_recipe
from edgellm.engine.registry import open_executor
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.errors import ConfigError
from edgellm.graph.reference import ReferenceModel
from edgellm.quantize import quality
from edgellm.quantize.quality import accepted_length, measure_quality
from edgellm.quantize.texts import Text, token_texts
from edgellm.runtime.llm import LLM
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

TEXTS = [[5, 9, 200, 7, 7, 7, 31, *range(40, 60)], [1, 2], [300, 4]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("tiny", tmp_path_factory.mktemp("quality") / "tiny")


@pytest.fixture(scope="module")
def bundles(checkpoint: Path) -> dict[str, Path]:
    names = ("cpu-f32", "cpu-int4")
    return {name: build_bundle(checkpoint, checkpoint.parent / name, load_recipe(name)) for name in names}


@pytest.fixture
def executors(bundles: dict[str, Path]) -> Iterator[dict[str, Executor]]:
    made = {name: open_executor(Bundle.open(path), slots=1, context=256, threads=1) for name, path in bundles.items()}
    yield made
    for executor in made.values():
        executor.close()


def log_probabilities(checkpoint: Path) -> list[Any]:
    """By the reference arithmetic: for each text, rows of every predicted token."""
    found = []
    for ids in TEXTS:
        logits, _ = ReferenceModel(Checkpoint.open(checkpoint)).run(np.array(ids[:-1]))
        rows = logits.astype(np.float64)
        found.append(
            rows
            - np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True))
            - rows.max(-1, keepdims=True)
        )
    return found


def test_perplexity_is_that_of_the_reference_arithmetic(checkpoint: Path, executors: dict[str, Executor]) -> None:
    rows = log_probabilities(checkpoint)
    loss = [-row[place, ids[place + 1]] for ids, row in zip(TEXTS, rows, strict=True) for place in range(len(row))]
    found = measure_quality(list(map(Text, TEXTS)), executors["cpu-f32"])
    assert (found.texts, found.tokens) == (3, len(loss))
    assert found.perplexity == pytest.approx(np.exp(np.mean(loss)), rel=1e-4)
    assert found.kl is None


def test_a_bundle_agrees_with_itself_and_less_with_four_bits(executors: dict[str, Executor], bundles: Any) -> None:
    with closing(open_executor(Bundle.open(bundles["cpu-f32"]), slots=1, context=256, threads=1)) as again:
        same = measure_quality(list(map(Text, TEXTS)), executors["cpu-f32"], again)
    assert same.kl == pytest.approx(0, abs=1e-9)
    assert (same.top1, same.perplexity) == (1, same.reference_perplexity)
    coarse = measure_quality(list(map(Text, TEXTS)), executors["cpu-int4"], executors["cpu-f32"])
    assert coarse.reference_perplexity == same.perplexity
    assert coarse.kl is not None
    assert coarse.kl_p99 is not None
    assert 1e-6 < coarse.kl < coarse.kl_p99


def test_answers_alone(checkpoint: Path, executors: dict[str, Executor]) -> None:
    rows = log_probabilities(checkpoint)[0]
    ids = TEXTS[0]
    loss = [-rows[place - 1, ids[place]] for place in range(9, len(ids))]
    seen: list[tuple[str, int, int]] = []
    texts = [Text(ids, 9), Text(TEXTS[1])]
    found = measure_quality(texts, executors["cpu-f32"], answers=True, progress=lambda *step: seen.append(step))
    assert (found.texts, found.tokens) == (1, len(loss))
    assert found.perplexity == pytest.approx(np.exp(np.mean(loss)), rel=1e-4)
    assert seen == [("measure", 0, 2), ("measure", 1, 2), ("measure", 2, 2)]
    with pytest.raises(ConfigError, match="no text has an answer"):
        measure_quality(texts[1:], executors["cpu-f32"], answers=True)


def test_accepted_length_is_the_engines(bundles: dict[str, Path]) -> None:
    speculation = Bundle.open(bundles["cpu-f32"]).manifest.speculation
    with LLM(bundles["cpu-f32"], slots=1, context=256, threads=1) as llm:
        long = accepted_length(llm, speculation, list(map(Text, TEXTS)), 24)
        before = llm.engine.stats()
        one = accepted_length(llm, speculation, [Text(TEXTS[0], 5)], 24)
        after = llm.engine.stats()
    assert 1 < long <= 9
    assert 1 < one <= 9
    assert after.prompt_tokens - before.prompt_tokens == 5
    assert after.generated_tokens - before.generated_tokens == 24


def test_a_bundle_that_predicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = iter([np.full(64, np.nan)] * 2)
    monkeypatch.setattr(quality, "_log_probabilities", lambda executor, ids: broken)
    with pytest.raises(ConfigError, match="does not predict text at all: its mean loss is nan"):
        measure_quality([Text([1, 2, 3])], ScriptedExecutor(None, vocab_size=64))


def test_executors_that_cannot_be_compared(executors: dict[str, Executor]) -> None:
    with pytest.raises(ConfigError, match="measured with verify"):
        measure_quality(list(map(Text, TEXTS)), ScriptedExecutor(None, vocab_size=64, max_tree=0))
    with pytest.raises(ConfigError, match="different vocabularies"):
        measure_quality(list(map(Text, TEXTS)), executors["cpu-f32"], ScriptedExecutor(None, vocab_size=64))


def read(checkpoint: Path, path: Path, **options: Any) -> list[list[int]]:
    tokenizer = Tokenizer.load(checkpoint)
    renderer = ChatRenderer.load(checkpoint, tokenizer)
    found = token_texts(path, tokenizer, renderer, **{"limit": None, "longest": 1000, **options})
    return [text.ids for text in found]


def test_texts(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(checkpoint)
    renderer = ChatRenderer.load(checkpoint, tokenizer)
    asked = [{"role": "user", "content": "hi"}]
    answered = [*asked, {"role": "assistant", "content": "hello"}]
    file = tmp_path / "data.jsonl"
    lines = [{"messages": asked, "subset": "x"}, {"messages": answered}, {"text": "plain text <|im_end|>"}]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    first, second, third = read(checkpoint, file)
    marks = [text.answer for text in token_texts(file, tokenizer, renderer, limit=None, longest=1000)]
    assert marks == [None, len(renderer.render(asked, enable_thinking=False).token_ids), None]
    assert second[: marks[1]] == list(renderer.render(asked, enable_thinking=False).token_ids)
    assert first == list(renderer.render(asked).token_ids)
    assert second == list(renderer.render(answered, add_generation_prompt=False).token_ids)
    assert tokenizer.decode(third) == "plain text <|im_end|>"
    assert tokenizer.added["<|im_end|>"] not in third
    assert read(checkpoint, file, limit=1, longest=3) == [first[:3]]
    file.write_text('\ufeff{"text": "a \u2028 b \u0085 c"}\n', encoding="utf-8")
    assert tokenizer.decode(read(checkpoint, file)[0]) == "a \u2028 b \u0085 c"
    whole = tmp_path / "whole.txt"
    whole.write_text("line one\n\nline two")
    assert tokenizer.decode(read(checkpoint, whole)[0]) == "line one\n\nline two"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "holds no text"),
        ("{", "line 1 is not JSON"),
        ('{"text": "a b"}\n[]', "line 2 has neither messages nor a text"),
        ('{"messages": []}', "line 1 has neither"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "line 1: .*role"),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": [5]}', "line 1: tools must be an array of objects"),
        ('{"text": "a \\ud800 b"}', "line 1: .*surrogate"),
        pytest.param("[" * 100_000, "line 1 is not JSON", id="deep"),
        ('{"messages": [{"role": "user", "content": "x"}], "text": "x"}', "line 1 has both messages and a text"),
        ('{"text": ""}', "line 1: a text needs at least two tokens"),
    ],
)
def test_wrong_lines_are_named(checkpoint: Path, tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=named):
        read(checkpoint, tmp_path / "data.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(checkpoint, tmp_path / "absent.jsonl")
