"""The file format: what is written is read back, and a file that is not sound is refused when it is opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.checkpoint.safetensors_file import DTYPES, TensorFile, write_safetensors
from edgellm.errors import CheckpointError


def write_raw(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    """A file with exactly this header and data."""
    blob = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(blob) if length is None else length).to_bytes(8, "little") + blob + data)
    return path


def entry(start: int, stop: int, shape: list[int], dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_written_tensors_are_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        f"t{i}": rng.integers(0, 2, 6 * dtype.itemsize, dtype=np.uint8).view(dtype).reshape(2, 3)
        for i, dtype in enumerate(DTYPES.values())
    } | {"scalar": np.array(3.5, np.float32), "empty": np.zeros((0, 4), np.float32)}
    path = tmp_path / "f.safetensors"
    write_safetensors(path, {n: (a.dtype, a.shape) for n, a in arrays.items()}, arrays.values())
    file = TensorFile.open(path)
    for name, array in arrays.items():
        read = file.tensor(name)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()
        assert not read.flags.writeable


def test_the_reference_library_agrees(tmp_path: Path) -> None:
    arrays = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(5, dtype=np.float16)}
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    write_safetensors(ours, {n: (a.dtype, a.shape) for n, a in arrays.items()}, arrays.values())
    safetensors.numpy.save_file(arrays, theirs)
    for name, array in safetensors.numpy.load_file(ours).items():
        np.testing.assert_array_equal(array, arrays[name])
    file = TensorFile.open(theirs)
    for name, array in arrays.items():
        np.testing.assert_array_equal(file.tensor(name), array)


def test_unaligned_data_is_readable(tmp_path: Path) -> None:
    header = json.dumps({"a": entry(0, 8, [2], "F32")}).encode()
    header += b" " * ((1 - len(header)) % 4)  # the data starts at an odd address
    path = write_raw(tmp_path / "f", header, np.array([1.5, -2], np.float32).tobytes())
    array = TensorFile.open(path).tensor("a")
    assert array.tolist() == [1.5, -2]
    assert array.flags.aligned


def test_the_writer_keeps_its_promise(tmp_path: Path) -> None:
    layout = {"a": (np.dtype(np.float32), (2,))}
    with pytest.raises(ValueError, match="announced"):
        write_safetensors(tmp_path / "f", layout, [np.zeros(3, np.float32)])
    with pytest.raises(ValueError, match="shorter"):
        write_safetensors(tmp_path / "f", layout, [])


@pytest.mark.parametrize(
    ("header", "data", "named"),
    [
        (b"{", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b"\xff\xfe{}", b"", "not valid JSON"),
        (b"[]", b"", "not a JSON object"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}', b"", "'a' twice"),
        ({"a": 1}, b"", "'a': the header entry"),
        ({"a": entry(0, 1, [1], "F4")}, b"x", "dtype 'F4'"),
        ({"a": entry(0, 1, [1]) | {"dtype": 5}}, b"x", "dtype 5"),
        ({"a": entry(0, 1, [-1])}, b"x", "shape"),
        ({"a": entry(0, 1, [1]) | {"shape": "1"}}, b"x", "shape"),
        ({"a": entry(0, 1, [True])}, b"x", "shape"),
        ({"a": entry(1, 0, [1])}, b"x", "data_offsets"),
        ({"a": entry(0, 1, [1]) | {"data_offsets": [0]}}, b"x", "data_offsets"),
        ({"a": entry(0, 1, [1]) | {"data_offsets": [-1, 0]}}, b"x", "data_offsets"),
        ({"a": entry(0, 3, [1], "F32")}, b"xxx", "needs 4"),
        ({"a": entry(0, 2**50, [2**50])}, b"x", "shape"),
        ({"a": entry(0, 2**40, [2**40])}, b"x", "truncated: tensor 'a'"),
        ({"a": entry(0, 4, [4]), "b": entry(2, 6, [4])}, b"x" * 6, "'b' overlaps 'a'"),
        ({"a": entry(0, 4, [4]), "b": entry(0, 4, [4])}, b"x" * 4, "overlaps"),
        ({"a": entry(0, 2, [2]), "b": entry(4, 6, [2])}, b"x" * 6, "2 unused bytes before tensor 'b'"),
        ({"a": entry(0, 2, [2])}, b"x" * 6, "4 unused bytes after"),
    ],
)
def test_unsound_headers(tmp_path: Path, header: Any, data: bytes, named: str) -> None:
    with pytest.raises(CheckpointError, match=named) as caught:
        TensorFile.open(write_raw(tmp_path / "model.safetensors", header, data))
    assert "model.safetensors" in str(caught.value)


def test_files_that_are_no_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(CheckpointError, match="cannot be read"):
        TensorFile.open(path)
    for content, named in ((b"", "truncated"), (b"1234567", "truncated"), (b"version https://git-lfs", "not a safet")):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=named):
            TensorFile.open(path)
    with pytest.raises(CheckpointError, match="header ends at byte 1008"):
        TensorFile.open(write_raw(path, {}, b"", length=1000))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "sound"
    arrays = {"a": np.arange(4, dtype=np.float32), "b": np.arange(6, dtype=np.int8).reshape(2, 3)}
    write_safetensors(path, {n: (a.dtype, a.shape) for n, a in arrays.items()}, arrays.values())
    return path


def test_every_truncation_is_found(sound: Path, tmp_path: Path) -> None:
    content = sound.read_bytes()
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            TensorFile.open(tmp_path / "cut")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_an_error_or_harmless(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "bad").write_bytes(content)
    try:
        file = TensorFile.open(tmp_path / "bad")
    except CheckpointError:
        return
    for name in file.entries:
        assert file.tensor(name).nbytes <= len(content)
