"""Names, the environment of Dynamo's runtime, the folder of a model, and the command's refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import edgellm

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import Recipe
from edgellm.errors import ConfigError
from edgellm.models import shipped
from edgellm.server.dynamo.model_folder import model_folder
from edgellm.server.dynamo.settings import ENVIRONMENT, REASONING_PARSERS, WorkerSettings, environment
from edgellm.text.dialects import DIALECTS


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    checkpoint = shipped("edge-tiny")
    assert checkpoint is not None
    out = tmp_path_factory.mktemp("bundle") / "edge-tiny.bundle"
    build_bundle(Checkpoint.open(checkpoint), out, Recipe(), force=False)
    return Bundle.open(out)


def test_the_defaults_need_no_services() -> None:
    assert environment({}, None) == dict(ENVIRONMENT)
    assert ENVIRONMENT["DYN_DISCOVERY_BACKEND"] == "file"
    assert ENVIRONMENT["DYN_TCP_RPC_HOST"] == ENVIRONMENT["DYN_EVENT_PLANE_HOST"] == "127.0.0.1"


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_what_the_operator_set_stays(name: str) -> None:
    assert name not in environment({name: "own"}, None)


def test_the_discovery_folder(tmp_path: Path) -> None:
    assert environment({}, tmp_path)["DYN_FILE_KV"] == str(tmp_path)
    assert environment({"DYN_FILE_KV": str(tmp_path)}, tmp_path)["DYN_FILE_KV"] == str(tmp_path)
    with pytest.raises(ConfigError, match="DYN_FILE_KV"):
        environment({"DYN_FILE_KV": "/elsewhere"}, tmp_path)
    with pytest.raises(ConfigError, match="etcd"):
        environment({"DYN_DISCOVERY_BACKEND": "etcd"}, tmp_path)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "ä", "a b"])
@pytest.mark.parametrize("field", ["namespace", "component", "endpoint"])
def test_names_that_would_be_another_path_are_refused(field: str, name: str) -> None:
    with pytest.raises(ConfigError, match=field):
        WorkerSettings(model="m", **{field: name})  # type: ignore[arg-type]


def test_the_path() -> None:
    assert WorkerSettings(model="m", namespace="n-1", component="c").path == "n-1.c.generate"


def test_every_dialect_has_its_parsers_in_dynamo() -> None:
    core = pytest.importorskip("dynamo._core", reason="needs ai-dynamo-runtime (extra dynamo)")
    assert set(DIALECTS) <= set(core.get_tool_parser_names())
    assert set(REASONING_PARSERS) <= set(DIALECTS)
    assert set(REASONING_PARSERS.values()) <= set(core.get_reasoning_parser_names())


def test_the_model_folder_has_what_the_frontend_needs(bundle: Bundle, tmp_path: Path) -> None:
    folder = model_folder(bundle, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert ModelSpec.from_dict(config) == bundle.manifest.spec
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert config["eos_token_id"] == list(bundle.manifest.eos_token_ids)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (bundle.path / name).read_bytes()


def test_workers_of_one_bundle_share_a_folder(bundle: Bundle, tmp_path: Path) -> None:
    first = model_folder(bundle, tmp_path)
    stamp = (first / "config.json").stat().st_mtime_ns
    assert model_folder(bundle, tmp_path) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    assert [entry.name for entry in tmp_path.iterdir()] == [first.name]


def test_the_folder_is_in_the_users_cache(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_folder(bundle, None).parent == tmp_path / "edgellm" / "dynamo"


def test_a_folder_that_cannot_be_written(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="model_dir"):
        model_folder(bundle, tmp_path / "file")


def test_there_is_one_kind_of_worker(tmp_path: Path) -> None:
    result = edgellm("worker", tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert "--dynamo" in str(result.exception)


def test_the_extra_is_named_where_the_runtime_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    for name in [name for name in sys.modules if name.split(".")[0] == "dynamo"] or ["dynamo"]:
        monkeypatch.setitem(sys.modules, name, hidden)
    monkeypatch.setitem(sys.modules, "dynamo", hidden)
    result = edgellm("worker", "--dynamo", tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert "edgellm[dynamo]" in str(result.exception)
