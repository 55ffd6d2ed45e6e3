"""A bundle is written whole or not at all, and opening it names whatever is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle, Verify
from edgellm.engine.manifest import Manifest
from edgellm.engine.recipe import Recipe
from edgellm.errors import BundleError, CheckpointError, ConfigError

DEVICE = {
    "tensorrt": "10.16",
    "compute_capability": "SM110",
    "gpu": None,
    "l4t": None,
    "cuda": None,
    "form": "split",
    "activations": "bf16",
    "splits": 10,
    "kernels": {},
}
RECIPE = Recipe(context=64, prefill_chunk=32)


@pytest.fixture
def copy(bundle: Bundle, tmp_path: Path) -> Path:
    """A bundle to break."""
    return Path(shutil.copytree(bundle.path, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_what_a_bundle_says(bundle: Bundle, checkpoint: Path) -> None:
    manifest = bundle.manifest
    assert manifest.target == "ort-cpu"
    assert manifest.source == "tiny"
    assert manifest.spec.mtp_layers == 1
    assert manifest.context == 256
    assert manifest.eos_token_ids
    assert Manifest.parse(manifest.to_json()) == manifest
    names = {entry.name for entry in manifest.files}
    assert names >= {"advance.onnx", "verify.onnx", "commit.onnx", "mtp.onnx", "weights.bin", "tokenizer.json"}
    assert names == {path.name for path in bundle.path.iterdir()} - {"manifest.json"}
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert bundle.file(name).read_bytes() == (checkpoint / name).read_bytes()
    with pytest.raises(BundleError, match="no file 'other'"):
        bundle.file("other")


@pytest.mark.parametrize("verify", ["full", "quick", None])
def test_broken_files_are_named(copy: Path, verify: Verify | None) -> None:
    weights = copy / "weights.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    with pytest.raises(BundleError, match=r"'weights.bin' has \d+ bytes, the manifest says \d+"):
        Bundle.open(copy, verify)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BundleError, match=r"'weights.bin' was altered"):
        Bundle.open(copy, verify)
    weights.unlink()
    with pytest.raises(BundleError, match=r"'weights.bin' is missing"):
        Bundle.open(copy, verify)


def test_quick_does_not_hash_large_files(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm.engine.bundle.SMALL", 1 << 20)
    weights = copy / "weights.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    Bundle.open(copy, "quick")
    with pytest.raises(BundleError, match="altered"):
        Bundle.open(copy)
    monkeypatch.setattr("edgellm.engine.bundle.FULL_BELOW", 1 << 20)
    Bundle.open(copy)


def test_not_a_bundle(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BundleError, match="is not a bundle"):
            Bundle.open(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.update(schema=1), "schema is 1, this version reads 2: rebuild"),
        (lambda m: m.pop("schema"), "schema is None"),
        (lambda m: m.update(target="tensorrt-sm110"), "built for 'tensorrt-sm110'"),
        (lambda m: m.update(onnxruntime="9.0.0"), "needs onnxruntime 9.0.0"),
        (lambda m: m.pop("spec"), "spec is missing"),
        (lambda m: m.update(extra=1), "extra is unknown"),
        (lambda m: m["spec"].pop("hidden_size"), "spec: .*hidden_size"),
        (lambda m: m.update(context=0), "context must be"),
        (lambda m: m.update(block_tokens=True), "block_tokens must be"),
        (lambda m: m.update(source=""), "source must be"),
        (lambda m: m.update(precision=[]), "precision must be"),
        (lambda m: m.update(eos_token_ids=[-1]), "eos_token_ids must be"),
        (lambda m: m["speculation"].update(steps=-1), "speculation.steps"),
        (lambda m: m["speculation"].pop("nodes"), "speculation.nodes is missing"),
        (lambda m: m.update(sampling=[]), "sampling must be"),
        (lambda m: m["sampling"].update(temperature=-1), "sampling.temperature must be"),
        (lambda m: m["sampling"].update(seed=1), "sampling.seed is unknown"),
        (lambda m: m.update(files=[]), "files must be"),
        (lambda m: m.update(device=[]), "device must be an object"),
        (lambda m: m.update(device={}), r"device\.activations is missing"),
        (lambda m: m.update(device=DEVICE | {"splits": 0}), r"device\.splits must be a positive integer"),
        (lambda m: m.update(device=DEVICE | {"activations": "f32"}), r"device\.activations must be bf16 or f16"),
        (lambda m: m.update(device=DEVICE | {"tensorrt": ""}), r"device\.tensorrt must be a string"),
        (lambda m: m.update(device=DEVICE | {"l4t": 38}), r"device\.l4t must be a string"),
        (lambda m: m.update(device=DEVICE | {"kernels": {"gdn": 1}}), r"device\.kernels\.gdn must be a string"),
        (lambda m: m["files"].append(m["files"][0]), "names a file twice"),
        (lambda m: m["files"][0].update(name="../x"), "is not a file inside the bundle"),
        (lambda m: m["files"][0].update(name="/etc/passwd"), "is not a file inside the bundle"),
        (lambda m: m["files"][0].update(bytes="1"), "files.*bytes must be"),
    ],
)
def test_wrong_manifests_are_named(copy: Path, change: Callable[[dict[str, Any]], None], named: str) -> None:
    edit(copy, change)
    with pytest.raises(BundleError, match=named):
        Bundle.open(copy)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"schema": 2}'])
def test_manifests_that_are_not_json(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(copy)


def test_the_same_build_twice_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    built = [Bundle.open(build_bundle(checkpoint, tmp_path / name, RECIPE)) for name in ("a", "b")]
    assert built[0].fingerprint == built[1].fingerprint
    other = Bundle.open(build_bundle(checkpoint, tmp_path / "c", Recipe(context=65, prefill_chunk=32)))
    assert other.fingerprint != built[0].fingerprint


def test_progress_ends_at_its_total(checkpoint: Path, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    build_bundle(checkpoint, tmp_path / "out", RECIPE, progress=lambda p, d, t: seen.setdefault(p, []).append((d, t)))
    assert list(seen) == ["checkpoint", "weights", "hash"]
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


def test_only_a_bundle_is_replaced_and_only_by_force(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is as good as none
    build_bundle(checkpoint, out, RECIPE)
    with pytest.raises(ConfigError, match="--force"):
        build_bundle(checkpoint, out, RECIPE)
    build_bundle(checkpoint, out, Recipe(context=32, prefill_chunk=32), force=True)
    assert Bundle.open(out).manifest.context == 32
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not a bundle"):
        build_bundle(checkpoint, mine, RECIPE, force=True)
    assert (mine / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize("phase", ["checkpoint", "weights", "hash"])
def test_a_build_that_fails_leaves_what_was_there(checkpoint: Path, tmp_path: Path, phase: str) -> None:
    def fail(name: str, done: int, total: int) -> None:
        if name == phase:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        build_bundle(checkpoint, out, RECIPE, progress=fail)
    assert list(tmp_path.iterdir()) == []
    build_bundle(checkpoint, out, RECIPE)
    with pytest.raises(KeyboardInterrupt):
        build_bundle(checkpoint, out, RECIPE, force=True, progress=fail)
    Bundle.open(out)
    assert list(tmp_path.iterdir()) == [out]


def test_what_cannot_be_built(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="context 40000"):
        build_bundle(checkpoint, tmp_path / "out", Recipe(context=40000))
    with pytest.raises(CheckpointError):
        build_bundle(tmp_path, tmp_path / "out", RECIPE)
    assert list(tmp_path.iterdir()) == []


def test_opening_and_running_needs_no_training_framework(bundle: Bundle) -> None:
    code = (
        "import sys; from edgellm.engine.bundle import Bundle; from edgellm.engine.registry import open_executor;"
        f"open_executor(Bundle.open({str(bundle.path)!r}), slots=1).close();"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
