"""FusedMatMul instead of Transpose and MatMul, for a product with a matrix stored as [out, in].

The output layer that shares the embedding's table is one. ONNX Runtime would fold the Transpose when it opens the graph, into a
second table in memory. Product and embedding also read different constants over the same bytes: ONNX Runtime packs the matrix of a
product and releases the original, unless another node reads it too. FusedMatMul is ONNX Runtime's own operator, so this pass is
for the target `ort`.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.linear import add_constant, replace, sizes_of
from ..graph.products import find_products
from ..quantization.layouts import SameBytes


def fuse_transposed_matmul(model: ir.Model) -> None:
    """Replace such products in place; unused Transposes are left to `remove_unused`."""
    for node, product in find_products(model.graph).items():
        if node.op_type == "MatMul" and not product.inputs_first:
            inputs = [node.inputs[0], under_own_name(model.graph, product.weight)]
            fused = ir.node("FusedMatMul", inputs, {"transB": 1}, domain="com.microsoft", name=node.name)
            replace(model.graph, node, [fused])
            model.opset_imports["com.microsoft"] = 1


def under_own_name(graph: ir.Graph, weight: ir.Value) -> ir.Value:
    """The weight, or another initializer over its bytes if more than one node reads it."""
    if len(weight.uses()) < 2:
        return weight
    rows, columns = sizes_of(weight)
    return add_constant(graph, f"{weight.name}.product", SameBytes(weight, (rows, columns)))
