"""Packages that several tests look at, each exported once."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from torch.onnx._internal.exporter._registration import ONNXRegistry

import onnx_textgen
from onnx_textgen.package.manifest import Target
from onnx_textgen_export import export
from onnx_textgen_export.tracing import tracer
from support.traced_graphs import remembered

TARGETS: tuple[Target, ...] = ("ort", "standard")


@pytest.fixture(scope="session")
def stories(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trained stories260K checkpoint at both targets, by target."""
    folder = tmp_path_factory.mktemp("stories")
    checkpoint = shared / "checkpoints" / "stories260K"
    return {target: export(checkpoint, folder / target, target=target).folder for target in TARGETS}


@pytest.fixture(scope="session")
def tiny_pair(shared: Path, stories: dict[str, Path]) -> tuple[transformers.LlamaForCausalLM, onnx_textgen.Model]:
    """The trained stories260K in transformers, and its package."""
    model = transformers.LlamaForCausalLM.from_pretrained(shared / "checkpoints" / "stories260K").eval()
    return model, onnx_textgen.load(stories["ort"], device="cpu", threads=1)


@pytest.fixture(scope="session")
def traced_graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of traced graphs of this run, which its processes share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "traced"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True, scope="session")
def traced_once(traced_graphs: Path) -> Iterator[None]:
    """Exports of equal modules share one trace, in all processes; PyTorch reads the operators of ONNX once in each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        patch.setattr(tracer, "trace_by_pytorch", remembered(traced_graphs, tracer.trace_by_pytorch))
        yield
