"""Types of values inside a graph."""

from __future__ import annotations

import onnx_ir as ir


def forget_types(graph: ir.Graph) -> None:
    """Drop the types of values inside a graph: a runtime infers them, and they would only make the file larger."""
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
