"""Move a Transpose after the norm that follows it: a norm over the last axis ignores the order of the others.

Gemma 3 transposes heads and then normalises them; after the move, the Transpose meets its inverse and both are removed.
"""

from __future__ import annotations

import onnx_ir as ir

NORMS = frozenset({"RMSNormalization", "LayerNormalization"})


def sink_transposes(model: ir.Model) -> None:
    """Swap every Transpose that keeps the last axis with the norm that follows it, in place."""
    graph = model.graph
    for norm in list(graph):
        source = norm.inputs[0] if norm.op_type in NORMS and not norm.domain else None
        swap = source.producer() if source is not None else None
        if source is None or swap is None or swap.op_type != "Transpose" or not can_wait(norm, swap, source):
            continue
        data = swap.inputs[0]
        assert data is not None, "a Transpose has an input"
        early = ir.node(norm.op_type, [data, *norm.inputs[1:]], {**dict(norm.attributes), "axis": -1})
        late = ir.node("Transpose", [early.outputs[0]], {"perm": list(swap.attributes["perm"].as_ints())})
        early.outputs[0].type, early.outputs[0].shape = norm.outputs[0].type, data.shape
        graph.insert_before(norm, early)
        ir.convenience.replace_nodes_and_values(graph, norm, [norm], [late], norm.outputs[:1], late.outputs)


def can_wait(norm: ir.Node, swap: ir.Node, source: ir.Value) -> bool:
    """Return whether a Transpose keeps the last axis, the norm works on that axis alone, and no other reader prevents the swap."""
    perm = list(swap.attributes.get_ints("perm", []))
    last = len(perm) - 1
    return (
        bool(perm)
        and perm[last] == last
        and norm.attributes.get_int("axis", -1) in {-1, last}
        and all(value is None or (value.shape is not None and len(value.shape) == 1) for value in norm.inputs[1:])
        and not any(value.uses() for value in norm.outputs[1:])
        and not source.is_graph_output()
    )
