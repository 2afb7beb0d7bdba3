"""Moves scales of a product's inputs into the node that computes them: inputs / s and weights * s give the same product.

An 8-bit product rounds its inputs in blocks, and the largest input of a block determines the step; inputs of similar size lose
least (SmoothQuant, Xiao et al. 2023). It costs nothing if the inputs come from a norm, whose weights take the scale, or are a gate
times the outputs of another product (gated feed-forward layers), whose rows take it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from ..graph.linear import add_constant, is_constant, small_constant
from ..graph.products import Product
from .quantizers import Floats

NORM_WEIGHTS = {
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "LayerNormalization": (1, 2),
    "SkipSimplifiedLayerNormalization": (2,),
    "SkipLayerNormalization": (2, 3),
}
"""Indices of a norm's inputs that are multiplied with, or added to, the channels of its first output."""


@dataclasses.dataclass(frozen=True, slots=True)
class Norm:
    """A norm whose only reader is the product."""

    node: ir.Node

    def divide(self, graph: ir.Graph, scales: Floats) -> None:
        """Divide the norm's output by `scales` [width]."""
        for index in NORM_WEIGHTS[self.node.op_type]:
            before = self.node.inputs[index] if index < len(self.node.inputs) else None
            if before is not None:
                assert before.const_value is not None, "find_maker looked at it"
                changed = ir.tensor((before.const_value.numpy() / scales).astype(np.float32))
                self.node.replace_input_with(index, add_constant(graph, f"{before.name}.smoothed", changed))


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Outputs of another product, which are multiplied by a gate."""

    weight: str
    """The name of that product's weight."""
    start: int
    """The first of its outputs."""


def find_maker(product: Product, products: dict[ir.Node, Product]) -> Norm | Rows | None:
    """The node or rows that compute a product's inputs, if they can take a scale for each of them."""
    value = product.node.inputs[0]
    maker = value.producer() if value is not None else None
    while maker is not None and takes_rows(maker) and is_read_once(value):
        value = maker.inputs[0]
        maker = value.producer() if value is not None else None
    if value is None or maker is None or not is_read_once(value):
        return None
    if maker.op_type in NORM_WEIGHTS and value is maker.outputs[0]:
        read = [maker.inputs[index] for index in NORM_WEIGHTS[maker.op_type] if index < len(maker.inputs)]
        vectors = all(each is None or (is_constant(each) and small_constant(each) is not None) for each in read)
        return Norm(maker) if vectors else None
    if maker.op_type == "Mul" and not maker.domain:
        return next((found for factor in maker.inputs if (found := rows_of(factor, products)) is not None), None)
    return None


def takes_rows(node: ir.Node) -> bool:
    """Return whether a node only selects tokens of [batch, tokens, width], as before the output layer."""
    return node.op_type == "Gather" and not node.domain and node.attributes.get_int("axis", 0) in (0, 1)


def is_read_once(value: ir.Value | None) -> bool:
    """Return whether exactly one node reads a value, and the graph does not return it."""
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


def rows_of(value: ir.Value | None, products: dict[ir.Node, Product]) -> Rows | None:
    """The outputs of a product without bias that make up a value, directly or by a Split, if nothing else reads them."""
    node = value.producer() if value is not None else None
    if value is None or node is None or not is_read_once(value):
        return None
    start = 0
    if node.op_type == "Split":
        sizes = small_constant(node.inputs[1]) if len(node.inputs) > 1 else None
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if sizes is None or source is None or not is_read_once(node.inputs[0]):
            return None
        start, node = int(np.cumsum([0, *sizes.tolist()])[list(node.outputs).index(value)]), source
    product = products.get(node)
    return Rows(str(product.weight.name), start) if product is not None and product.bias is None else None
