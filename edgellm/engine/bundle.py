"""`Bundle`: an engine bundle on disk, checked when opened and written whole or not at all.

What must stay true: after `Bundle.open` returned, every file that the manifest names is there with its size, and with
its hash as far as `verify` asked; this installation can run the bundle. Opening needs no torch, no transformers and no
network. `staged` never leaves a folder under the final name that is not a complete bundle.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from edgellm.engine.manifest import MANIFEST_FILE, FileEntry, Manifest
from edgellm.engine.trt.api import TENSORRT_TARGETS, release
from edgellm.engine.trt.machine import misfit
from edgellm.errors import BundleError, ConfigError

TARGETS: Final = ("ort-cpu", *TENSORRT_TARGETS)
FULL_BELOW: Final = 1 << 30  # total bytes below which every file is hashed by default
SMALL: Final = 64 << 20  # files up to this size are hashed even by "quick"
_CHUNK: Final = 16 << 20

Verify = Literal["full", "quick"]


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle."""

    path: Path
    manifest: Manifest
    fingerprint: str  # SHA-256 of the manifest, hence of all file hashes

    @classmethod
    def open(cls, path: str | Path, verify: Verify | None = None) -> Bundle:
        """Open the bundle folder `path`.

        Args:
            verify: "full" hashes every file; "quick" compares all sizes and hashes only files up to 64 MiB. By default
                full below 1 GiB in all, else quick.

        Raises:
            BundleError: naming the file, field or version that is missing, altered or does not fit.
        """
        folder = Path(path)
        if not (folder / MANIFEST_FILE).is_file():
            raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST_FILE}")
        try:
            text = (folder / MANIFEST_FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{folder / MANIFEST_FILE} cannot be read: {error}") from error
        manifest = Manifest.parse(text)
        _check_fit(folder, manifest)
        total = sum(entry.bytes for entry in manifest.files)
        _check_files(folder, manifest, verify or ("full" if total < FULL_BELOW else "quick"))
        return cls(folder, manifest, hashlib.sha256(text.encode()).hexdigest())

    def file(self, name: str) -> Path:
        """Path of the file `name`. Raises `BundleError` when the manifest does not list it."""
        if all(entry.name != name for entry in self.manifest.files):
            raise BundleError(f"{self.path}: the bundle has no file {name!r}")
        return self.path / name


def hash_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 (hex) of a file; `progress` is called with the bytes of each piece of at most 16 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
            if progress is not None:
                progress(len(piece))
    return digest.hexdigest()


def _check_fit(folder: Path, manifest: Manifest) -> None:
    if manifest.target in TENSORRT_TARGETS:
        if manifest.device is None:
            raise BundleError(f"{folder}: {MANIFEST_FILE} does not say what its engines depend on: rebuild the bundle")
        if problem := misfit(manifest.target, manifest.device):
            raise BundleError(f"{folder} does not fit: {problem}")
        return
    if manifest.target not in TARGETS:
        raise BundleError(
            f"{folder} was built for {manifest.target!r}; this version runs {', '.join(TARGETS)}: rebuild it here"
        )
    installed = importlib.metadata.version("onnxruntime")
    if release(installed) < release(manifest.onnxruntime):
        raise BundleError(
            f"{folder} needs onnxruntime {manifest.onnxruntime} or newer, this installation has {installed}: "
            "upgrade onnxruntime or rebuild the bundle here"
        )


def _check_files(folder: Path, manifest: Manifest, verify: Verify) -> None:
    for entry in manifest.files:
        path = folder / entry.name
        if not path.is_file():
            raise BundleError(f"{folder}: file {entry.name!r} is missing")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(f"{folder}: file {entry.name!r} has {size} bytes, the manifest says {entry.bytes}")
    for entry in manifest.files:  # after the cheap checks of all files
        if (verify == "full" or entry.bytes <= SMALL) and hash_file(folder / entry.name) != entry.sha256:
            raise BundleError(f"{folder}: file {entry.name!r} was altered: its SHA-256 is not the manifest's")


def list_files(folder: Path, progress: Callable[[str, int, int], None] | None = None) -> tuple[FileEntry, ...]:
    """Entries of all files under `folder`, sorted by name, each flushed to the disk.

    Args:
        progress: called with ("hash", bytes done, bytes in all).
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    total, done = sum(path.stat().st_size for path in paths), 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress("hash", done, total)

    entries = []
    for path in paths:
        digest = hash_file(path, report)
        _flush(path)
        entries.append(FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, digest))
    return tuple(entries)


@contextmanager
def staged(out: Path, *, force: bool) -> Iterator[Path]:
    """A new folder beside `out` that takes its name when the block ends without an error, and is removed otherwise.

    Raises:
        ConfigError: `out` exists and `force` is off, or `out` is something other than a bundle or an empty folder
            (that is never replaced).
    """
    _check_target(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".building", dir=out.parent))
    try:
        folder.chmod(0o777 & ~_umask())
        yield folder
        _flush(folder / MANIFEST_FILE)
        _flush(folder)
        _replace(folder, out)
        _flush(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_target(out: Path, force: bool) -> None:
    if not (out.exists() or out.is_symlink()) or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST_FILE).is_file():
        raise ConfigError(f"{out} exists and is not a bundle: it will not be replaced")
    if not force:
        raise ConfigError(f"{out} exists: use --force to replace it")


def _replace(folder: Path, out: Path) -> None:
    """Rename `folder` to `out`; an old bundle there is moved away first and put back when the rename fails."""
    if not out.exists():
        folder.rename(out)
        return
    old = folder.with_suffix(".replaced")
    out.rename(old)
    try:
        folder.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
