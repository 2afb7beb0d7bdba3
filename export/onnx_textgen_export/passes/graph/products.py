"""The products of a graph with stored matrices, and the role of each in the decoder.

A product is `MatMul(x, W)`, `MatMul(x, Transpose(W))` or a Gemm that is a plain linear layer; W is an initializer of two
dimensions. Its role follows from the nodes around it, up to the next products, so it needs no names and no table of architectures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import onnx_ir as ir

from .linear import is_constant, sizes_of

Part = Literal["head", "router", "values", "feed-forward out", "other"]
ATTENTION = frozenset({"GroupQueryAttention", "Attention", "MultiHeadAttention"})
NORMS = frozenset(
    {
        "RMSNormalization",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "ReduceMean",  # of a norm spelt out
        "Sqrt",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A node that multiplies with a stored matrix."""

    node: ir.Node
    weight: ir.Value
    inputs_first: bool
    """The weight is [in, out], not [out, in]."""
    bias: ir.Value | None

    @property
    def sizes(self) -> tuple[int, int]:
        """(in, out)."""
        first, second = sizes_of(self.weight)
        return (first, second) if self.inputs_first else (second, first)


def find_products(graph: ir.Graph) -> dict[ir.Node, Product]:
    """Every product of the graph, by node and in the graph's order."""
    found = ((node, as_product(node)) for node in graph)
    return {node: product for node, product in found if product is not None}


def as_product(node: ir.Node) -> Product | None:
    """The node as a `Product`, if it is one."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain:
        return None
    weight, inputs_first, bias = node.inputs[1], True, None
    if node.op_type == "Gemm":
        if not is_linear(node):
            return None
        inputs_first, bias = not node.attributes.get_int("transB", 0), (*node.inputs, None)[2]
    elif weight is not None and (producer := weight.producer()) is not None and is_transpose(producer):
        weight, inputs_first = producer.inputs[0], False
    if weight is None or not is_constant(weight) or len(sizes_of(weight)) != 2 or is_constant(node.inputs[0]):
        return None
    return Product(node, weight, inputs_first, bias)


def is_linear(node: ir.Node) -> bool:
    """Return whether a Gemm computes x W + b and nothing more."""
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    return plain and not node.attributes.get_int("transA", 0)


def is_transpose(node: ir.Node) -> bool:
    """Return whether a node swaps the two dimensions of a matrix."""
    return node.op_type == "Transpose" and list(node.attributes.get_ints("perm", [1, 0])) == [1, 0]


def find_tables(graph: ir.Graph, smallest: int) -> list[ir.Node]:
    """Every Gather that takes rows of a stored matrix of at least `smallest` rows by ids of a run: the embeddings of tokens.

    Rows that are always the same are positions of an encoder of sound: each counts in every run, and they are few.
    """
    found = (node for node in graph if node.op_type == "Gather" and not node.domain and is_constant(node.inputs[0]))
    return [node for node in found if is_large_table(node, smallest) and not is_constant(node.inputs[1])]


def is_large_table(node: ir.Node, smallest: int) -> bool:
    """Return whether a Gather takes rows of a matrix of at least `smallest` rows."""
    sizes = sizes_of(node.inputs[0]) if node.inputs[0] is not None else ()
    return len(sizes) == 2 and sizes[0] >= smallest and node.attributes.get_int("axis", 0) == 0


def part_of(product: Product, products: dict[ir.Node, Product], logits: ir.Value | None) -> Part:
    """The role of a product in the decoder.

    `values`: it computes the values of attention (or queries, keys and values together); `feed-forward out`: it ends a
    feed-forward layer. Both write to the residual stream with little averaging, and are most sensitive to rounding.
    """
    below = list(reached(product.node, products))
    ends = [product.node, *(node for node, _ in below if node not in products)]
    if logits is not None and any(logits in node.outputs for node in ends):
        return "head"
    if any(node.op_type == "TopK" for node, _ in below):
        return "router"
    if any(node.op_type in ATTENTION and (index == 2 or node.inputs[1] is None) for node, index in below):
        return "values"
    if any(node.op_type in ATTENTION for node, _ in below):
        return "other"
    above = list(came_from(product.node, products))
    between = any(node.op_type in ATTENTION | NORMS for node in above)
    return "other" if between or not any(node in products for node in above) else "feed-forward out"


def reached(start: ir.Node, products: dict[ir.Node, Product]) -> Iterator[tuple[ir.Node, int]]:
    """Nodes that a node's output reaches, each with the input reached, as far as products and attention."""
    seen: set[tuple[ir.Node, int]] = set()
    waiting = readers_of(start)
    while waiting:
        entry = waiting.pop()
        if entry in seen:
            continue
        seen.add(entry)
        yield entry
        if entry[0] not in products and entry[0].op_type not in ATTENTION:
            waiting += readers_of(entry[0])


def readers_of(node: ir.Node) -> list[tuple[ir.Node, int]]:
    """The nodes that read a node's outputs, and the index of that input."""
    return [(use.node, use.idx) for value in node.outputs for use in value.uses()]


def came_from(start: ir.Node, products: dict[ir.Node, Product]) -> Iterator[ir.Node]:
    """Nodes from which a node's first input comes, as far as products, attention and norms."""
    seen: set[ir.Node] = set()
    waiting = [start.inputs[0]]
    while waiting:
        value = waiting.pop()
        node = value.producer() if value is not None else None
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node not in products and node.op_type not in ATTENTION | NORMS:
            waiting += node.inputs
