"""Matrices from quantised files keep their numbers, bit for bit."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import onnx_textgen
from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_demo.pictures.embeddings import embeddings_of
from onnx_textgen_export import export
from onnx_textgen_export.calibration.attempts import Budget
from onnx_textgen_export.package.forecast import BITS_OF_KEPT
from onnx_textgen_export.passes.quantization.lossless import FORMS, find_form
from onnx_textgen_export.tracing.opening import open_source
from support.costs import by_cost
from support.examples import examples
from support.gguf_files import SIZES, quantised, tiny_model, write_gguf

BY_NAME = {form.name: form for form in FORMS}
OFFSETS = "4 bits in blocks of 32 with offsets"
FORM_OF = {
    "Q4_0": "Q4_0",
    "Q8_0": "Q8_0",
    "Q4_1": OFFSETS,
    "Q5_0": "int8 in blocks of 32",
    "Q5_1": "8 bits in blocks of 32 with offsets",
    "Q2_K": "4 bits in blocks of 16 with offsets",
    "Q3_K": "int4 in blocks of 16",
    "Q4_K": OFFSETS,
    "Q5_K": "8 bits in blocks of 32 with offsets",
    "Q6_K": "int8 in blocks of 16",
}
"""By llama.cpp's name of a quantisation: the form that holds it."""
MIXES = {
    "Q2_K": ("Q2_K", {"v_proj": "Q4_K", "o_proj": "Q3_K", "down_proj": "Q3_K", "lm_head": "Q6_K"}),
    "Q3_K_M": ("Q3_K", {"v_proj": "Q5_K", "o_proj": "Q4_K", "down_proj": "Q4_K", "lm_head": "Q6_K"}),
    "Q4_K_M": ("Q4_K", {"v_proj": "Q6_K", "down_proj": "Q6_K", "lm_head": "Q6_K"}),
    "Q5_K_M": ("Q5_K", {"v_proj": "Q6_K", "down_proj": "Q6_K", "lm_head": "Q6_K"}),
    "Q4_K_M of narrow layers": ("Q5_0", {"v_proj": "Q8_0", "down_proj": "Q6_K", "lm_head": "Q8_0"}),
    "gate and up": ("Q4_K", {"up_proj": "Q5_K"}),
}
"""Kinds of layers in one file, by the name of llama.cpp's mix: that of most layers, and others."""
LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}


def stored_as(name: str, outputs: int, inputs: int, seed: int, size: float) -> np.ndarray:
    """A matrix of a GGUF file."""
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32) * np.float32(size)
    return gguf.dequantize(quantised(values, kind), kind)


@examples(40)
@given(
    name=st.sampled_from(sorted(FORM_OF)),
    outputs=st.integers(1, 20),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 999),
    inputs_first=st.booleans(),
)
def test_what_llama_cpp_rounded_is_known_by_its_form(name: str, outputs: int, blocks: int, seed: int, inputs_first: bool) -> None:
    size = 256 if name.endswith("K") else 32
    matrix = stored_as(name, outputs, size * blocks, seed, 10.0 ** (seed % 5 - 3))
    found = find_form(matrix.T if inputs_first else matrix, inputs_first=inputs_first)
    assert found is not None
    wanted = BY_NAME[FORM_OF[name]]
    assert dataclasses.replace(found, scales="half") == wanted or found.bytes_of(matrix.size) < wanted.bytes_of(matrix.size)
    assert found.scales_for(matrix) == found.scales, "it gives every number back"


@pytest.mark.parametrize("name", sorted(FORM_OF))
def test_a_forecast_knows_the_bits_of_each_kind_in_the_file_and_in_a_package(name: str) -> None:
    matrix, (weights, size) = stored_as(name, 64, 1024, 1, 1.0), gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    found = find_form(matrix, inputs_first=False)
    assert found is not None
    assert (8 * size / weights, 8 * found.bytes_of(matrix.size) / matrix.size) == BITS_OF_KEPT[name]


@examples(60)
@given(bits=st.sampled_from([4, 8]), size=st.sampled_from([32, 64, 128]), symmetric=st.booleans(), seed=st.integers(0, 9999))
def test_integers_of_any_blocks_are_found(bits: int, size: int, symmetric: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, draw.integers(2, 2**bits + 1), (6, 2, size))
    zeros = np.full((6, 2, 1), 2 ** (bits - 1)) if symmetric else draw.integers(0, 2**bits, (6, 2, 1))
    scales = (draw.random((6, 2, 1)) * 0.1 + 1e-4).astype(np.float16).astype(np.float32)
    matrix = ((codes - zeros) * scales).astype(np.float32).reshape(6, -1)
    found = find_form(matrix, inputs_first=False)
    assert found is not None
    assert found.bits <= bits
    assert found.scales_for(matrix) == found.scales, "it gives every number back"


@examples(60)
@given(seed=st.integers(0, 9999), lowest=st.integers(0, 5), share=st.floats(0, 1))
def test_blocks_with_offsets_are_found_whatever_codes_they_use(seed: int, lowest: int, share: float) -> None:
    draw = np.random.default_rng(seed)
    codes = draw.integers(lowest, 16, (8, 3, 32))
    codes[draw.random(codes.shape) < share] = lowest
    scales = (draw.random((8, 3, 1)) * 0.1 + 1e-3).astype(np.float16).astype(np.float32)
    offsets = (draw.standard_normal((8, 3, 1))).astype(np.float16).astype(np.float32)
    matrix = (codes * scales + offsets).astype(np.float32).reshape(8, -1)
    found = BY_NAME[OFFSETS].fitted(matrix, inputs_first=False)
    assert found is not None
    fewest = min(len(np.unique(block)) for block in codes.reshape(-1, 32))
    assert found.scales == "half" or fewest <= 8, "few codes leave the offset of a block open"


def bits_of(graph: Path, layer: str) -> set[int]:
    """The bits of the products with a layer's matrix, in all blocks of a decoder."""
    nodes = [node for node in onnx.load(graph, load_external_data=False).graph.node if node.op_type == "MatMulNBits"]
    return {onnx.helper.get_node_attr_value(node, "bits") for node in nodes if re.search(rf"\b{layer}\b", node.input[1])}


@examples(30)
@given(seed=st.integers(0, 9999))
def test_k_quants_of_4_bits_have_offsets_in_float32(seed: int) -> None:
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, 16, (4, 8, 32))  # as llama.cpp's Q4_K: scales and minima of 6 bits, times a float16 number
    parts = [draw.integers(1, 64, (4, 8, 1)) * np.float16(draw.random() * 0.01 + 1e-4).astype(np.float32) for _ in range(2)]
    matrix = (parts[0].astype(np.float32) * codes - parts[1].astype(np.float32)).astype(np.float32).reshape(4, -1)
    found = find_form(matrix, inputs_first=False)
    assert found is not None
    assert found.name == OFFSETS


def test_numbers_on_no_grid_have_no_form() -> None:
    for seed in range(20):
        drawn = np.random.default_rng(seed).standard_normal((16, 256))
        for dtype in (np.float32, np.float16):
            assert find_form(drawn.astype(dtype).astype(np.float32), inputs_first=False) is None


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("row", [0, 30])
def test_one_number_beside_the_grid_is_enough_to_round_again(name: str, row: int) -> None:
    matrix = stored_as(name, 40, 64, 0, 1.0)
    matrix[row, 5] *= np.float32(1.0001)
    assert find_form(matrix, inputs_first=False) is None


@pytest.mark.parametrize("kind", by_cost(["Q5_0", "Q6_K"], sorted({*FORM_OF} - {"Q4_0", "Q8_0", "Q4_1", "Q5_0", "Q6_K"})))
def test_a_file_of_any_quantisation_keeps_its_numbers_without_calibration(tmp_path: Path, kind: str) -> None:
    model, stages = tiny_model("llama", hidden_size=256, intermediate_size=256, tie_word_embeddings=False), list[str]()
    write_gguf(tmp_path / "model.gguf", model, "llama", kind=kind)
    made = export(tmp_path / "model.gguf", tmp_path / "out", report=stages.append)
    quantization, certificate = made.manifest.quantization, made.manifest.certificate
    assert list(quantization["as_stored"]) == [FORM_OF[kind]]
    assert "lm_head" in quantization["sources"][kind]["kept"]
    assert not any("calibrate" in stage for stage in stages)
    assert [f"compare with PyTorch, run {number} of 5" in stages for number in range(1, 6)] == [True] * 5
    larger = kind not in {"Q4_0", "Q4_1", "Q8_0"}
    assert any(stage.startswith("kept as stored") and "--precision int4 is smaller" in stage for stage in stages) == larger
    assert certificate["largest_logits_error"] < 0.03, "products multiply rounded inputs with numbers around zero"
    assert max(each["logits_error"] for each in certificate["same_weights"]) < 1e-4


@pytest.mark.parametrize(
    ("architecture", "mix"),
    by_cost(
        [("llama", "Q4_K_M")],
        [("qwen2", "Q4_K_M"), ("qwen3", "Q4_K_M"), *(("llama", mix) for mix in sorted(MIXES.keys() - {"Q4_K_M"}))],
    ),
)
def test_layers_of_one_input_that_are_stored_in_different_kinds_keep_their_numbers(
    tmp_path: Path, architecture: str, mix: str
) -> None:
    kind, others = MIXES[mix]
    model = tiny_model(architecture, hidden_size=256, intermediate_size=256, tie_word_embeddings=False)
    write_gguf(tmp_path / "model.gguf", model, architecture, kind=kind, kinds=others)
    made = export(tmp_path / "model.gguf", tmp_path / "out")
    sources = made.manifest.quantization["sources"]
    assert {layer for kinds in sources.values() for layer in kinds["kept"]} == LAYERS
    assert not any("rounded" in kinds for kinds in sources.values())
    assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4


def test_layers_that_are_rounded_next_to_kept_ones_take_more_bits_where_the_budget_needs_them(tmp_path: Path) -> None:
    kind, others = MIXES["Q4_K_M"]
    model = tiny_model("llama", hidden_size=256, intermediate_size=256, tie_word_embeddings=False)
    write_gguf(tmp_path / "model.gguf", model, "llama", kind=kind, kinds=others)
    made = export(tmp_path / "model.gguf", tmp_path / "out", precision="int4", budget=Budget(max_kl=1e-7))
    sources = made.manifest.quantization["sources"]
    assert {"gate_proj", "up_proj"} <= set(sources["Q4_K"]["kept"])
    rounded = set(sources["Q6_K"]["rounded"])
    assert rounded == {"v_proj", "down_proj", "lm_head"}
    bits = {layer: bits_of(made.folder / GRAPH, layer) for layer in (*rounded, "gate_proj")}
    assert bits == {layer: {8} for layer in rounded} | {"gate_proj": {4}}, (
        "down_proj's inputs come from rows that keep their numbers"
    )


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", by_cost(["Q4_K", "Q6_K"], sorted({*FORM_OF} - {"Q4_K", "Q6_K"})))
def test_the_table_of_a_file_is_kept_too(tmp_path: Path, kind: str, is_tied: bool) -> None:
    model = tiny_model("llama", hidden_size=256, intermediate_size=256, vocab_size=1280, tie_word_embeddings=is_tied)
    write_gguf(tmp_path / "model.gguf", model, "llama", kind=kind)
    made = export(tmp_path / "model.gguf", tmp_path / "out")
    kinds = made.manifest.quantization["sources"][kind]
    assert kinds.keys() == {"kept"}
    assert {"lm_head", *([] if is_tied else ["embed_tokens"])} <= set(kinds["kept"])
    found, wanted = embeddings_of(onnx_textgen.load(made.folder), (5, 900)), open_source(tmp_path / "model.gguf")
    table = wanted.weights.load("model.embed_tokens.weight")[[5, 900]].numpy()
    assert found is not None and np.abs(found - table).max() < 1e-5 * np.abs(table).max(), "the picture of embeddings shows them"
    assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4


def test_forms_that_take_more_than_rounding_are_for_a_source_that_is_kept_as_stored(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama", hidden_size=256, intermediate_size=256), "llama", kind="Q6_K")
    for precision in ("int8", "int4"):
        made = export(tmp_path / "model.gguf", tmp_path / precision, precision=precision)
        assert "as_stored" not in made.manifest.quantization


@pytest.mark.parametrize("precision", ["as-stored", "int4"])
def test_ternary_matrices_of_a_file_with_8_bits_take_2(tmp_path: Path, precision: Any) -> None:
    model = tiny_model("llama", hidden_size=256, intermediate_size=256, tie_word_embeddings=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj" in name:
                parameter.copy_(torch.randint(-1, 2, parameter.shape) * (0.01 + 0.02 * torch.rand(len(parameter), 1)))
    write_gguf(tmp_path / "model.gguf", model, "llama", kind="Q8_0")
    made = export(tmp_path / "model.gguf", tmp_path / "out", precision=precision)
    assert made.manifest.quantization["ternary"] > 0
    assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4


def test_a_matrix_whose_width_has_no_whole_blocks_has_no_form() -> None:
    assert find_form(np.random.default_rng(0).standard_normal((4, 48)).astype(np.float32), inputs_first=False) is None


def matrices_of(folder: Path) -> list[np.ndarray]:
    """The weights that each MatMulNBits multiplies with: [out, in]."""
    graph = onnx.load(folder / GRAPH).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    makers = {node.output[0]: node for node in graph.node}
    found = []
    for node in graph.node:
        if node.op_type == "MatMulNBits" and makers[node.input[2]].op_type == "Cast":
            codes, scales = arrays[node.input[1]], arrays[makers[node.input[2]].input[0]].astype(np.float32)
            (bits,) = (each.i for each in node.attribute if each.name == "bits")
            whole = codes if bits == 8 else np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
            values = (whole.astype(np.float32) - 2 ** (bits - 1)) * scales.reshape(*codes.shape[:2], 1)
            found.append(values.reshape(len(values), -1))
    return found


@pytest.mark.parametrize(("kind", "precision"), [("Q8_0", "int8"), ("Q4_0", "int4"), ("Q4_0", "int8")])
def test_a_package_of_a_gguf_file_holds_the_very_numbers_of_the_file(tmp_path: Path, kind: str, precision: str) -> None:
    model = tiny_model("llama", tie_word_embeddings=False)
    stored = write_gguf(tmp_path / "model.gguf", model, "llama", kind=kind)
    made = export(tmp_path / "model.gguf", tmp_path / "out", precision=precision)
    wanted = {values.tobytes() for name, matrix in stored.items() if matrix.ndim == 2 and "embed" not in name for values in matrix}
    found = {values.tobytes() for matrix in matrices_of(made.folder) for values in matrix}
    assert found == wanted
    assert list(made.manifest.quantization["as_stored"]) == [kind]
    assert len(onnx_textgen.load(made.folder).generate([5, 9, 20, 31], max_new_tokens=4, temperature=0).token_ids) == 4


def test_offsets_of_blocks_become_a_second_product(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), "llama", kind="Q4_1")
    made = export(tmp_path / "model.gguf", tmp_path / "out")
    assert list(made.manifest.quantization["as_stored"]) == [OFFSETS]
    kept = made.manifest.quantization["sources"]["Q4_1"]["kept"]
    assert set(kept) >= {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert max(each["logits_error"] for each in made.manifest.certificate["same_weights"]) < 1e-4
    nodes = [node.op_type for node in onnx.load(made.folder / GRAPH, load_external_data=False).graph.node]
    assert nodes.count("MatMulNBits") == nodes.count("MatMul") == 2 * 4 + 1
    assert len(onnx_textgen.load(made.folder).generate([5, 9, 20, 31], max_new_tokens=4, temperature=0).token_ids) == 4


def test_a_file_of_8_bits_is_rounded_where_4_are_asked_for(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), "llama", kind="Q8_0")
    made = export(tmp_path / "model.gguf", tmp_path / "out", precision="int4")
    assert "as_stored" not in made.manifest.quantization


@pytest.mark.slow
def test_a_tied_table_and_a_table_of_its_own_keep_their_numbers_too(tmp_path: Path) -> None:
    for tied in (True, False):
        torch.manual_seed(1)
        config = transformers.LlamaConfig(**SIZES, vocab_size=2048, max_position_embeddings=64, tie_word_embeddings=tied)
        model = transformers.LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(torch.from_numpy(stored_as("Q8_0", *parameter.shape, 7, 0.1)))
        made = export(model, tmp_path / f"tied {tied}", precision="int8")
        sizes = [parameter.numel() for parameter in {*model.parameters()} if parameter.dim() == 2]
        assert made.manifest.quantization["as_stored"] == {"Q8_0": sum(sizes) * 34 // 32}
        assert max(scenario["logits_error"] for scenario in made.manifest.certificate["same_weights"]) < 1e-4


def test_the_graph_of_the_standard_rounds_them(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), "llama", kind="Q4_0")
    made = export(tmp_path / "model.gguf", tmp_path / "out", precision="int4", target="standard")
    assert "as_stored" not in made.manifest.quantization
