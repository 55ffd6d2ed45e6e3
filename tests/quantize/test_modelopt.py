"""ModelOpt's recipe where it cannot run: each reason is named before anything is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import ConfigError
from edgellm.quantize.modelopt import quantize_with_modelopt
from edgellm.quantize.plan import named_recipe
from edgellm.quantize.writer import quantize_checkpoint


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("tiny", tmp_path_factory.mktemp("source") / "plain")


@pytest.mark.parametrize("missing", ["torch", "transformers", "modelopt.torch.quantization"])
def test_missing_packages(missing: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"pip install 'edgellm\[quantize\]'"):
        quantize_with_modelopt(source, tmp_path / "out", [[1, 2, 3]])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([], "needs texts"),
        ([[1, 2], []], "text 2 of those to calibrate on has fewer than two tokens"),
        ([[1, 1024]], "text 1 .* outside the vocabulary of 1024"),
        ([[1, -1]], "text 1 .* outside the vocabulary"),
    ],
)
def test_texts(texts: list[list[int]], named: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        quantize_with_modelopt(source, tmp_path / "out", texts)
    assert not list(tmp_path.iterdir())


def test_folders(source: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("kept")
    with pytest.raises(ConfigError, match="used exists and is not an empty folder"):
        quantize_with_modelopt(source, tmp_path / "used", [[1, 2]])
    quantize_checkpoint(source, tmp_path / "quantized", named_recipe("nvfp4"))
    with pytest.raises(ConfigError, match=r"is quantized already: layers\.0"):
        quantize_with_modelopt(tmp_path / "quantized", tmp_path / "out", [[1, 2]])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["quantized", "used"]
    assert [entry.name for entry in (tmp_path / "used").iterdir()] == ["mine"]


def test_importing_the_module_needs_no_torch() -> None:
    code = (
        "import sys, edgellm.quantize.modelopt; print(sorted({'torch', 'transformers', 'modelopt'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
