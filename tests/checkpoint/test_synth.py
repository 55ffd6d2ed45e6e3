"""make-checkpoint: every preset opens without a warning, is reproducible, and appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.random_weights import RandomWeights
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.small_tokenizer import MIN_VOCAB, SPECIAL_TOKENS, write_small_tokenizer
from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import CheckpointError, ConfigError

SMALL = [name for name in PRESETS if name not in ("mid", "qwen36-vocab", "qwen36-27b")]


@pytest.mark.parametrize("preset", SMALL)
def test_presets_open_cleanly(preset: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(make_checkpoint(preset, tmp_path / "c"))
    assert checkpoint.warnings == ()
    assert checkpoint.spec == ModelSpec.from_config(PRESETS[preset].config)
    assert checkpoint.spec.mtp_layers == 1
    assert checkpoint.spec.full_layers
    assert checkpoint.spec.linear_layers
    assert len(checkpoint.eos_token_ids) == 2
    assert Tokenizer.from_file(str(tmp_path / "c" / "tokenizer.json")).get_vocab_size() == checkpoint.spec.vocab


def test_the_big_presets_have_the_stated_shape() -> None:
    mid = ModelSpec.from_config(PRESETS["mid"].config)
    assert (mid.hidden, len(mid.layers), mid.intermediate, mid.vocab) == (1024, 24, 3584, 32768)
    assert (mid.linear.key_heads, mid.linear.value_heads) == (16, 16)
    assert (mid.attention.heads, mid.attention.kv_heads, mid.attention.head_dim) == (8, 2, 256)
    vocab = ModelSpec.from_config(PRESETS["qwen36-vocab"].config)
    assert (vocab.vocab, vocab.max_positions, vocab.tied_embeddings) == (248320, 262144, True)
    assert min(ModelSpec.from_config(PRESETS[name].config).max_positions for name in PRESETS) >= 32768


def test_parity_shapes_cover_the_structure() -> None:
    specs = [ModelSpec.from_config(PRESETS[name].config) for name in SMALL if name.startswith("parity")]
    assert {spec.tied_embeddings for spec in specs} == {True, False}
    assert {spec.linear.key_heads == spec.linear.value_heads for spec in specs} == {True, False}
    assert {spec.vocab % 2 for spec in specs} == {0, 1}
    assert {PRESETS[name].layout for name in SMALL} == {"text", "multimodal"}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    a, b, c = (make_checkpoint("parity-odd", tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    hashes = [Checkpoint.open(path).content_hash() for path in (a, b, c)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_options(dtype: str, tmp_path: Path) -> None:
    path = make_checkpoint("tiny", tmp_path / "c", dtype=dtype, layout="text", shards=2, num_hidden_layers=3)  # type: ignore[arg-type]
    checkpoint = Checkpoint.open(path)
    assert checkpoint.weight("layers.0.mlp.up_proj.weight").kind == dtype
    assert len(checkpoint.spec.layers) == 3
    assert checkpoint.config["model_type"] == "qwen3_5_text"
    assert len(checkpoint.weight_files) == 2


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "empty").mkdir()
    for preset, out, options, error in (
        ("huge", "c", {}, ConfigError),
        ("tiny", "used", {}, ConfigError),
        ("tiny", "used/file", {}, ConfigError),
        ("tiny", "c", {"hidden": 64}, ConfigError),
        ("tiny", "c", {"dtype": "int8"}, ConfigError),
        ("tiny", "c", {"shards": 10_000}, ConfigError),
        ("tiny", "c", {"vocab_size": MIN_VOCAB - 1}, ConfigError),
        ("tiny", "c", {"tokenizer_dir": tmp_path / "empty"}, ConfigError),
        ("tiny", "c", {"num_attention_heads": 3}, CheckpointError),
    ):
        with pytest.raises(error):
            make_checkpoint(preset, tmp_path / out, **options)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "used"]
    make_checkpoint("parity-odd", tmp_path / "empty")


def test_given_tokenizer_is_copied(tmp_path: Path, small: Path) -> None:
    (tmp_path / "tok").mkdir()
    write_small_tokenizer(tmp_path / "tok", 600)
    (tmp_path / "tok" / "chat_template.jinja").write_text("{{ messages }}")
    checkpoint = Checkpoint.open(make_checkpoint("tiny", tmp_path / "c", tokenizer_dir=tmp_path / "tok"))
    assert checkpoint.chat_template == "{{ messages }}"
    assert max(checkpoint.eos_token_ids) < 600
    with pytest.raises(ConfigError, match="the model's vocabulary is 509"):
        make_checkpoint("parity-odd", tmp_path / "d", tokenizer_dir=tmp_path / "tok")


def test_a_tensor_does_not_depend_on_the_others() -> None:
    config = dict(PRESETS["tiny"].config)
    few, many = (ModelSpec.from_config(config | {"num_hidden_layers": n}) for n in (4, 8))
    for name in few.expected_tensors():
        a, b = (RandomWeights(spec, 3, follow=1.0).tensor(name, np.dtype(np.float32)) for spec in (few, many))
        np.testing.assert_array_equal(a, b)


def test_special_tokens_are_the_last_ids(tmp_path: Path) -> None:
    write_small_tokenizer(tmp_path, 700)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tokenizer.token_to_id(name) for name in SPECIAL_TOKENS] == list(range(700 - len(SPECIAL_TOKENS), 700))
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<think>").ids
    assert tokenizer.decode(ids) == "user\nhi\n<think>"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_small_tokenizer(folder, 2000)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@settings(deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    normal = tokenizer.normalizer.normalize_str(text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == normal


def test_common_words_are_few_tokens(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("The function returns the name of the file").ids) < 14
