"""Softplus in other operators: the numbers of its definition, and the same bits however a tensor is cut."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnx_textgen_export.passes.softplus import spell_softplus


def session(*, spelled: bool, threads: int = 1) -> onnxruntime.InferenceSession:
    sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Softplus", ["x"], ["y"])], "softplus", *sides)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    if spelled:
        spell_softplus(model)
        assert "Softplus" not in {node.op_type for node in model.graph}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def cut(run: onnxruntime.InferenceSession, x: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([run.run(None, {"x": x[start : start + size]})[0] for start in range(0, len(x), size)])


def test_the_numbers_are_those_of_the_definition_also_where_they_are_small() -> None:
    x = np.concatenate([np.linspace(-87, 87, 20_001), np.linspace(-1, 1, 10_001), [0.0, -1e-30, 1e30]]).astype(np.float32)
    want = np.logaddexp(0, x.astype(np.float64))
    np.testing.assert_allclose(session(spelled=True).run(None, {"x": x})[0], want, rtol=4e-7)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_number_does_not_depend_on_its_place(threads: int) -> None:
    x = np.random.default_rng(0).normal(size=48 * 1023).astype(np.float32)
    run = session(spelled=True, threads=threads)
    whole = run.run(None, {"x": x})[0]
    for size in (7, 24, 1003):
        np.testing.assert_array_equal(cut(run, x, size), whole)


def test_it_would_depend_on_it_as_one_operator() -> None:
    """When this fails, ONNX Runtime needs the pass no longer."""
    x = np.random.default_rng(0).normal(size=48).astype(np.float32)
    run = session(spelled=False)
    assert not np.array_equal(cut(run, x, 7), run.run(None, {"x": x})[0])
