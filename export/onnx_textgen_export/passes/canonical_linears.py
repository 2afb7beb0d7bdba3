"""Write every linear layer as `MatMul(x, W)` with W [in, out], and an Add of its bias.

Two other forms occur: a Gemm between two Reshapes (GPT-2), and a MatMul with the Transpose of a weight, which the tracer leaves
because it loads no weights. The weight is transposed when the file is written; one with another reader, such as the embedding
that a tied output layer shares, is unchanged, so that it is stored once.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from .graph.linear import add_constant, is_bias, is_constant, is_matrix, shared_constant, sizes_of, transposed_lazily


def canonicalize_linears(model: ir.Model) -> None:
    """Rewrite Gemm nodes and transpose weights, in place."""
    graph = model.graph
    for node in list(graph):
        if node.op_type == "Gemm" and not node.domain:
            replace_gemm(graph, node)
    common_passes.RemoveUnusedNodesPass()(model)  # the weights' former readers
    for node in list(graph):
        if node.op_type == "Transpose" and not node.domain:
            transpose_weight(graph, node)


def replace_gemm(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a Gemm that reads tokens flattened to [batch * new, in] by MatMul and Add."""
    flattening = node.inputs[0].producer() if node.inputs[0] is not None else None
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    scaled = any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta"))
    readers = node.outputs[0].consumers()
    if scaled or node.attributes.get_int("transA", 0) != 0 or weight is None or not is_matrix(weight):
        return
    if flattening is None or flattening.op_type != "Reshape":
        return
    data = flattening.inputs[0]
    transposed = bool(node.attributes.get_int("transB", 0))
    inputs, outputs = reversed(sizes_of(weight)) if transposed else sizes_of(weight)
    if data is None or data.shape is None or list(data.shape)[2:] not in ([inputs], heads_of(data, inputs)):
        return
    if bias is not None and not is_bias(bias, outputs):
        return
    shape = ir.Shape([data.shape[0], data.shape[1], outputs])
    if not readers or not all(is_unflattening(reader, shape) for reader in readers):
        return
    nodes = []
    if len(data.shape) == 4:  # the heads of attention
        sizes = shared_constant(graph, f"shape.0_0_{inputs}", np.array([0, 0, inputs]))
        nodes.append(ir.node("Reshape", [data, sizes]))
        joined = nodes[0].outputs[0]
        joined.shape, joined.type, data = ir.Shape([*list(data.shape)[:2], inputs]), data.type, joined
    if transposed:
        nodes.append(ir.node("Transpose", [weight], {"perm": [1, 0]}))
        nodes[-1].outputs[0].shape, nodes[-1].outputs[0].type = ir.Shape([inputs, outputs]), weight.type
        weight = nodes[-1].outputs[0]
    nodes.append(ir.node("MatMul", [data, weight]))
    if bias is not None:
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], bias]))
    for made in nodes[-2 if bias is not None else -1 :]:
        made.outputs[0].shape, made.outputs[0].type = shape.copy(), data.type
    graph.insert_before(node, nodes)
    for reader in readers:
        reader.outputs[0].replace_all_uses_with(nodes[-1].outputs[0])


def heads_of(data: ir.Value, width: int) -> list[int] | None:
    """The sizes of heads [batch, new, heads, size] that lie side by side in vectors of `width`; None for other shapes."""
    sizes = [] if data.shape is None else list(data.shape)[2:]
    static = [size for size in sizes if isinstance(size, int)]
    return static if len(static) == len(sizes) == 2 and static[0] * static[1] == width else None


def is_unflattening(node: ir.Node, shape: ir.Shape) -> bool:
    """Return whether a node reshapes [batch * new, out] to [batch, new, out], and is no output of the graph."""
    out = node.outputs[0]
    return node.op_type == "Reshape" and out.shape is not None and list(out.shape) == list(shape) and not out.is_graph_output()


def transpose_weight(graph: ir.Graph, node: ir.Node) -> None:
    """Store a transposed weight as [in, out]."""
    weight = node.inputs[0]
    if weight is None or not is_constant(weight) or not is_matrix(weight) or weight.const_value is None:
        return
    perm = list(node.attributes.get_ints("perm", [1, 0]))
    if perm != [1, 0] or any(user.op_type != "Transpose" for user in weight.consumers()):
        return
    transposed = add_constant(graph, f"{weight.name}.transposed", transposed_lazily(weight.const_value))
    node.outputs[0].replace_all_uses_with(transposed)
