"""Output layers in two parts: the same logits and rows, and packages that are right whatever form each part has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen_export.calibration.code_search import calibrate
from onnx_textgen_export.calibration.matrices import find_matrices
from onnx_textgen_export.exporting.graphs import PackageWriter, optimized_graph
from onnx_textgen_export.exporting.options import ExportOptions
from onnx_textgen_export.passes.graph.provenance import Piece, made_of
from onnx_textgen_export.passes.quantization.options import DEFAULTS, Quantization
from onnx_textgen_export.passes.quantization.split_head import SMALLEST_VOCABULARY, Split, find_split, split_matrices
from onnx_textgen_export.proof.same_weights import prove_exactly
from onnx_textgen_export.tracing.opening import as_source, open_source
from support.examples import examples

VOCAB, WIDTH = SMALLEST_VOCABULARY + 104, 64


def tied_graph(table: np.ndarray) -> ir.Model:
    """Gathers rows by ids [batch, length], and multiplies them with the same table."""
    ids = ir.Value(name="ids", shape=ir.Shape(["batch", "length"]), type=ir.TensorType(ir.DataType.INT64))
    weight = ir.Value(name="table", const_value=made_of(ir.tensor(table, name="table"), [], pieces=[Piece("table", None)]))
    weight.shape, weight.type = ir.Shape(table.shape), ir.TensorType(ir.DataType.FLOAT)
    rows = ir.node("Gather", [weight, ids])
    turned = ir.node("Transpose", [weight], {"perm": [1, 0]})
    logits = ir.node("MatMul", [rows.outputs[0], turned.outputs[0]])
    for node, name in ((rows, "rows"), (logits, "logits")):
        node.outputs[0].name, node.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
    rows.outputs[0].shape = ir.Shape(["batch", "length", table.shape[1]])
    nodes, outputs = [rows, turned, logits], [rows.outputs[0], logits.outputs[0]]
    graph = ir.Graph([ids], outputs, nodes=nodes, initializers=[weight], opset_imports={"": 21}, name="tied")
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model, ids: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": ids})


@examples(10)
@given(st.data(), st.integers(1, 3), st.integers(1, 5))
def test_a_table_in_two_parts_gives_the_same_rows_and_products(data, batch: int, length: int) -> None:
    rows = 2 * 1024 + data.draw(st.integers(0, 50))
    cut = data.draw(st.integers(1024, rows - 1024))
    ids = data.draw(st.lists(st.integers(0, rows - 1) | st.sampled_from([0, cut - 1, cut, rows - 1]), min_size=15, max_size=15))
    fed = np.array(ids[: batch * length], np.int64).reshape(batch, length)
    table = np.random.default_rng(cut).standard_normal((rows, 16)).astype(np.float32)
    whole, parted = tied_graph(table), tied_graph(table)
    split_matrices(parted.graph, [Split("table", rows, cut)])
    for got, want in zip(run(parted, fed), run(whole, fed), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_array_equal(run(parted, fed)[0], table[fed])


def decoder(tied: bool) -> transformers.LlamaForCausalLM:
    torch.manual_seed(5)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCAB}
    config = transformers.LlamaConfig(**sizes, max_position_embeddings=128, tie_word_embeddings=tied, bos_token_id=None)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("activations", [None, "fp16"])
@pytest.mark.parametrize("bits", [(8, 4), (4, 8), (8, 8), (4, 4)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_package_is_right_whatever_each_part_is_stored_in(tmp_path: Path, tied: bool, bits: tuple[int, int], activations) -> None:
    options = Quantization(4, symmetric=False, method="calibrated", activations=activations)
    ids, folder = torch.randint(0, VOCAB, (2, 64), generator=torch.Generator().manual_seed(1)), tmp_path / "package"
    folder.mkdir()
    opened = open_source(decoder(tied), tokenizer=None, allow_pickle=False, report=lambda stage: None)
    with as_source(opened, None) as source:
        asked = ExportOptions(precision="int4", other_runtimes=False)
        model = optimized_graph(source, opened.weights, asked, None, report=lambda stage: None)
        matrices = find_matrices(model.graph, options, "ort")
        found = calibrate(source, opened.weights, matrices, ids, options=options, folder=tmp_path)
        parts = [name for name, each in found.matrices.items() if each.split is not None]
        assert [found.matrices[name].sizes for name in parts] == [(VOCAB // 2, WIDTH)] * 2
        wanted = dict(zip(parts, bits, strict=True))
        mix = {name: next(each for each in forms if each.bits == wanted.get(name, 4)) for name, forms in found.choices.items()}
        writer = PackageWriter(model, source, opened.assets, folder, asked)
        _, roundings = writer.write(options, found.plan(mix))
        assert prove_exactly(source, opened.weights, folder / "model.onnx", ids[0].tolist(), roundings)[0]
    stored = ir.load(folder / "model.onnx")
    heads = [node.attributes.get_int("bits") for node in stored.graph if node.attributes.get_int("N", 0) in (VOCAB, VOCAB // 2)]
    assert heads == (list(bits) if bits[0] != bits[1] else [bits[0]]), "parts of one form are one matrix"


def test_only_a_large_output_layer_is_parted() -> None:
    from onnx_textgen_export.passes.graph.products import find_products  # noqa: PLC0415

    def split_of(rows: int) -> Split | None:
        (product,) = find_products(tied_graph(np.zeros((rows, 8), np.float32)).graph).values()
        return find_split(product)

    assert split_of(SMALLEST_VOCABULARY - 1) is None
    assert split_of(SMALLEST_VOCABULARY) == Split("table", SMALLEST_VOCABULARY, SMALLEST_VOCABULARY // 2)


def test_blocks_of_16_are_the_defaults_and_no_one_elses() -> None:
    assert DEFAULTS["int4"].finer_blocks
    assert not Quantization(4).finer_blocks
