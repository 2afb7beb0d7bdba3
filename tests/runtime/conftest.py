"""The embedded models, opened once."""

import shutil
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.package.locate import find_package


@pytest.fixture(scope="session")
def story() -> onnx_textgen.Model:
    """The embedded default on one thread."""
    return onnx_textgen.load(threads=1, device="cpu")


@pytest.fixture(scope="session", params=["ort", "standard"])
def exact(request: pytest.FixtureRequest) -> onnx_textgen.Model:
    """A tiny random float32 model per target, whose sums agree to the last digits: shared buffers, then a growing cache."""
    return onnx_textgen.load(Path(__file__).parents[1] / "packages" / request.param, threads=1, device="cpu")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the embedded default to damage."""
    return Path(shutil.copytree(find_package(), tmp_path / "package"))
