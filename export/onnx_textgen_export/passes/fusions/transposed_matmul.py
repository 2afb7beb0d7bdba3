"""A product with a matrix that is stored [out, in] takes it as it lies: FusedMatMul in the place of a Transpose and a MatMul.

Such is the output layer that shares the embedding's table. ONNX Runtime would fold the Transpose when it opens the graph, into a
second table in memory. Nor do product and embedding read one constant: ONNX Runtime packs what a product reads and lets go of it,
unless another node reads it too, so each has a name of its own for the same bytes. FusedMatMul is ONNX Runtime's own operator, so
this is for the target `ort`.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.linear import add_constant, replace, sizes_of
from ..graph.products import find_products
from ..quantization.layouts import SameBytes


def fuse_transposed_matmul(model: ir.Model) -> None:
    """Replace such products, in place; a Transpose that nothing reads any more is left to be removed."""
    for node, product in find_products(model.graph).items():
        if node.op_type == "MatMul" and not product.inputs_first:
            inputs = [node.inputs[0], under_own_name(model.graph, product.weight)]
            fused = ir.node("FusedMatMul", inputs, {"transB": 1}, domain="com.microsoft", name=node.name)
            replace(model.graph, node, [fused])
            model.opset_imports["com.microsoft"] = 1


def under_own_name(graph: ir.Graph, weight: ir.Value) -> ir.Value:
    """The weight, or where several nodes read it another name of its bytes."""
    if len(weight.uses()) < 2:
        return weight
    rows, columns = sizes_of(weight)
    return add_constant(graph, f"{weight.name}.product", SameBytes(weight, (rows, columns)))
