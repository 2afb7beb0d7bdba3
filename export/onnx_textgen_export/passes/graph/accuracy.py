"""The accuracy level of quantised products, by which ONNX Runtime rounds their inputs or not."""

from __future__ import annotations

import onnx_ir as ir

FLOAT32, ROUNDED = 1, 4
"""Levels at which ONNX Runtime multiplies in float32, and with inputs rounded to 8 bits."""


def accuracy_of(node: ir.Node) -> int | None:
    """The level of a product; None if the operator has none."""
    found = node.attributes.get("accuracy_level")
    return None if found is None else found.as_int()


def set_accuracy(node: ir.Node, level: int) -> None:
    """Set the level of a product."""
    node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", level)


def multiply_in_float32(graph: ir.Graph) -> None:
    """Let quantised products be computed in float32, without rounding their inputs."""
    for node in graph:
        if accuracy_of(node) is not None:
            set_accuracy(node, FLOAT32)
