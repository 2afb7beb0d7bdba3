"""A product with a matrix that is stored [out, in] takes it as it lies: FusedMatMul in the place of a Transpose and a MatMul.

Such is the output layer that shares the embedding's table. ONNX Runtime would fold the Transpose when it opens the graph, into a
second table in memory. FusedMatMul is ONNX Runtime's own operator, so this is for the target `ort`.
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from .products import find_products


def turned_products(model: ir.Model) -> None:
    """Replace such products, in place."""
    for node, product in find_products(model.graph).items():
        if node.op_type == "MatMul" and not product.inputs_first:
            fused = ir.node("FusedMatMul", [node.inputs[0], product.weight], {"transB": 1}, domain="com.microsoft", name=node.name)
            out, made = node.outputs[0], fused.outputs[0]
            made.name, made.shape, made.type = out.name, out.shape, out.type
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], [fused], [out], [made])
            model.opset_imports["com.microsoft"] = 1
    common_passes.RemoveUnusedNodesPass()(model)
