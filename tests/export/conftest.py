"""Packages that several tests look at, each exported once."""

from pathlib import Path

import pytest
import transformers

import onnx_textgen
from onnx_textgen.artifact import Target
from onnx_textgen_export import export

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
