"""The writer reads each weight once, in turn, and what it wrote is what ONNX Runtime runs."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onnx_textgen.package.manifest import GRAPH
from onnx_textgen_export.package import writer
from onnx_textgen_export.package.writer import ALIGNMENT, weights_bytes, write_graph

SIZE = 33
WEIGHTS = "onnx/model.onnx_data"


def chain(reads: list[str]) -> ir.Model:
    """x W0 W1 W2 + b, whose weights note when they are read."""
    x = ir.Value(name="x", shape=ir.Shape([None, SIZE]), type=ir.TensorType(ir.DataType.FLOAT))
    last, nodes, weights = x, [], []
    for index in range(3):

        def read(index: int = index) -> ir.TensorProtocol:
            reads.append(f"w{index}")
            return ir.tensor(np.full((SIZE, SIZE), index + 1, np.float32))

        lazy = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape([SIZE, SIZE]), name=f"w{index}")
        weights.append(ir.Value(name=f"w{index}", const_value=lazy, shape=lazy.shape, type=ir.TensorType(ir.DataType.FLOAT)))
        nodes.append(ir.node("MatMul", [last, weights[-1]]))
        last = nodes[-1].outputs[0]
        last.name, last.type = f"y{index}", ir.TensorType(ir.DataType.FLOAT)
    bias = ir.tensor(np.ones(SIZE, np.float32), name="b")
    weights.append(ir.Value(name="b", const_value=bias, shape=bias.shape, type=ir.TensorType(ir.DataType.FLOAT)))
    nodes.append(ir.node("Add", [last, weights[-1]]))
    out = nodes[-1].outputs[0]
    out.name, out.type, out.shape = "out", ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, SIZE])
    graph = ir.Graph([x], [out], nodes=nodes, initializers=weights, opset_imports={"": 23}, name="chain")
    return ir.Model(graph, ir_version=10)


def test_every_weight_is_read_once_in_order_and_the_graph_computes_with_it(tmp_path: Path) -> None:
    reads: list[str] = []
    model = chain(reads)
    expected = weights_bytes(model)
    assert reads == [], "to know the size nothing is read"
    write_graph(model, tmp_path, weights=WEIGHTS)
    assert reads == ["w0", "w1", "w2"]
    assert (tmp_path / WEIGHTS).stat().st_size == expected == 2 * (SIZE * SIZE * 4 + -SIZE * SIZE * 4 % ALIGNMENT) + SIZE * SIZE * 4
    got = onnxruntime.InferenceSession(str(tmp_path / GRAPH)).run(None, {"x": np.ones((1, SIZE), np.float32)})[0]
    np.testing.assert_array_equal(got, np.full((1, SIZE), 6 * SIZE**3 + 1, np.float32))


def test_a_written_model_can_be_written_again_from_its_file(tmp_path: Path) -> None:
    reads: list[str] = []
    model = chain(reads)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_graph(model, tmp_path / name, weights=WEIGHTS)
    assert len(reads) == 3
    assert (tmp_path / "first" / WEIGHTS).read_bytes() == (tmp_path / "second" / WEIGHTS).read_bytes()


def test_weights_beyond_the_largest_file_go_on_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST_FILE", 2 * SIZE * SIZE * 4 + 2 * ALIGNMENT)
    write_graph(chain([]), tmp_path, weights=WEIGHTS)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "onnx").iterdir()}
    assert sizes.keys() == {"model.onnx_data", "model.onnx_data_1"}
    assert max(sizes.values()) <= writer.LARGEST_FILE
    got = onnxruntime.InferenceSession(str(tmp_path / GRAPH)).run(None, {"x": np.ones((1, SIZE), np.float32)})[0]
    np.testing.assert_array_equal(got, np.full((1, SIZE), 6 * SIZE**3 + 1, np.float32))
