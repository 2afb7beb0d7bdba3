"""A table that embedding and output layer share lies once in the file, and ONNX Runtime has no reason to copy it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import transformers
from onnx.external_data_helper import ExternalDataInfo

from onnx_textgen_export import export
from onnx_textgen_export.calibration.attempts import Budget

SIZES = {"vocab_size": 1500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_no_node_reads_constants_alone_and_the_table_is_stored_once(precision: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True)
    source = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # one's own token stands out, as training makes it, so that int4 does not change it
        source.get_input_embeddings().weight.normal_()
    made = export(source, tmp_path / "out", precision=precision, budget=Budget(strict_bits=True) if precision != "fp32" else None)
    graph = onnx.load(made.folder / "model.onnx", load_external_data=False).graph
    constants = {each.name: each for each in graph.initializer}
    folded = [node.op_type for node in graph.node if all(name in constants for name in node.input if name)]
    assert set(folded) <= {"Cast", "Range"}, "codes of scales, and positions, are small; a copy of the table would not be"
    table = next(node.input[0] for node in graph.node if node.op_type.startswith("Gather"))
    head = next(node.input[1] for node in graph.node if "logits" in node.output)
    places = {(info.offset, info.length) for info in (ExternalDataInfo(constants[name]) for name in (table, head))}
    assert len(places) == 1
    assert table != head, "ONNX Runtime lets go of what only a product reads"
    bits = {"fp32": 32, "int8": 8, "int4": 4}[precision]
    assert places.pop()[1] == SIZES["vocab_size"] * SIZES["hidden_size"] * bits // 8
