"""Fuse residual sums with the norm that reads them: ONNX Runtime's SkipSimplifiedLayerNormalization and SkipLayerNormalization.

The operator also returns the sum, for the next residual connection. A bias added to one of the summands is fused too. A norm that
does not read a sum is unchanged.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph.linear import is_bias, is_constant, sizes_of
from ..reshapes import same_shape

SKIP_FORMS = {"RMSNormalization": "SkipSimplifiedLayerNormalization", "LayerNormalization": "SkipLayerNormalization"}


def fuse_skip_norms(model: ir.Model) -> None:
    """Fuse every residual sum with the first norm that reads it, in place."""
    graph = model.graph
    for node in list(graph):
        if node.op_type in SKIP_FORMS and not node.domain and is_plain(node):
            fuse(graph, node)
    model.opset_imports["com.microsoft"] = 1


def is_plain(norm: ir.Node) -> bool:
    """Return whether a norm works on the last axis in float32, with constant weights, and returns only the normalised values."""
    rank = len(norm.inputs[0].shape) if norm.inputs[0] is not None and norm.inputs[0].shape is not None else 0
    return (
        rank == 3
        and norm.attributes.get_int("axis", -1) in {-1, rank - 1}
        and norm.attributes.get_int("stash_type", 1) == 1
        and all(is_constant(value) and value is not None and len(sizes_of(value)) == 1 for value in norm.inputs[1:])
        and not any(value.uses() or value.is_graph_output() for value in norm.outputs[1:])
    )


def fuse(graph: ir.Graph, norm: ir.Node) -> None:
    """Replace a sum and its norm by the skip form."""
    total = norm.inputs[0]
    add = total.producer() if total is not None else None
    if total is None or add is None or add.op_type != "Add" or add.domain or total.is_graph_output():
        return
    summands = list(add.inputs)
    if any(v is None or v.shape is None or total.shape is None or not same_shape(v.shape, total.shape) for v in summands):
        return
    bias = None
    for index, summand in enumerate(summands):
        if bias is None and summand is not None and (found := biased(summand)) is not None:
            summands[index], bias = found
    made = ir.node(
        SKIP_FORMS[norm.op_type],
        [*summands, *skip_weights(norm), *([bias] if bias is not None else [])],
        {"epsilon": norm.attributes.get_float("epsilon", 1e-5)},
        domain="com.microsoft",
        num_outputs=4,
    )
    for value, like in ((made.outputs[0], norm.outputs[0]), (made.outputs[3], total)):
        value.type, value.shape = like.type, like.shape
    made.outputs[0].name, made.outputs[3].name = norm.outputs[0].name, total.name
    made.outputs[1].name = made.outputs[2].name = ""
    graph.insert_after(add, made)
    norm.outputs[0].replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    total.replace_all_uses_with(made.outputs[3])
    graph.remove(add, safe=True)


def skip_weights(norm: ir.Node) -> list[ir.Value | None]:
    """Scale of a norm, and its bias (or None) if the skip form has one."""
    if norm.op_type == "RMSNormalization":
        return [norm.inputs[1]]
    return [norm.inputs[1], norm.inputs[2] if len(norm.inputs) > 2 else None]


def biased(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The value to which a constant vector was added, and the vector, if nothing else reads the sum."""
    add = value.producer()
    if add is None or add.op_type != "Add" or add.domain or len(value.uses()) > 1 or value.is_graph_output() or value.shape is None:
        return None
    for data, bias in (add.inputs, reversed(add.inputs)):
        same = data is not None and data.shape is not None and same_shape(data.shape, value.shape)
        if same and isinstance(value.shape[-1], int) and is_bias(bias, value.shape[-1]) and data is not None and bias is not None:
            return data, bias
    return None
