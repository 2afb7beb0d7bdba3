"""Select positions with one Gather instead of the tracer's Transpose, Expand, Unsqueeze, GatherND and Transpose."""

from __future__ import annotations

import onnx_ir as ir

from .graph.linear import small_constant


def gather_positions(model: ir.Model) -> None:
    """Replace these nodes by one, in place, wherever positions are selected along the second axis."""
    graph = model.graph
    for node in list(graph):
        chosen = chosen_positions(node)
        if chosen is None:
            continue
        data, positions = chosen
        gather = ir.node("Gather", [data, positions], {"axis": 1})
        ir.convenience.replace_nodes_and_values(graph, node, [node], [gather], node.outputs, gather.outputs)


def chosen_positions(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The data and the positions of `Transpose(GatherND(Transpose(data), Unsqueeze(positions, -1)))`."""
    gather = producer_of(node, 0, "GatherND") if swaps_first_two(node) else None
    if gather is None or gather.attributes.get_int("batch_dims", 0) != 0:
        return None
    swap, unsqueeze = producer_of(gather, 0, "Transpose"), producer_of(gather, 1, "Unsqueeze")
    if swap is None or unsqueeze is None or not swaps_first_two(swap):
        return None
    data, positions, axes = swap.inputs[0], unexpanded(unsqueeze.inputs[0]), small_constant(unsqueeze.inputs[1])
    if data is None or positions is None or positions.shape is None or len(positions.shape) != 1 or axes is None:
        return None
    return (data, positions) if axes.tolist() in ([-1], [1]) else None


def unexpanded(value: ir.Value | None) -> ir.Value | None:
    """The input of an Expand to its own shape, which the tracer computes as the shape of a Max over one tensor."""
    expand = value.producer() if value is not None else None
    shape = producer_of(expand, 1, "Shape") if expand is not None and expand.op_type == "Expand" else None
    if expand is None or shape is None or shape.attributes.get_int("start", 0) != 0 or "end" in shape.attributes:
        return value
    greatest = producer_of(shape, 0, "Max")
    measured = greatest.inputs[0] if greatest is not None and len(greatest.inputs) == 1 else shape.inputs[0]
    return measured if measured is expand.inputs[0] else value


def producer_of(node: ir.Node, index: int, op_type: str) -> ir.Node | None:
    """The producer of an input, if it has that operator type."""
    value = node.inputs[index]
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == op_type and not producer.domain else None


def swaps_first_two(node: ir.Node) -> bool:
    """Return whether a node is a Transpose of the first two axes of three."""
    return node.op_type == "Transpose" and list(node.attributes.get_ints("perm", [])) == [1, 0, 2]
