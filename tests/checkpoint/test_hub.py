"""resolve: folders are returned, repository ids are downloaded with pins and filters, errors are plain."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from edgellm.checkpoint.hub import ALLOWED_FILES, resolve
from edgellm.errors import CheckpointError, ConfigError, EdgeLLMError
from edgellm.models import shipped


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    made: list[tuple[str, dict[str, Any]]] = []

    def download(repo: str, **options: Any) -> str:
        made.append((repo, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return made


def test_a_folder_is_itself(calls: list[Any], tmp_path: Path) -> None:
    assert resolve(tmp_path) == resolve(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match="revision 'main' has no meaning"):
        resolve(tmp_path, revision="main")
    assert calls == []


def test_a_shipped_name_is_its_folder(calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edge-tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("edge-tiny") == shipped("edge-tiny")
    assert resolve("./edge-tiny") == Path("edge-tiny")  # a folder of that name
    with pytest.raises(ConfigError, match="revision 'v1' has no meaning"):
        resolve("edge-tiny", revision="v1")
    assert shipped("..") is None
    assert calls == []


def test_a_repository_is_downloaded(calls: list[Any], tmp_path: Path) -> None:
    assert resolve("owner/name-1.0_x", revision="abc", offline=True, cache_dir=tmp_path / "cache") == tmp_path
    [(repo, options)] = calls
    assert repo == "owner/name-1.0_x"
    assert options["revision"] == "abc"
    assert options["local_files_only"] is True
    assert options["cache_dir"] == tmp_path / "cache"
    assert options["allow_patterns"] == list(ALLOWED_FILES)


def test_only_what_is_needed_is_fetched() -> None:
    wanted = ("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json")
    for name in (*wanted, "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert any(fnmatch(name, pattern) for pattern in ALLOWED_FILES)
    for name in ("pytorch_model.bin", "modeling_custom.py", "model.gguf", "README.md", "model.onnx"):
        assert not any(fnmatch(name, pattern) for pattern in ALLOWED_FILES)


@pytest.mark.parametrize("name", ["missing-folder", "./a/b", "/no/such/folder", "a/b/c", "owner/", "-x/y", "a b/c", ""])
def test_neither_folder_nor_repository(calls: list[Any], name: str) -> None:
    if name:
        with pytest.raises(ConfigError, match="neither an existing folder nor a repository id"):
            resolve(name)
    with pytest.raises(ConfigError):
        resolve(Path("owner/name"))
    assert calls == []


RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        (errors.RepositoryNotFoundError("x", response=RESPONSE), "owner/name does not exist on the hub"),
        (errors.GatedRepoError("x", response=RESPONSE), "owner/name is gated"),
        (errors.RevisionNotFoundError("x", response=RESPONSE), "owner/name has no revision 'v9'"),
        (errors.LocalEntryNotFoundError("x"), "owner/name at revision v9 is not available"),
        (errors.HFValidationError("x"), "not a valid repository id"),
        (OSError("No space left on device"), "failed: No space left"),
        (RuntimeError("consistency check failed"), "consistency check"),
        (httpx.ConnectError("connection refused"), "connection refused"),
    ],
)
def test_errors(monkeypatch: pytest.MonkeyPatch, raised: Exception, named: str) -> None:
    def download(repo: str, **options: Any) -> str:
        raise raised

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(EdgeLLMError, match=named):
        resolve("owner/name", revision="v9")


def test_offline_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real function, with an empty cache: it must not try to connect."""

    def no_connection(*args: Any, **options: Any) -> None:
        raise AssertionError("tried to connect")

    monkeypatch.setattr("socket.socket.connect", no_connection)
    with pytest.raises(CheckpointError, match="offline, and it is not in the cache"):
        resolve("owner/name", offline=True, cache_dir=tmp_path)
