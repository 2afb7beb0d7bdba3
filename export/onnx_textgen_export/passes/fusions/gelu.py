"""One standard `Gelu` instead of the eight operators in which many models write its tanh form."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph.linear import small_constant

CUBIC, INNER = 0.044715, 0.7978845608
"""Hendrycks and Gimpel 2016: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""


def fuse_gelu(model: ir.Model) -> None:
    """Replace every spelt-out GELU, in place."""
    graph = model.graph
    for node in list(graph):
        if node.op_type == "Tanh" and not node.domain:
            for product in products_of(node):
                replace(graph, node, product)


def replace(graph: ir.Graph, tanh: ir.Node, product: ir.Node) -> None:
    """Replace the last product by a Gelu, if its inputs follow the formula."""
    source = argument_of(tanh)
    if source is None or not is_half_times_one_plus(product, tanh.outputs[0], source):
        return
    gelu = ir.node("Gelu", [source], {"approximate": "tanh"})
    ir.convenience.replace_nodes_and_values(graph, product, [product], [gelu], product.outputs, gelu.outputs)


def products_of(tanh: ir.Node) -> list[ir.Node]:
    """The products that read `1 + tanh`, directly or halved."""
    found = [tanh]
    for _ in range(3):
        found += [
            user for node in found for user in node.outputs[0].consumers() if user not in found and user.op_type in {"Add", "Mul"}
        ]
    return [node for node in found if node.op_type == "Mul"]


def with_number(value: ir.Value | None, op_type: str, number: float) -> list[ir.Value]:
    """The other inputs of an operator one of whose inputs is `number` (for Pow: the second)."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or node.domain:
        return []
    places = (1,) if op_type == "Pow" else (0, 1)
    others = [node.inputs[1 - place] for place in places if is_number(node.inputs[place], number)]
    return [other for other in others if other is not None]


def is_number(value: ir.Value | None, number: float) -> bool:
    """Return whether a value is a constant scalar."""
    constant = small_constant(value)
    return constant is not None and constant.size == 1 and bool(np.isclose(constant.item(), number, rtol=1e-6, atol=0))


def argument_of(tanh: ir.Node) -> ir.Value | None:
    """x, if the argument of tanh is `sqrt(2 / pi) (x + 0.044715 x^3)`."""
    for inner in with_number(tanh.inputs[0], "Mul", INNER):
        add = inner.producer()
        if add is None or add.op_type != "Add":
            continue
        for source, cubic in (add.inputs, reversed(add.inputs)):
            for cube in with_number(cubic, "Mul", CUBIC):
                if source in with_number(cube, "Pow", 3.0):
                    return source
    return None


def is_half_times_one_plus(product: ir.Node, tanh: ir.Value, source: ir.Value) -> bool:
    """Return whether a product is `0.5 x (1 + tanh)` in any order of the factors."""
    return sorted(factors_of(product.outputs[0], tanh, source)) == ["0.5", "1 + tanh", "x"]


def factors_of(value: ir.Value | None, tanh: ir.Value, source: ir.Value) -> list[str]:
    """The factors of a product, in words."""
    if value is source:
        return ["x"]
    if value is None or is_number(value, 0.5):
        return ["0.5"]
    if tanh in with_number(value, "Add", 1.0):
        return ["1 + tanh"]
    node = value.producer()
    if node is None or node.op_type != "Mul" or node.domain:
        return ["another"]
    return [factor for one in node.inputs for factor in factors_of(one, tanh, source)]
