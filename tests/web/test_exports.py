"""Packages of float16 and with a cache of 8 bits in JavaScript: the tokens that Python's runtime chooses."""

from pathlib import Path

import pytest
import torch
import transformers

import onnx_textgen
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH, Precision
from onnx_textgen_export import export
from support.node import Node


def small_llama() -> "transformers.PreTrainedModel":
    """Heads of 32 numbers, as the kernels over 8 bits take several at a time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, max_position_embeddings=512)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "graph"), [("fp16", GRAPH), ("int8", INT8_CACHE_GRAPH)])
def test_the_tokens_are_pythons(node: Node, tmp_path: Path, precision: Precision, graph: str) -> None:
    folder = export(small_llama(), tmp_path / "out", precision=precision, int8_cache=graph == INT8_CACHE_GRAPH).folder
    model = onnx_textgen.load(folder / graph, device="cpu", threads=1)
    prompts = [1, 2, 3, 4], [7] * 140, [9]
    wanted = [list(model.generate(prompt, temperature=0, max_new_tokens=20).token_ids) for prompt in prompts]
    for runtime in ("node", "web"):
        handle = node.call("open", runtime, str(folder), {"graph": graph})
        found = [node.call("generate", handle, prompt, {"temperature": 0, "max_new_tokens": 20}) for prompt in prompts]
        assert [[chunk["token_id"] for chunk in each["chunks"]] for each in found] == wanted, runtime
