"""Ternary models, as BitNet b1.58: their matrices take 2 bits, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import onnx_textgen
from onnx_textgen.package.manifest import GRAPH, weights_files
from onnx_textgen_export import export
from onnx_textgen_export.passes.quantization.layouts import Packed
from onnx_textgen_export.passes.quantization.options import Quantization
from onnx_textgen_export.passes.quantization.quantizers import Codes, quantize_matrix, round_ternary
from onnx_textgen_export.passes.quantization.ternary import BLOCK_SIZE, is_ternary
from support.examples import examples


def ternary(weights: torch.Tensor) -> torch.Tensor:
    """Absmean rounding, equation 1 to 3 of the paper: one scale for a matrix."""
    scale = weights.abs().mean()
    return (weights / scale).round().clamp(-1, 1) * scale


def model(*, bias: bool = False) -> transformers.LlamaForCausalLM:
    torch.manual_seed(2)
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
    config = transformers.LlamaConfig(**sizes, max_position_embeddings=64, attention_bias=bias, eos_token_id=None)
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in made.model.layers.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(ternary(layer.weight))
    return made


@examples(30)
@given(outputs=st.integers(1, 9), inputs=st.integers(1, 300), seed=st.integers(0, 99), inputs_first=st.booleans())
def test_what_is_packed_in_two_bits_is_what_onnx_runtime_multiplies_with(
    outputs: int, inputs: int, seed: int, inputs_first: bool
) -> None:
    random = np.random.default_rng(seed)
    matrix = (random.integers(-1, 2, (outputs, inputs)) * random.random((outputs, 1))).astype(np.float32)
    given_matrix = np.ascontiguousarray(matrix.T) if inputs_first else matrix
    assert is_ternary(given_matrix, inputs_first=inputs_first)
    layout = Packed(outputs, inputs, 2, BLOCK_SIZE, "none")
    arrays = layout.arrays()

    def store(chosen: slice, found: Codes) -> None:
        layout.put(arrays, chosen, found)

    quantize_matrix(given_matrix, round_ternary, BLOCK_SIZE, store, inputs_first=inputs_first, row_scales=2)
    scales = arrays["scale_codes"].astype(np.float32) * arrays["row_scales"]
    tensors = [numpy_helper.from_array(arrays["codes"], "codes"), numpy_helper.from_array(scales, "scales")]
    attributes = {"K": inputs, "N": outputs, "bits": 2, "block_size": BLOCK_SIZE, "accuracy_level": 1}
    node = helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", **attributes)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", size]) for name, size in (("x", inputs), ("y", outputs))
    ]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    opened = onnxruntime.InferenceSession(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    found = opened.run(None, {"x": np.eye(inputs, dtype=np.float32)})[0].T
    assert np.abs(found - matrix).max() <= 1e-6


@pytest.mark.parametrize("spoilt", ["two magnitudes", "a nearly equal one"])
def test_another_matrix_is_none(spoilt: str) -> None:
    matrix = np.sign(np.random.default_rng(0).standard_normal((40, 64))).astype(np.float32)
    assert is_ternary(matrix, inputs_first=False)
    matrix[30, 5] *= 2 if spoilt == "two magnitudes" else 1.00002
    assert not is_ternary(matrix, inputs_first=False)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_ternary_model_loses_nothing_but_in_its_table_and_its_activations(tmp_path: Path, precision: str, bias: bool) -> None:
    source = model(bias=bias)
    made = export(source, tmp_path / "out", precision=precision)
    nodes = onnx.load(made.folder / GRAPH, load_external_data=False).graph.node
    bits = [node.attribute for node in nodes if node.op_type == "MatMulNBits"]
    assert sum(any(each.name == "bits" and each.i == 2 for each in node) for node in bits) == len(bits) - 1 == 8  # all but the head
    assert made.manifest.quantization["ternary"] == 8
    error = max(scenario["logits_error"] for scenario in made.manifest.certificate["same_weights"])
    assert error < 1e-4
    twos = sum(layer.weight.numel() for layer in source.model.layers.modules() if isinstance(layer, nn.Linear)) / 4
    rest = 4 * sum(each.numel() for each in (source.model.embed_tokens.weight, source.lm_head.weight))
    assert (made.folder / weights_files(made.manifest)[0]).stat().st_size < 1.7 * twos + rest
    assert len(onnx_textgen.load(made.folder).generate([5, 9, 200, 31], max_new_tokens=4, temperature=0).token_ids) == 4


def test_beside_float16_activations_ternary_matrices_have_the_bits_that_were_asked_for(tmp_path: Path) -> None:
    made = export(model(), tmp_path / "out", precision="int4", quantization=Quantization(4, activations="fp16"))
    assert "ternary" not in made.manifest.quantization
    graph = onnx.load(made.folder / GRAPH, load_external_data=False).graph
    bits = {attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "bits"}
    assert bits and 2 not in bits
