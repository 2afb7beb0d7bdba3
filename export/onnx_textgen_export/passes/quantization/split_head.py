"""Splits an output layer in two, the rows of the lower token ids and the rest, so that each part may be rounded differently.

A tokenizer that was trained by merging (BPE) numbers its tokens in the order of their merges, so the second half of a vocabulary is
seldom used: 4 bits suffice for it where the first half needs 8. A tied table of embeddings is gathered from both parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from ..graph.linear import add_constant, replace, shared_constant, sizes_of
from ..graph.products import Product, find_products, find_tables
from ..graph.provenance import chosen_pieces, made_of, pieces_of
from .options import SMALLEST_TABLE

SMALLEST_VOCABULARY = 4 * SMALLEST_TABLE
"""A smaller vocabulary is not worth the nodes that two parts take."""


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Where the outputs of a matrix are split."""

    weight: str
    """The initializer."""
    outputs: int
    cut: int
    """Outputs of the first part."""
    inputs_first: bool = False
    """The matrix is [in, out]."""

    @property
    def parts(self) -> dict[str, slice]:
        """The outputs of each part, by the name that its initializer gets."""
        return {f"{self.weight}.first": slice(0, self.cut), f"{self.weight}.rest": slice(self.cut, self.outputs)}

    def part(self, tensor: ir.TensorProtocol, outputs: slice) -> ir.LazyTensor:
        """Some outputs of the matrix, read when they are written."""
        count, dtype = outputs.stop - outputs.start, tensor.dtype
        inputs = int(tensor.shape.numpy()[0 if self.inputs_first else 1])
        chosen = (slice(None), outputs) if self.inputs_first else (outputs,)
        part = ir.LazyTensor(
            lambda: ir.tensor(np.ascontiguousarray(tensor.numpy()[chosen]), dtype=dtype),
            dtype=dtype,
            shape=ir.Shape([inputs, count] if self.inputs_first else [count, inputs]),
        )
        return made_of(part, (), pieces=chosen_pieces(pieces_of(tensor), np.arange(outputs.start, outputs.stop)))


def find_split(product: Product) -> Split | None:
    """The middle of an output layer, unless it is small or its product has the bias inside (a Gemm)."""
    outputs = product.sizes[1]
    if product.bias is not None or outputs < SMALLEST_VOCABULARY or not pieces_of(product.weight.const_value):
        return None
    return Split(str(product.weight.name), outputs, outputs // 2, product.inputs_first)


def split_matrices(graph: ir.Graph, splits: Iterable[Split]) -> None:
    """Split the matrices: outputs of their products are concatenated, and a gathered row comes from the part that has it."""
    for split in splits:
        weight = graph.initializers[split.weight]
        assert weight.const_value is not None, "weights have data"
        whole = weight.const_value
        parts = [add_constant(graph, name, split.part(whole, outputs)) for name, outputs in split.parts.items()]
        for product in [each for each in find_products(graph).values() if each.weight is weight]:
            split_product(graph, product, parts)
        for node in [each for each in find_tables(graph, SMALLEST_TABLE) if each.inputs[0] is weight]:
            split_table(graph, node, parts)


def split_product(graph: ir.Graph, product: Product, parts: list[ir.Value]) -> None:
    """Multiply with each part."""
    transposes = [] if product.inputs_first else [ir.node("Transpose", [part], {"perm": [1, 0]}) for part in parts]
    factors = parts if product.inputs_first else [node.outputs[0] for node in transposes]
    products = [ir.node("MatMul", [product.node.inputs[0], factor]) for factor in factors]
    for part, node in zip(parts, products, strict=True):
        node.name = part.name
    graph.insert_before(product.node, [*transposes, *products])
    replace(graph, product.node, [ir.node("Concat", [node.outputs[0] for node in products], {"axis": -1})])


def split_table(graph: ir.Graph, node: ir.Node, parts: list[ir.Value]) -> None:
    """Gather from both parts, with ids clipped to each, and select the row of the part that has the id."""
    ids, cut = node.inputs[1], sizes_of(parts[0])[0]
    numbers = {
        name: shared_constant(graph, f"{parts[0].name}.{name}", np.array(number, np.int64))
        for name, number in (("rows", cut), ("last", cut - 1), ("none", 0), ("axis", [-1]))
    }
    is_first = ir.node("Less", [ids, numbers["rows"]])
    column = ir.node("Unsqueeze", [is_first.outputs[0], numbers["axis"]])
    low = ir.node("Min", [ids, numbers["last"]])
    shifted = ir.node("Sub", [ids, numbers["rows"]])
    high = ir.node("Max", [shifted.outputs[0], numbers["none"]])
    rows = [ir.node("Gather", [part, each.outputs[0]]) for part, each in zip(parts, (low, high), strict=True)]
    for each in rows:
        each.outputs[0].shape, each.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
    graph.insert_before(node, [is_first, column, low, shifted, high, *rows])
    replace(graph, node, [ir.node("Where", [column.outputs[0], *(each.outputs[0] for each in rows)])])
