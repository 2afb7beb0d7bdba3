"""The accuracy of quantised products."""

from __future__ import annotations

import onnx_ir as ir

FLOAT32 = 1
"""The accuracy level at which ONNX Runtime multiplies in float32."""


def multiply_in_float32(graph: ir.Graph) -> None:
    """Let quantised products be computed in float32, without rounding their inputs."""
    for node in graph:
        if "accuracy_level" in node.attributes:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", FLOAT32)
