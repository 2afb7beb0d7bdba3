"""Softplus in operators that give the same bits wherever a number lies in a tensor.

ONNX Runtime (1.32) computes Softplus, as Log, four numbers at a time, and those that are left at the end of a thread's share by
another formula. So a step of a recurrent layer would depend, in its last bits, on the rows of a batch and on how a prompt is split.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .graph.linear import replace, shared_constant

LOGARITHM = (2.0, 0.6666632164, 0.4002459523, 0.2796515776, 0.2815777831)
"""log(1 + u) = z p(z^2) for u from 0 to 1, with z = u / (2 + u): p's coefficients, 2 atanh(z) / z at Chebyshev's nodes to 4e-9."""


def spell_softplus(model: ir.Model) -> None:
    """Replace each Softplus by max(x, 0) + log(1 + exp(-|x|)), in place."""
    graph = model.graph
    for node in [node for node in graph if node.op_type == "Softplus" and not node.domain]:
        if node.outputs[0].dtype in (None, ir.DataType.FLOAT):  # float16 graphs have types everywhere
            replace(graph, node, spelled(graph, node))


def spelled(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    """The nodes that compute what one Softplus does, in their order."""
    nodes, x = list[ir.Node](), node.inputs[0]

    def number(value: float) -> ir.Value:
        return shared_constant(graph, f"number_{value!r}", np.array(value, dtype=np.float32))

    def do(operator: str, *inputs: ir.Value | None) -> ir.Value:
        nodes.append(ir.node(operator, inputs))
        made = nodes[-1].outputs[0]
        made.type, made.shape = ir.TensorType(ir.DataType.FLOAT), node.outputs[0].shape
        return made

    u = do("Exp", do("Neg", do("Abs", x)))
    z = do("Div", u, do("Add", u, number(2.0)))
    square, total = do("Mul", z, z), number(LOGARITHM[-1])
    for coefficient in reversed(LOGARITHM[:-1]):
        total = do("Add", do("Mul", total, square), number(coefficient))
    do("Add", do("Max", x, number(0.0)), do("Mul", z, total))
    return nodes
