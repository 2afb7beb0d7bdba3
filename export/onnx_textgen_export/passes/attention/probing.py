"""Extract a part of a graph and run it, to find out what it computes rather than how it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from onnx_textgen.backends.signature import POSITION_OFFSETS
from onnx_textgen.images.positions import AXES

ORT_ERRORS = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)
"""Errors of ONNX Runtime for a graph that it cannot open or run; they have no common base class."""

Array = npt.NDArray[np.float32]


class Piece:
    """The part of a graph between some of its values, opened in ONNX Runtime."""

    def __init__(self, graph: ir.Graph, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> None:
        """Raises ValueError if the outputs need more than the inputs and constants, or cannot be computed."""
        part = ir.convenience.extract(graph, inputs, outputs)
        for value in part.outputs:
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        self.names = [str(value.name) for value in part.inputs]
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        data = ir.to_proto(ir.Model(part, ir_version=10)).SerializeToString()
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except ORT_ERRORS as error:
            raise ValueError(f"a piece of the graph cannot be opened: {error}") from error

    def run(self, feeds: Mapping[str, npt.NDArray[np.generic]]) -> list[Array]:
        """The outputs for inputs by name; inputs that the part does not read are ignored. Raises ValueError if it cannot run."""
        try:
            outputs: list[Array] = self.session.run(None, {name: array for name, array in feeds.items() if name in self.names})
        except ORT_ERRORS as error:
            raise ValueError(f"a piece of the graph cannot be run: {error}") from error
        return outputs


def asked_by(graph: ir.Graph) -> list[ir.Value]:
    """The inputs on which positions depend."""
    return [value for value in graph.inputs if value.name in {"input_ids", "attention_mask", POSITION_OFFSETS}]


def plain_text(rows: int, new: int, mask: npt.NDArray[np.int64] | None = None) -> dict[str, npt.NDArray[np.generic]]:
    """Values for these inputs: `new` tokens of text in each row, which are all if there is no mask."""
    ids = np.zeros((rows, new), np.int64)
    offsets = np.zeros((AXES, rows, new), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids) if mask is None else mask, POSITION_OFFSETS: offsets}


def depends_on_tokens(graph: ir.Graph) -> set[ir.Value]:
    """Every value that depends on the tokens or the past; positions and shapes do not."""
    tainted = {value for value in graph.inputs if value.name not in {"attention_mask", POSITION_OFFSETS}}
    for node in graph:
        if node.op_type != "Shape" and any(value in tainted for value in node.inputs):
            tainted.update(node.outputs)
    return tainted
