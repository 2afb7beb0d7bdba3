"""Packages that several tests look at, each exported once."""

from pathlib import Path

import onnx_ir as ir
import pytest
import transformers

import onnx_textgen
from onnx_textgen.package.manifest import Target
from onnx_textgen_export import export
from onnx_textgen_export.exporting import graphs as exported_graphs
from onnx_textgen_export.sources.source import Source
from onnx_textgen_export.weights.streamed import Weights

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


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[object, ...], ir.Model]:
    """What `traced_once` has traced in this file: by module, target, and outputs."""
    return {}


@pytest.fixture
def traced_once(graphs: dict[tuple[object, ...], ir.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of one and the same module get copies of one graph: tracing it takes longer than all the rest of an export."""
    traced = exported_graphs.trace

    def trace(source: Source, target: Target, weights: Weights, **outputs: bool) -> ir.Model:
        key = source.module, target, source.states is None, *sorted(outputs.items())
        if key not in graphs:
            graphs[key] = traced(source, target, weights, **outputs)
        return graphs[key].clone()

    monkeypatch.setattr(exported_graphs, "trace", trace)
