"""Checkpoint.open: everything that can be wrong with a folder is named before a weight is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edgellm.checkpoint.reader import Checkpoint
from edgellm.errors import CheckpointError

Change = Callable[[Any], None]
Edit = Callable[[Path, Change], None]

WEIGHTS = "model.safetensors"
PREFIX = "model.language_model."


def refused(path: Path, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        Checkpoint.open(path)


def test_canonical_names_whatever_the_layout(small: Path, sharded: Path) -> None:
    for path in (small, sharded):
        checkpoint = Checkpoint.open(path)
        assert checkpoint.warnings == ()
        for name, shape in checkpoint.spec.expected_tensors().items():
            array = checkpoint.tensor(name)
            assert (array.shape, array.dtype) == (shape, np.dtype(ml_dtypes.bfloat16))
        assert checkpoint.names == tuple(checkpoint.spec.expected_tensors())
    assert len(Checkpoint.open(sharded).weight_files) == 3


def test_weights(small: Path) -> None:
    checkpoint = Checkpoint.open(small)
    weight = checkpoint.weight("layers.0.mlp.up_proj.weight")
    assert (weight.shape, weight.kind) == ((32, 32), "bf16")
    whole = weight.to_float32()
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole.astype(ml_dtypes.bfloat16), checkpoint.tensor("layers.0.mlp.up_proj.weight"))
    np.testing.assert_array_equal(weight.to_float32(slice(3, 7)), whole[3:7])
    with pytest.raises(CheckpointError, match="not a matrix"):
        checkpoint.weight("norm.weight")
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.norm\.weight'"):
        checkpoint.tensor("model.norm.weight")


def test_tokenizer_side(small: Path) -> None:
    checkpoint = Checkpoint.open(small)
    names = {path.name for path in checkpoint.tokenizer_files}
    assert names == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert checkpoint.chat_template == (small / "chat_template.jinja").read_text()
    assert checkpoint.generation_config["top_k"] == 20
    added = {t["content"]: t["id"] for t in json.loads((small / "tokenizer.json").read_text())["added_tokens"]}
    assert checkpoint.eos_token_ids == (added["<|endoftext|>"], added["<|im_end|>"])


def test_eos_ids_are_the_union_of_all_files(broken: Path, edit_json: Edit) -> None:
    edit_json(broken / "config.json", lambda c: c["text_config"].update(eos_token_id=3))
    edit_json(broken / "generation_config.json", lambda c: c.update(eos_token_id=[5, 4]))
    edit_json(broken / "tokenizer_config.json", lambda c: c.update(eos_token={"content": "<|im_start|>"}))
    start = Checkpoint.open(broken).eos_token_ids[-1]
    assert Checkpoint.open(broken).eos_token_ids == (3, 4, 5, start)
    (broken / "generation_config.json").unlink()
    assert Checkpoint.open(broken).eos_token_ids == (3, start)
    edit_json(broken / "config.json", lambda c: c["text_config"].update(eos_token_id=1024))
    refused(broken, "eos_token_id 1024 is outside the vocabulary of 1024")
    edit_json(broken / "config.json", lambda c: c["text_config"].update(eos_token_id="<|im_end|>"))
    refused(broken, "text_config.eos_token_id must be an integer")
    edit_json(broken / "config.json", lambda c: c["text_config"].update(eos_token_id=3))
    edit_json(broken / "tokenizer_config.json", lambda c: c.update(eos_token="</s>"))
    refused(broken, "eos_token '</s>' is not in tokenizer.json")


def test_chat_template_inside_the_tokenizer_config(broken: Path, edit_json: Edit) -> None:
    (broken / "chat_template.jinja").unlink()
    assert "the checkpoint has no chat template" in Checkpoint.open(broken).warnings
    edit_json(broken / "tokenizer_config.json", lambda c: c.update(chat_template="{{ 1 }}"))
    assert Checkpoint.open(broken).chat_template == "{{ 1 }}"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    edit_json(broken / "tokenizer_config.json", lambda c: c.update(chat_template=named))
    assert Checkpoint.open(broken).chat_template == "yes"
    edit_json(broken / "tokenizer_config.json", lambda c: c.update(chat_template=5))
    refused(broken, "chat_template must be")


def test_tokens_beyond_the_embedding(broken: Path, edit_json: Edit) -> None:
    edit_json(broken / "tokenizer.json", lambda t: t["added_tokens"][-1].update(id=1024))
    refused(broken, "tokenizer.json: token '</think>' has id 1024, the vocabulary is 1024")


def test_missing_tokenizer_is_a_warning(broken: Path) -> None:
    (broken / "tokenizer.json").unlink()
    assert "the checkpoint has no tokenizer.json" in Checkpoint.open(broken).warnings


def test_missing_files(broken: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "is not a checkpoint folder")
    (broken / WEIGHTS).rename(broken / "pytorch_model.bin")
    refused(broken, "neither model.safetensors nor model.safetensors.index.json")
    (broken / "config.json").unlink()
    refused(broken, "config.json cannot be read")


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, "\udcff"])
def test_unreadable_config(broken: Path, content: str) -> None:
    (broken / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    refused(broken, "config.json")


def test_truncated_weights(broken: Path) -> None:
    content = (broken / WEIGHTS).read_bytes()
    (broken / WEIGHTS).write_bytes(content[: len(content) // 2])
    refused(broken, "model.safetensors is truncated")


def test_missing_extra_and_misshapen_tensors_are_named(broken: Path, edit_tensors: Edit) -> None:
    path = broken / WEIGHTS
    intact = path.read_bytes()
    name = PREFIX + "layers.1.self_attn.q_proj.weight"
    for change, named in (
        (lambda t: t.pop(name), "lacks 'layers.1.self_attn.q_proj.weight'"),
        (lambda t: [t.pop(n) for n in list(t) if "self_attn" in n and "mtp" not in n], "'.* and 1 more tensors"),
        (lambda t: t.update({PREFIX + "layers.2.A_log": t[name]}), "not account for: '.*layers.2.A_log'"),
        (lambda t: t.update({name: t[name].T.copy()}), r"has shape \[32, 512\], config.json implies \[512, 32\]"),
        (lambda t: t.update({name: t[name].view(np.int16)}), "q_proj.weight' is I16; readable are BF16, F16, F32"),
        (lambda t: t.update({"model." + name.removeprefix(PREFIX): t[name]}), "q_proj.weight' is there twice"),
        (lambda t: t.pop("mtp.fc.weight"), "lacks 'mtp.fc.weight'"),
    ):
        path.write_bytes(intact)
        edit_tensors(path, change)
        refused(broken, named)


def test_mixed_float_dtypes_are_read(broken: Path, edit_tensors: Edit) -> None:
    name = PREFIX + "layers.0.linear_attn.A_log"
    edit_tensors(broken / WEIGHTS, lambda t: t.update({name: t[name].astype(np.float32)}))
    assert Checkpoint.open(broken).tensor("layers.0.linear_attn.A_log").dtype == np.float32


def test_vision_tower_is_ignored(broken: Path, edit_tensors: Edit) -> None:
    edit_tensors(broken / WEIGHTS, lambda t: t.update({"model.visual.patch_embed.proj.weight": np.zeros((4, 3))}))
    assert Checkpoint.open(broken).warnings == ()


def test_head_under_any_prefix(broken: Path, edit_tensors: Edit) -> None:
    edit_tensors(broken / WEIGHTS, lambda t: t.update({"language_model.lm_head.weight": t.pop("lm_head.weight")}))
    assert Checkpoint.open(broken).tensor("lm_head.weight").shape == (1024, 32)


def test_mtp_in_config_but_not_in_the_file(broken: Path, edit_tensors: Edit) -> None:
    edit_tensors(broken / WEIGHTS, lambda t: [t.pop(n) for n in list(t) if n.startswith("mtp.")] and None)
    checkpoint = Checkpoint.open(broken)
    assert checkpoint.spec.mtp_layers == 0
    assert any("no mtp.* tensors" in warning for warning in checkpoint.warnings)


def test_mtp_in_the_file_but_not_in_config(broken: Path, edit_json: Edit) -> None:
    edit_json(broken / "config.json", lambda c: c["text_config"].pop("mtp_num_hidden_layers"))
    assert Checkpoint.open(broken).spec.mtp_layers == 1
    edit_json(broken / "config.json", lambda c: c["text_config"].update(mtp_num_hidden_layers=0))
    checkpoint = Checkpoint.open(broken)
    assert checkpoint.spec.mtp_layers == 0
    assert any("15 mtp.* tensors are ignored" in warning for warning in checkpoint.warnings)
    with pytest.raises(CheckpointError):
        checkpoint.tensor("mtp.fc.weight")


def test_head_of_a_tied_checkpoint(broken: Path, edit_json: Edit, edit_tensors: Edit) -> None:
    def tie(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True

    edit_json(broken / "config.json", tie)
    refused(broken, "lm_head.weight differs from embed_tokens.weight")
    edit_tensors(broken / WEIGHTS, lambda t: t.update({"lm_head.weight": t[PREFIX + "embed_tokens.weight"]}))
    assert any("lm_head.weight repeats" in warning for warning in Checkpoint.open(broken).warnings)
    edit_tensors(broken / WEIGHTS, lambda t: t.pop("lm_head.weight"))
    assert Checkpoint.open(broken).warnings == ()


def test_broken_shards(broken_shards: Path, edit_json: Edit) -> None:
    index = broken_shards / "model.safetensors.index.json"
    intact = index.read_text()
    second = "model-00002-of-00003.safetensors"

    def point(shard: Any) -> Change:
        return lambda value: value["weight_map"].update({"model.norm.weight": shard})

    for change, named in (
        (lambda v: v.pop("weight_map"), "weight_map is missing"),
        (lambda v: v.update(weight_map={}), "weight_map is missing, empty"),
        (point("../config.json"), "not a plain file name"),
        (point(".."), "shard .. is missing"),
        (point(7), "not a plain file name"),
        (point("model-00004-of-00003.safetensors"), "shard model-00004-of-00003.safetensors is missing"),
        (point("model-00001-of-00003.safetensors"), "model-00001.* lacks 'model.norm.weight'"),
        (lambda v: v["weight_map"].pop("model.embed_tokens.weight"), "holds 'model.embed_tokens.weight', which"),
    ):
        index.write_text(intact)
        edit_json(index, change)
        refused(broken_shards, named)
    index.write_text(intact)
    content = (broken_shards / second).read_bytes()
    (broken_shards / second).write_bytes(content[:-1])
    refused(broken_shards, f"{second} is truncated")
    (broken_shards / second).unlink()
    refused(broken_shards, f"shard {second} is missing")


def test_content_hash(small: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    first = Checkpoint.open(small).content_hash(lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == sum(p.stat().st_size for p in small.iterdir())
    copy = Path(shutil.copytree(small, tmp_path / "copy"))
    (copy / "README.md").write_text("not part of the checkpoint")
    assert Checkpoint.open(copy).content_hash() == first
    for name in ("config.json", "chat_template.jinja", "generation_config.json"):
        original = (copy / name).read_bytes()
        (copy / name).write_bytes(original + b"\n")
        assert Checkpoint.open(copy).content_hash() != first
        (copy / name).write_bytes(original)
    data = bytearray((copy / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (copy / WEIGHTS).write_bytes(data)
    assert Checkpoint.open(copy).content_hash() != first
