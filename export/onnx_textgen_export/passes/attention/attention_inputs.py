"""Move the nodes between projections and GroupQueryAttention into the weights and the operator.

Columns that are only moved (reshape, transpose, split, slice) are moved in the weight instead. The operator applies the rotary
embedding (`do_rotary`, with tables of cosines and sines over the whole context). Query, key and value that are linear in the same
input become one product, the operator's packed form. If norms stand in between (Qwen3, Gemma 3, OLMo 2), or if the source stored
them in different forms, the operator still applies the rotary embedding, and the three inputs are separate. Angles that depend on
the length of the text (LongRoPE) or on pictures in it (M-RoPE) are computed once per run, and a RotaryEmbedding applies them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...sources.stored_form import StoredForm
from ..graph.linear import Linear, find_linear, insert_linear, shared_constant
from ..graph.stored_kinds import are_alike
from .origins import Origin, find_origin
from .probing import depends_on_tokens
from .rotary_tables import Angles, Table


def fuse_attention_inputs(model: ir.Model, *, context_length: int, stored: Mapping[str, StoredForm] | None = None) -> None:
    """Simplify the inputs of every GroupQueryAttention, in place; `stored`: the forms of parameters that keep their numbers."""
    graph = model.graph
    angles = Angles(graph, context_length)
    tokens = depends_on_tokens(graph)
    order = {node: index for index, node in enumerate(graph)}
    for node in list(graph):
        if node.op_type == "GroupQueryAttention" and not node.attributes.get_int("do_rotary", 0) and None not in node.inputs[:3]:
            past = node.inputs[3]
            if past is None or past.shape is None or not isinstance(past.shape[3], int):
                continue
            origins = [find_origin(graph, value, past.shape[3], tokens, order) for value in node.inputs[:3] if value is not None]
            found = [origin for origin in origins if origin is not None]
            if len(found) == 3 and found[2].rotation is None:
                simplify_attention(node, found, past.shape[3], angles, stored or {})


def simplify_attention(
    node: ir.Node, origins: list[Origin], head_size: int, angles: Angles, stored: Mapping[str, StoredForm]
) -> None:
    """Rewire one attention whose inputs were recognised."""
    if origins[0].rotation is None and origins[1].rotation is None:
        connect(node, packed_input(node, origins, stored) or separate_inputs(node, origins))
        return
    table = angles.table_for(origins[:2], head_size)
    inputs = None
    if table is not None:
        reordered = [reorder(origin, table, head_size) for origin in origins[:2]]
        inputs = packed_input(node, [*reordered, origins[2]], stored) or separate_inputs(node, [*reordered, origins[2]])
    if table is not None and inputs is not None:
        connect(node, inputs)
        rotate_inside(node, origins[0], table)
        return
    values = angles.values_for(origins[:2], head_size)
    inputs = separate_inputs(node, origins) if values is not None else None
    if values is not None and inputs is not None:
        rotated = [
            rotate_before(node, value, origin, values, head_size) for value, origin in zip(inputs[:2], origins[:2], strict=True)
        ]
        connect(node, [*rotated, inputs[2]])


def connect(node: ir.Node, inputs: list[ir.Value | None] | None) -> None:
    """Set the queries, keys and values of an attention."""
    for index, value in enumerate(inputs or []):
        node.replace_input_with(index, value)


def reorder(origin: Origin, table: Table, head_size: int) -> Origin:
    """An input with the columns of its heads in the table's order."""
    return dataclasses.replace(origin, columns=origin.columns.reshape(-1, head_size)[:, table.order].reshape(-1))


def rotate_inside(node: ir.Node, origin: Origin, table: Table) -> None:
    """Let the operator rotate queries and keys."""
    assert origin.rotation is not None, "there is a table for it"
    node.resize_inputs(max(9, len(node.inputs)))
    node.replace_input_with(7, table.cos)
    node.replace_input_with(8, table.sin)
    node.attributes.add(ir.AttrInt64("do_rotary", 1))
    node.attributes.add(ir.AttrInt64("rotary_interleaved", int(origin.rotation.interleaved)))


def rotate_before(
    node: ir.Node, value: ir.Value | None, origin: Origin, values: tuple[ir.Value, ir.Value], head_size: int
) -> ir.Value:
    """A RotaryEmbedding of one input [batch, new, heads * head_size]."""
    assert origin.rotation is not None and value is not None and isinstance(node.graph, ir.Graph), "values_for looked at it"
    attributes = {"interleaved": int(origin.rotation.interleaved), "num_heads": len(origin.columns) // head_size}
    if origin.rotation.size < head_size:
        attributes["rotary_embedding_dim"] = origin.rotation.size
    made = ir.node("RotaryEmbedding", [value, *values], attributes)
    made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
    node.graph.insert_before(node, made)
    return made.outputs[0]


def packed_input(node: ir.Node, origins: list[Origin], stored: Mapping[str, StoredForm]) -> list[ir.Value | None] | None:
    """One product for all three inputs, if they are linear in one value and stored alike; it may exist already."""
    linears = [find_linear(origin.root) for origin in origins]
    parts = [(linear, origin.columns) for linear, origin in zip(linears, origins, strict=True) if linear is not None]
    if len(parts) < 3 or len({linear.input for linear, _ in parts}) > 1:
        return None
    columns = np.concatenate([origin.columns for origin in origins])
    if len({origin.root for origin in origins}) == 1 and np.array_equal(columns, np.arange(parts[0][0].sizes[1])):
        return [origins[0].root, None, None]
    if not are_alike((linear for linear, _ in parts), stored):
        return None
    return [insert_linear(node, parts, layer_name(node, "packed_projection")), None, None]


def separate_inputs(node: ir.Node, origins: list[Origin]) -> list[ir.Value | None] | None:
    """Each input separately, with its columns in order; None if that takes more than a reshape."""
    linears: list[Linear | None] = [None if origin.stays else find_linear(origin.root) for origin in origins]
    if any(linear is None and not origin.stays for linear, origin in zip(linears, origins, strict=True)):
        return None
    inputs: list[ir.Value | None] = []
    for origin, linear, part in zip(origins, linears, ("query", "key", "value"), strict=True):
        if linear is not None:
            inputs.append(insert_linear(node, [(linear, origin.columns)], layer_name(node, part)))
        else:
            inputs.append(flattened(node, origin))
    return inputs


def layer_name(node: ir.Node, part: str) -> str:
    """A name like `layers.3.query`, after the attention's cache."""
    present = node.outputs[1].name or ""
    return f"layers.{present.split('.')[1]}.{part}" if present.startswith("present.") else part


def flattened(node: ir.Node, origin: Origin) -> ir.Value:
    """The root of an input as [batch, new, width]."""
    value, graph = origin.root, node.graph
    assert isinstance(graph, ir.Graph) and value.shape is not None, "Movement looked at it"
    if len(value.shape) == 3:
        return value
    nodes = []
    if origin.move.heads_first:
        nodes.append(ir.node("Transpose", [value], {"perm": [0, 2, 1, 3]}))
        value = nodes[-1].outputs[0]
    width = origin.move.width
    shape = shared_constant(graph, f"shape.0_0_{width}", np.array([0, 0, width], np.int64))
    nodes.append(ir.node("Reshape", [value, shape]))
    flat, sizes = nodes[-1].outputs[0], list(origin.root.shape or [])
    flat.type, flat.shape = origin.root.type, ir.Shape([sizes[0], sizes[2 if origin.move.heads_first else 1], width])
    graph.insert_before(node, nodes)
    return flat
