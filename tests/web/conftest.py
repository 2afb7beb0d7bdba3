"""The JavaScript of `runtime/web`, in a process of Node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import onnx_textgen
from support.node import Node, copy_web
from support.processor import products_by_onnx_runtime


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `runtime/web` with its npm packages."""
    return copy_web(tmp_path_factory.mktemp("javascript") / "web")


@pytest.fixture(scope="session")
def node(web: Path) -> Iterator[Node]:
    """A process that calls its functions."""
    process = Node(web)
    yield process
    process.close()


@pytest.fixture(scope="session")
def story() -> onnx_textgen.Model:
    """The embedded default on one thread, in Python."""
    with products_by_onnx_runtime():
        return onnx_textgen.load(threads=1, device="cpu")


@pytest.fixture(autouse=True)
def compared(same_rounding: None) -> None:
    """Every text here is compared with another runtime's."""
