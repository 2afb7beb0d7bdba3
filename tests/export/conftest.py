"""Packages that several tests look at, each exported once."""

import hashlib
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
import transformers
from torch import nn

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


def content_of(module: nn.Module) -> tuple[object, ...]:
    """What a model of transformers computes: its layers, config and numbers. Other modules, and those on disk, equal no other."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if not isinstance(module, transformers.PreTrainedModel) or any(tensor.is_meta for _, tensor in tensors):
        return (module,)
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().flatten().contiguous().view(torch.uint8).numpy())
    return type(module), vars(module).get("forward"), repr(module), repr(module.config), digest.hexdigest()


@pytest.fixture(scope="session")
def graphs() -> dict[tuple[object, ...], ir.Model]:
    """What `traced_once` has traced: by the module's content, by what the source says of it, and by target and outputs."""
    return {}


@pytest.fixture
def traced_once(graphs: dict[tuple[object, ...], ir.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of equal modules get copies of one graph: tracing it takes longer than all the rest of an export."""
    traced = exported_graphs.trace

    def trace(source: Source, target: Target, weights: Weights, **outputs: bool) -> ir.Model:
        told = source.geometry, source.cache, source.attention_path, source.one_token
        key = *content_of(source.module), repr(told), target, *sorted(outputs.items())
        if key not in graphs:
            graphs[key] = traced(source, target, weights, **outputs)
        return graphs[key].clone()

    monkeypatch.setattr(exported_graphs, "trace", trace)
