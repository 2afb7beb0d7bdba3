"""Target shapes as constants."""

import numpy as np
import onnx_ir as ir

from onnx_textgen_export.passes.reshapes import simplify_reshapes
from support.small_graphs import Small, check_pass, tokens


def computed(small: Small, x: ir.Value, *sizes: int) -> ir.Value:
    """The first two sizes of x, then `sizes`, as the tracer writes it."""
    return small.op(
        "Concat", small.op("Shape", x, start=0, end=2), small.constant(f"rest.{len(small.graph.initializers)}", sizes, int), axis=0
    )


def shaped(value: ir.Value, *sizes: int | str) -> ir.Value:
    """With the shape that a tracer would have noted."""
    value.shape, value.type = ir.Shape(sizes), ir.TensorType(ir.DataType.FLOAT)
    return value


def test_a_computed_target_becomes_a_constant_and_equal_ones_are_shared() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    heads = [shaped(small.op("Reshape", x, computed(small, x, 2, 4)), "batch", "new", 2, 4) for _ in range(2)]
    model = small.finish(*[small.op("Neg", value) for value in heads])
    assert check_pass(model, simplify_reshapes, {"x": tokens(8)}) == ["Reshape", "Reshape", "Neg", "Neg"]
    targets = {node.inputs[1] for node in model.graph if node.op_type == "Reshape"}
    assert [target.const_value.numpy().tolist() for target in targets] == [[0, 0, 2, 4]]


def test_there_and_back_again_is_no_reshape_at_all() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    heads = shaped(small.op("Reshape", x, computed(small, x, 2, 4)), "batch", "new", 2, 4)
    model = small.finish(small.op("Neg", shaped(small.op("Reshape", heads, computed(small, x, 8)), "batch", "new", 8)))
    assert check_pass(model, simplify_reshapes, {"x": tokens(8)}) == ["Neg"]


def test_a_shape_that_the_graph_returns_stays_a_reshape() -> None:
    small = Small()
    x = small.input("x", ["batch", "new", 8])
    model = small.finish(shaped(small.op("Reshape", x, computed(small, x, 8)), "batch", "new", 8))
    assert check_pass(model, simplify_reshapes, {"x": tokens(8)}) == ["Reshape"]


def test_two_sizes_that_only_the_graph_knows_stay_computed() -> None:
    small = Small()
    x, rows = small.input("x", ["batch", "new", 8]), small.input("rows", [2], ir.DataType.INT64)
    target = small.op("Concat", rows, small.constant("four", [4], int), axis=0)
    model = small.finish(small.op("Neg", shaped(small.op("Reshape", x, target), "a", "b", 4)))
    left = check_pass(model, simplify_reshapes, {"x": tokens(8), "rows": np.array([3, 4])})
    assert left == ["Concat", "Reshape", "Neg"]
