"""Compute linear layers that read the same input as one product and a Split: fewer, larger products.

These are gate and up projection, and query, key and value if a node stands between them and the attention. (Otherwise
`attention_inputs` packs them without a Split.) At int4 one product also rounds its input once instead of twice. Routers of
mixtures of experts are not packed, so that they can keep full precision, nor are layers that the source stored in different forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ...sources.stored_form import StoredForm
from ..graph.linear import Linear, find_linear, insert_linear, shared_constant
from ..graph.stored_kinds import kinds_of

ATTENTION = frozenset({"GroupQueryAttention", "Attention"})
SMALLEST = 64
"""A layer with fewer outputs that does not lead to attention is a gate, not a projection."""

Member = tuple[Linear, ir.Value]


def pack_projections(model: ir.Model, stored: Mapping[str, StoredForm] | None = None) -> None:
    """Pack linear layers of one input, in place; `stored`: how the source held parameters that keep their numbers."""
    graph = model.graph
    groups: dict[tuple[object, ...], list[Member]] = {}
    for node in graph:
        member = whole_linear(node)
        kind = kind_of(*member) if member is not None else None
        if member is not None and kind is not None:
            key = (member[0].input, member[0].bias is None, kind, kinds_of(member[0], stored or {}))
            groups.setdefault(key, []).append(member)
    order = {node: index for index, node in enumerate(graph)}
    for group in groups.values():
        if len(group) > 1:
            pack(graph, group, order)


def whole_linear(node: ir.Node) -> Member | None:
    """The linear layer that ends with this node, and its output."""
    linear = find_linear(node.outputs[0])
    if linear is None or linear.transposed or node.outputs[0].is_graph_output():
        return None
    longer = [after for user in node.outputs[0].consumers() if (after := find_linear(user.outputs[0])) and user.op_type == "Add"]
    return None if longer else (linear, node.outputs[0])


def kind_of(linear: Linear, output: ir.Value) -> object:
    """Return the packing key: layers with equal keys may be packed. None for routers and small layers."""
    reached = {node.op_type for node in reached_nodes(output)}
    if reached & ATTENTION:
        return "attention"
    return linear.sizes[1] if "TopK" not in reached and linear.sizes[1] >= SMALLEST else None


def reached_nodes(output: ir.Value) -> Iterator[ir.Node]:
    """Nodes that a value reaches, as far as the next products and attentions."""
    seen: set[ir.Node] = set()
    waiting = list(output.consumers())
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if node.op_type not in ATTENTION and node.op_type != "MatMul":
            waiting += [user for value in node.outputs for user in value.consumers()]


def pack(graph: ir.Graph, group: list[Member], order: dict[ir.Node, int]) -> None:
    """Replace the products of a group by one product and a Split."""
    producers = [node for _, value in group if (node := value.producer()) is not None]
    first = min(producers, key=order.__getitem__)
    sizes = [linear.sizes[1] for linear, _ in group]
    packed = insert_linear(
        first, [(linear, np.arange(size)) for (linear, _), size in zip(group, sizes, strict=True)], packed_name(group)
    )
    lengths = shared_constant(graph, "sizes." + "_".join(map(str, sizes)), np.array(sizes, np.int64))
    split = ir.node("Split", [packed, lengths], {"axis": -1}, num_outputs=len(group))
    graph.insert_before(first, split)
    for (_, value), part in zip(group, split.outputs, strict=True):
        part.type, part.shape = value.type, value.shape
        value.replace_all_uses_with(part)


def packed_name(group: list[Member]) -> str:
    """The name of the packed weight, after the first weight."""
    return f"{(group[0][0].weight.name or 'projection').removesuffix('.transposed').removesuffix('.weight')}.packed"
