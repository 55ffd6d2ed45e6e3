"""`Manifest`: what a bundle says about itself, as the frozen form of its ``manifest.json``.

What must stay true: `parse` accepts exactly what `to_json` writes; a missing, unknown or misshapen field is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from edgellm.checkpoint.spec import ModelSpec
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.engine.recommended import NAMES
from edgellm.errors import BundleError, CheckpointError, RequestError

SCHEMA: Final = 2
MANIFEST_FILE: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a bundle."""

    name: str  # relative to the bundle, with forward slashes
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Device:
    """What device engines depend on. None: they do not, for they were built ahead of time, or it is not there."""

    tensorrt: str  # version of TensorRT or of TensorRT-RTX, whichever the target is
    compute_capability: str  # "SM110"
    gpu: str | None  # its name
    l4t: str | None  # of a Jetson
    cuda: str | None  # of the driver
    form: str  # of the engines, see `recipe.TensorRtRecipe`
    activations: Literal["bf16", "f16"]
    splits: int  # parts that attention cuts a context into
    kernels: Mapping[str, str]  # own kernels → hash of source, sizes and architecture


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a bundle but its contents."""

    target: str  # which executor runs it, e.g. "ort-cpu"
    edgellm: str  # version that built it
    onnxruntime: str  # version of the operators that the graphs use: an older one cannot run them
    source: str  # name of the checkpoint
    source_sha256: str  # its content hash
    spec: ModelSpec
    precision: Mapping[str, str]  # module → stored form
    block_tokens: int
    tree_nodes: int  # most nodes of one verify, root included
    prefill_chunk: int  # most tokens of one advance
    context: int  # longest context, in tokens
    eos_token_ids: tuple[int, ...]
    speculation: SpeculationParams  # defaults
    sampling: Mapping[str, Any]  # what the checkpoint recommends, by the names of `SamplingParams`
    files: tuple[FileEntry, ...]
    device: Device | None = None  # of bundles with device engines

    def to_json(self) -> str:
        """The text of ``manifest.json``: the same manifest always gives the same bytes."""
        values: dict[str, Any] = {"schema": SCHEMA}
        for entry in fields(self):
            values[entry.name] = getattr(self, entry.name)
        values |= {
            "spec": self.spec.to_dict(),
            "precision": dict(self.precision),
            "eos_token_ids": list(self.eos_token_ids),
            "speculation": asdict(self.speculation),
            "sampling": dict(self.sampling),
            "files": [asdict(entry) for entry in self.files],
            "device": None if self.device is None else asdict(self.device),
        }
        if self.device is None:
            del values["device"]
        return json.dumps(values, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Read the text of ``manifest.json``.

        Raises:
            BundleError: not JSON, another schema, or a field is missing, unknown or of the wrong form.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{MANIFEST_FILE} is not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise BundleError(f"{MANIFEST_FILE} must be a JSON object")
        schema = values.pop("schema", None)
        if schema != SCHEMA:
            raise BundleError(
                f"{MANIFEST_FILE}: schema is {schema!r:.40}, this version reads {SCHEMA}: rebuild the bundle"
            )
        values.setdefault("device", None)
        _same_keys(values, {entry.name for entry in fields(cls)}, "")
        for name in ("target", "edgellm", "onnxruntime", "source", "source_sha256"):
            _text(values, name)
        for name in ("block_tokens", "tree_nodes", "prefill_chunk", "context"):
            _positive(values, name)
        return cls(
            **{
                **values,
                "spec": _spec(values["spec"]),
                "precision": _precision(values["precision"]),
                "eos_token_ids": _token_ids(values["eos_token_ids"]),
                "speculation": _speculation(values["speculation"]),
                "sampling": _sampling(values["sampling"]),
                "files": _files(values["files"]),
                "device": _device(values["device"]),
            }
        )


def _spec(value: Any) -> ModelSpec:
    try:
        return ModelSpec.from_dict(_table(value, "spec"))
    except CheckpointError as error:
        raise BundleError(f"{MANIFEST_FILE}: spec: {error}") from error


def _precision(value: Any) -> dict[str, str]:
    table = _table(value, "precision")
    for name in table:
        _text(table, name)
    return table


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise _error("eos_token_ids", "must be an array of token ids")
    return tuple(value)


def _speculation(value: Any) -> SpeculationParams:
    table = _table(value, "speculation")
    _same_keys(table, {entry.name for entry in fields(SpeculationParams)}, "speculation.")
    try:
        return SpeculationParams(**table)
    except RequestError as error:
        raise BundleError(f"{MANIFEST_FILE}: {error}") from error


def _sampling(value: Any) -> dict[str, Any]:
    table = _table(value, "sampling")
    if unknown := sorted(table.keys() - set(NAMES)):
        raise _error(f"sampling.{unknown[0]}", "is unknown")
    try:
        SamplingParams(**table)
    except RequestError as error:
        raise BundleError(f"{MANIFEST_FILE}: sampling.{error}") from error
    return table


def _files(value: Any) -> tuple[FileEntry, ...]:
    if not isinstance(value, list) or not value:
        raise _error("files", "must be an array that is not empty")
    entries = []
    for item in value:
        table = _table(item, "files[]")
        _same_keys(table, {entry.name for entry in fields(FileEntry)}, "files[].")
        for name in ("name", "sha256"):
            _text(table, name)
        if type(table["bytes"]) is not int or table["bytes"] < 0:
            raise _error("files[].bytes", "must be a size")
        path = PurePosixPath(table["name"])
        if path.is_absolute() or ".." in path.parts or str(path) in (".", MANIFEST_FILE):
            raise _error("files[].name", f"{table['name']!r:.80} is not a file inside the bundle")
        entries.append(FileEntry(**table))
    if len({entry.name for entry in entries}) != len(entries):
        raise _error("files", "names a file twice")
    return tuple(entries)


def _device(value: Any) -> Device | None:
    if value is None:
        return None
    table = _table(value, "device")
    _same_keys(table, {entry.name for entry in fields(Device)}, "device.")
    for name in ("tensorrt", "compute_capability", "form", "activations"):
        _text(table, name, "device.")
    _positive(table, "splits", "device.")
    if table["activations"] not in ("bf16", "f16"):
        raise _error("device.activations", "must be bf16 or f16")
    for name in ("gpu", "l4t", "cuda"):
        if table[name] is not None:
            _text(table, name, "device.")
    kernels = _table(table["kernels"], "device.kernels")
    for name in kernels:
        _text(kernels, name, "device.kernels.")
    return Device(**table)


def _same_keys(values: Mapping[str, Any], known: set[str], where: str) -> None:
    if missing := sorted(known - values.keys()):
        raise _error(where + missing[0], "is missing")
    if unknown := sorted(values.keys() - known):
        raise _error(where + unknown[0], "is unknown")


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _error(name, "must be an object")
    return value


def _text(values: Mapping[str, Any], name: str, where: str = "") -> None:
    if not isinstance(values[name], str) or not values[name]:
        raise _error(where + name, "must be a string that is not empty")


def _positive(values: Mapping[str, Any], name: str, where: str = "") -> None:
    if type(values[name]) is not int or values[name] < 1:
        raise _error(where + name, "must be a positive integer")


def _error(name: str, problem: str) -> BundleError:
    return BundleError(f"{MANIFEST_FILE}: {name} {problem}")
