"""Small ONNX graphs for the tests of graph passes: a builder, a way to run them, and weights that tell when they are read."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxruntime

READS: collections.Counter[str] = collections.Counter()
"""How often each weight of `Small.weight` was read."""


class Small:
    """Collects nodes; values are float32 and shapes are inferred by ONNX."""

    def __init__(self) -> None:
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": 23, "com.microsoft": 1}, name="small")
        self.random = np.random.default_rng(0)

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.graph.inputs.append(value)
        return value

    def constant(self, name: str, array: object, dtype: type = np.float32) -> ir.Value:
        tensor = ir.tensor(np.asarray(array, dtype=dtype), name=name)
        return self.register(name, tensor)

    def weight(self, name: str, *shape: int) -> ir.Value:
        """Random numbers that count how often they are read."""
        array = self.random.standard_normal(shape).astype(np.float32) / 4
        READS[name] = 0

        def load() -> ir.TensorProtocol:
            READS[name] += 1
            return ir.tensor(array)

        return self.register(name, ir.LazyTensor(load, dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name))

    def register(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
        self.graph.register_initializer(value)
        return value

    def op(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, domain: str = "", **attributes: object):
        node = ir.node(op_type, list(inputs), attributes, num_outputs=outputs, domain=domain)
        self.graph.append(node)
        for value in node.outputs:
            value.name = f"{op_type}_{len(self.graph)}_{value.index()}"
        return node.outputs[0] if outputs == 1 else node.outputs

    def reshape(self, value: ir.Value, *sizes: int) -> ir.Value:
        name = f"sizes.{len(self.graph.initializers)}"
        return self.op("Reshape", value, self.constant(name, sizes, np.int64))

    def finish(self, *outputs: ir.Value) -> ir.Model:
        for value in outputs:
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
            self.graph.outputs.append(value)
        model = ir.Model(self.graph, ir_version=10)
        common_passes.ShapeInferencePass()(model)
        return model


def run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in ONNX Runtime, which fuses nothing by itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options).run(None, dict(feeds))


def kinds(model: ir.Model) -> list[str]:
    """The operators, in the graph's order."""
    common_passes.RemoveUnusedNodesPass()(model)
    return [node.op_type for node in model.graph]


def check_pass(model: ir.Model, change: Callable[[ir.Model], None], feeds: Mapping[str, np.ndarray]) -> list[str]:
    """Apply a pass that must keep the outputs and read no weight; returns the operators that are left."""
    want = run(model, feeds)
    before = READS.copy()
    change(model)
    left = kinds(model)
    assert before == READS, "the pass read a weight"
    for found, wanted in zip(run(model, feeds), want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return left


def tokens(width: int, new: int = 3, batch: int = 2) -> np.ndarray:
    """Random numbers [batch, new, width]."""
    return np.random.default_rng(1).standard_normal((batch, new, width)).astype(np.float32)
