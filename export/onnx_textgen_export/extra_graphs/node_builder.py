"""Builds the nodes of a graph, or of a branch of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..passes.graph.linear import shared_constant


class NodeBuilder:
    """Nodes of a graph or of a branch, while they are added."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        """`graph`: which gets the constants; `name`: a beginning for those of the nodes."""
        self.main, self.name, self.nodes = graph, name, list[ir.Node]()

    def add(self, operator: str, *inputs: ir.Value | None, domain: str = "", outputs: int = 1, **attributes: Any) -> ir.Node:  # noqa: ANN401 - ONNX's
        """Add a node."""
        name = f"{self.name}.{len(self.nodes)}"
        node = ir.node(operator, inputs, attributes, num_outputs=outputs, domain=domain, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}.{index}"
        self.nodes.append(node)
        return node

    def one(self, operator: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:  # noqa: ANN401 - ONNX's
        """Add a node of one output, and return it."""
        return self.add(operator, *inputs, domain=domain, **attributes).outputs[0]

    def whole(self, *numbers: int) -> ir.Value:
        """A constant of whole numbers."""
        return shared_constant(self.main, f"whole.{'_'.join(map(str, numbers))}", np.array(numbers, np.int64))

    def branch(self, *outputs: tuple[ir.Value, ir.DataType]) -> ir.Graph:
        """These nodes as a branch with these outputs, of these types."""
        for value, dtype in outputs:
            value.type = ir.TensorType(dtype)
        return ir.Graph([], [value for value, _ in outputs], nodes=self.nodes, name=self.name)
