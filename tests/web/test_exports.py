"""Packages of float16 and with a cache of 8 bits in JavaScript: the tokens that Python's runtime chooses."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH, MANIFEST, Precision, manifest_digest
from onnx_textgen_export import export
from onnx_textgen_export.passes.quantization.options import DEFAULTS
from support.node import Node

LONG_ROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 6.0,
        "original_max_position_embeddings": 48,
        "short_factor": [1.0] * 16,
        "long_factor": [1.5 + place * 0.3 for place in range(16)],
    }
}


def small_llama(**settings: Any) -> transformers.PreTrainedModel:
    """Heads of 32 numbers, as the kernels over 8 bits take several at a time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, max_position_embeddings=512, **settings)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "graph"), [("fp16", GRAPH), ("int8", INT8_CACHE_GRAPH)])
def test_the_tokens_are_pythons(node: Node, tmp_path: Path, precision: Precision, graph: str) -> None:
    # Exact products, as those that round to 8 bits depend on the processor.
    exact = dataclasses.replace(DEFAULTS["int8"], accuracy_level=0) if precision == "int8" else None
    has_int8_cache = graph == INT8_CACHE_GRAPH
    folder = export(small_llama(), tmp_path / "out", precision=precision, quantization=exact, int8_cache=has_int8_cache).folder
    model = onnx_textgen.load(folder / graph, device="cpu", threads=1)
    prompts = [1, 2, 3, 4], [7] * 140, [9]
    wanted = [list(model.generate(prompt, temperature=0, max_new_tokens=20).token_ids) for prompt in prompts]
    for runtime in ("node", "web"):
        handle = node.call("open", runtime, str(folder), {"graph": graph})
        assert [greedy(node, handle, prompt) for prompt in prompts] == wanted, runtime


@pytest.mark.slow
def test_a_text_that_crosses_a_rotary_switch_is_computed_again(node: Node, tmp_path: Path) -> None:
    """The keys of a long text are rotated by other frequencies; without the note in the graph the tokens would differ."""
    folder = export(small_llama(**LONG_ROPE), tmp_path / "out").folder
    model = onnx_textgen.load(folder, device="cpu", threads=1)
    prompts = [1, 2, 3], [7, 8] * 20, [9] * 60  # the first two cross it while they are continued
    wanted = [list(model.generate(prompt, temperature=0, max_new_tokens=60).token_ids) for prompt in prompts]
    handle = node.call("open", "node", str(folder))
    assert [greedy(node, handle, prompt, 60) for prompt in prompts] == wanted

    graph = onnx.load(folder / GRAPH, load_external_data=False)
    del graph.metadata_props[:]
    onnx.save(graph, folder / GRAPH)
    value = json.loads((folder / MANIFEST).read_text())
    value["files"][GRAPH] = dataclasses.asdict(file_record(folder / GRAPH))
    (folder / MANIFEST).write_text(json.dumps(value | {"sha256": manifest_digest(value)}))
    without = node.call("open", "node", str(folder))
    assert greedy(node, without, prompts[0], 60) != wanted[0]


def greedy(node: Node, handle: int, prompt: list[int], count: int = 20) -> list[int]:
    """The likeliest tokens after a prompt."""
    found = node.call("generate", handle, prompt, {"temperature": 0, "max_new_tokens": count})
    return [chunk["token_id"] for chunk in found["chunks"]]
