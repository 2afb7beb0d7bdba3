"""float16 graphs: nearly the same logits, positions and norms as exact as before."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnx_textgen_export.errors import ExportError
from onnx_textgen_export.passes.float16 import to_float16
from onnx_textgen_export.passes.quantization.options import Quantization
from onnx_textgen_export.passes.quantization.stored_matrices import quantize

FLOAT = ir.TensorType(ir.DataType.FLOAT)
PACKAGES = Path(__file__).resolve().parents[2] / "packages"
INT64 = ir.TensorType(ir.DataType.INT64)


def constant(name: str, array: np.ndarray) -> ir.Value:
    """An initializer."""
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))


def lazy(name: str, array: np.ndarray, reads: list[str]) -> ir.Value:
    """An initializer that notes in `reads` when it is read."""

    def read() -> ir.TensorProtocol:
        reads.append(name)
        return ir.tensor(array)

    tensor = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(array.shape), name=name)
    return ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=FLOAT)


def model_of(nodes: list[ir.Node], inputs: list[ir.Value], constants: list[ir.Value]) -> ir.Model:
    """A graph whose last node's output is `logits`; every value without a type is float32."""
    logits = nodes[-1].outputs[0]
    logits.name, logits.shape, logits.type = "logits", ir.Shape([None, None]), FLOAT
    for node in nodes:
        for value in node.outputs:
            value.type = value.type or FLOAT
    return ir.Model(
        ir.Graph(inputs, [logits], nodes=nodes, initializers=constants, opset_imports={"": 23}, name="g"), ir_version=11
    )


def run(model: ir.Model, **feeds: np.ndarray) -> np.ndarray:
    """The logits by ONNX Runtime on the CPU, which computes most float16 operators in float32 between casts."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, disabled_optimizers=["NchwcTransformer"]
    )  # it crashes
    return session.run(None, feeds)[0]


def angles() -> ir.Model:
    """cos(position * frequency) times a weight: what a rotary embedding begins with."""
    positions = ir.Value(name="positions", shape=ir.Shape([None, 1]), type=INT64)
    frequencies = constant("frequencies", (10_000.0 ** -np.linspace(0, 1, 8, dtype=np.float32))[None])
    weight = constant("weight", np.eye(8, dtype=np.float32))
    nodes = [
        cast := ir.node("Cast", [positions], {"to": int(ir.DataType.FLOAT)}),
        product := ir.node("Mul", [cast.outputs[0], frequencies]),
        cosines := ir.node("Cos", product.outputs),
        ir.node("MatMul", [cosines.outputs[0], weight]),
    ]
    return model_of(nodes, [positions], [frequencies, weight])


def test_the_angles_of_far_positions_stay_exact() -> None:
    positions = np.array([[1], [5_003], [131_071]])
    model = angles()
    want = run(model, positions=positions)
    to_float16(model)
    got = run(model, positions=positions)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, atol=6e-4)  # one rounding of a cosine
    assert model.graph.initializers["frequencies"].dtype == ir.DataType.FLOAT
    assert model.graph.initializers["weight"].dtype == ir.DataType.FLOAT16


def test_a_norm_that_is_spelt_out_neither_overflows_nor_loses_its_epsilon() -> None:
    hidden = ir.Value(name="hidden", shape=ir.Shape([None, 8]), type=FLOAT)
    two, epsilon = constant("two", np.float32([2])), constant("epsilon", np.float32([1e-12]))
    axes = constant("axes", np.array([-1]))
    nodes = [
        squares := ir.node("Pow", [hidden, two]),
        mean := ir.node("ReduceMean", [squares.outputs[0], axes]),
        total := ir.node("Add", [mean.outputs[0], epsilon]),
        root := ir.node("Sqrt", total.outputs),
        ir.node("Div", [hidden, root.outputs[0]]),
    ]
    model = model_of(nodes, [hidden], [two, epsilon, axes])
    large = np.array([[300, -900, 5, 0, 1, 2, 3, 4], [0] * 8], np.float32)
    want = run(model, hidden=large)
    to_float16(model)
    got = run(model, hidden=large.astype(np.float16))
    assert np.isfinite(got[0]).all()
    np.testing.assert_allclose(got[0], want[0], rtol=2e-3, atol=1e-4)
    assert model.graph.initializers["epsilon"].dtype == ir.DataType.FLOAT


def test_a_masks_lowest_value_stays_finite() -> None:
    scores = ir.Value(name="scores", shape=ir.Shape([None, 3]), type=FLOAT)
    mask = constant("mask", np.float32([[0, np.finfo(np.float32).min, -np.inf]]))
    nodes = [masked := ir.node("Add", [scores, mask]), ir.node("Softmax", masked.outputs, {"axis": -1})]
    model = model_of(nodes, [scores], [mask])
    to_float16(model)
    assert np.isfinite(model.graph.initializers["mask"].const_value.numpy()).all()
    np.testing.assert_allclose(run(model, scores=np.zeros((1, 3), np.float16)), [[1, 0, 0]])


def test_a_product_with_scales_is_told_by_what_makes_it_and_not_by_what_reads_it() -> None:
    hidden = ir.Value(name="hidden", shape=ir.Shape([None, 4]), type=FLOAT)
    quarter, first = constant("quarter", np.float32(0.25)), constant("first", np.array([0]))
    weight, last = (constant(name, np.eye(4, dtype=np.float32)) for name in ("weight", "last"))
    nodes = [
        product := ir.node("MatMul", [hidden, weight]),
        scaled := ir.node("Mul", [product.outputs[0], quarter]),
        row := ir.node("Gather", [scaled.outputs[0], first]),
        ir.node("MatMul", [row.outputs[0], last]),
    ]
    model = model_of(nodes, [hidden], [quarter, first, weight, last])
    to_float16(model)
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT16, ir.DataType.INT64}
    np.testing.assert_allclose(run(model, hidden=np.array([[4, 8, 0, 1]], np.float16)), [[1, 2, 0, 0.25]])


def test_what_counts_and_compares_keeps_its_type_where_none_is_given() -> None:
    hidden = ir.Value(name="hidden", shape=ir.Shape([None, 4]), type=FLOAT)
    nodes = [
        double := ir.node("Add", [hidden, hidden]),
        size := ir.node("Shape", [double.outputs[0]]),
        ones := ir.node("ConstantOfShape", [size.outputs[0]]),
        larger := ir.node("Greater", [double.outputs[0], ones.outputs[0]]),
        ir.node("Where", [larger.outputs[0], double.outputs[0], hidden]),
    ]
    logits = nodes[-1].outputs[0]
    logits.name, logits.shape, logits.type = "logits", ir.Shape([None, None]), FLOAT
    ones.outputs[0].type = FLOAT
    graph = ir.Graph([hidden], [logits], nodes=nodes, opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=11)
    to_float16(model)
    assert double.outputs[0].dtype == ir.DataType.FLOAT16
    assert size.outputs[0].dtype is None and larger.outputs[0].dtype is None


def test_weights_are_converted_when_they_are_written() -> None:
    reads: list[str] = []
    hidden = ir.Value(name="hidden", shape=ir.Shape([None, 512]), type=FLOAT)
    array = np.random.default_rng(0).standard_normal((512, 4100)).astype(np.float32)  # more than one piece
    model = model_of([ir.node("MatMul", [hidden, weight := lazy("weight", array, reads)])], [hidden], [weight])
    to_float16(model)
    assert reads == []
    np.testing.assert_array_equal(model.graph.initializers["weight"].const_value.numpy(), array.astype(np.float16))
    assert reads == ["weight"]


def test_a_constant_that_both_kinds_read_is_kept_in_both() -> None:
    hidden = ir.Value(name="hidden", shape=ir.Shape([None, 2]), type=FLOAT)
    two = constant("two", np.float32([2]))
    nodes = [squares := ir.node("Pow", [hidden, two]), ir.node("Mul", [squares.outputs[0], hidden]), ir.node("Neg", [hidden])]
    nodes[-1] = ir.node("Mul", [nodes[1].outputs[0], two])
    model = model_of(nodes, [hidden], [two])
    to_float16(model)
    np.testing.assert_allclose(run(model, hidden=np.array([[3, 0.5]], np.float16)), [[54, 0.25]])


@pytest.mark.parametrize("target", ["ort", "standard"])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_decoder_computes_nearly_the_same_with_a_cache_in_float16(target: str, quantised: bool) -> None:
    model = ir.external_data.load_to_model(ir.load(PACKAGES / target / "model.onnx"))
    if quantised:
        quantize(model, Quantization(8, 16), target)  # type: ignore[arg-type]
    ids, past = np.array([[3, 17, 40, 9]]), {}
    for value in model.graph.inputs:
        if value.name.startswith("past_"):
            length = 8 if target == "ort" else 0
            past[value.name] = np.zeros((1, value.shape[1], length, value.shape[3]), np.float32)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **past}
    feeds = {name: array for name, array in feeds.items() if name in {value.name for value in model.graph.inputs}}
    want = run(model, **feeds)
    to_float16(model)
    got = run(model, **{name: array.astype(np.float16) if name in past else array for name, array in feeds.items()})
    assert got.dtype == np.float16
    assert np.abs(got - want).max() < (3e-2 if quantised else 5e-3) * np.abs(want).max()  # activations in int8, in float16
    assert {v.dtype for v in model.graph.inputs if v.name.startswith("past_")} == {ir.DataType.FLOAT16}


def test_a_graph_with_a_branch_is_refused_in_one_line() -> None:
    condition = ir.Value(name="condition", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    branches = {name: ir.AttrGraph(name, ir.Graph([], [], nodes=[])) for name in ("then_branch", "else_branch")}
    model = model_of([ir.node("If", [condition], branches)], [condition], [])
    with pytest.raises(ExportError, match="fp16 of a graph with a branch"):
        to_float16(model)


def test_what_is_made_of_a_shape_has_the_type_of_what_it_is_written_into() -> None:
    """As groups of experts are chosen in DeepSeek V3; a pass left the ones without a type."""
    scores = ir.Value(name="scores", shape=ir.Shape([2, 4]), type=FLOAT)
    places = ir.Value(name="places", shape=ir.Shape([2, 1]), type=INT64)
    size = ir.node("Shape", [places])
    ones = ir.node("ConstantOfShape", size.outputs, {"value": ir.tensor(np.ones(1, np.float32))})
    written = ir.node("ScatterElements", [scores, places, ones.outputs[0]], {"axis": 1})
    model = model_of([size, ones, written], [scores, places], [])
    size.outputs[0].type, ones.outputs[0].type = INT64, None
    to_float16(model)
    found = run(model, scores=np.zeros((2, 4), np.float16), places=np.array([[1], [3]]))
    assert found.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
