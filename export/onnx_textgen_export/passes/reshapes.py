"""Merge chains of Reshapes, drop those that change nothing, and make their target shapes constants.

The tracer computes target shapes from the sizes of the inputs (Shape, Gather, Concat). A zero in a constant shape copies that
dimension of the input and one dimension may be -1, which suffices for decoders. Sizes are compared by the names that the tracer
gave them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .graph.linear import shared_constant


def simplify_reshapes(model: ir.Model) -> None:
    """Simplify every Reshape in place."""
    graph = model.graph
    for node in list(graph):
        if node.op_type == "Reshape" and not node.domain:
            simplify_reshape(graph, node)


def simplify_reshape(graph: ir.Graph, node: ir.Node) -> None:
    """Simplify one Reshape; its former inputs may be left unused."""
    data, out = node.inputs[0], node.outputs[0]
    while data is not None and (before := data.producer()) is not None and before.op_type == "Reshape" and not before.domain:
        data = before.inputs[0]
    if data is None or data.shape is None or out.shape is None:
        return
    if same_shape(data.shape, out.shape) and not out.is_graph_output():
        out.replace_all_uses_with(data)
        return
    target = constant_target(data.shape, out.shape)
    if target is None:
        return
    name = "shape." + "_".join(str(size) for size in target)
    node.replace_input_with(0, data)
    node.replace_input_with(1, shared_constant(graph, name, np.array(target, np.int64)))
    node.attributes.pop("allowzero", None)


def known(size: int | ir.SymbolicDim) -> bool:
    """Return whether a dimension has a number or a name."""
    return isinstance(size, int) or size.value is not None


def same_shape(first: ir.Shape, second: ir.Shape) -> bool:
    """Return whether two shapes are known to be equal."""
    return len(first) == len(second) and all(a == b and known(a) for a, b in zip(first, second, strict=True))


def constant_target(before: ir.Shape, after: ir.Shape) -> list[int] | None:
    """The constant target of a Reshape from one shape to the other; None if it takes more than one computed dimension."""
    target = []
    for place, size in enumerate(after):
        if isinstance(size, int):
            target.append(size)
        elif known(size) and place < len(before) and before[place] == size:
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 else None
