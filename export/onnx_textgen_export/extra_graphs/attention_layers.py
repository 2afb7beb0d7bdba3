"""The attention layers of a graph, and what further branches of theirs have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from ..errors import ExportError
from .node_builder import NodeBuilder

LEAVE_OUT = "leave out --int8-cache"


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The attention of one layer."""

    node: ir.Node
    """Its GroupQueryAttention."""
    attributes: Mapping[str, Any]
    head_size: int
    rotary_size: int
    """Channels of a head that the operator rotates by position, in pairs; 0 where keys arrive rotated, or no position rotates
    them."""

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads, and heads of keys and values."""
        return int(self.attributes["num_heads"]), int(self.attributes["kv_num_heads"])

    @property
    def pasts(self) -> tuple[ir.Value, ir.Value]:
        """The graph's inputs of cached keys and values, [batch, kv_heads, cache length, head_size]."""
        key, value = self.node.inputs[3:5]
        assert key is not None and value is not None, "a layer that returns its cache reads it"
        return key, value

    def name(self, what: str) -> str:
        """A name for something that belongs to this layer."""
        return f"{self.node.name}.{what}"


def layer_of(node: ir.Node) -> Layer:
    """The layer of a GroupQueryAttention."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    rotary = 2 * width_of(node.inputs[7]) if attributes.get("do_rotary") else 0
    return Layer(node, attributes, width_of(node.inputs[3]), rotary)


class AttentionBranch(NodeBuilder):
    """A branch that computes a layer's attention otherwise, from the same inputs."""

    def __init__(self, graph: ir.Graph, layer: Layer, past: ir.Value, name: str) -> None:
        """`past` [1]: tokens in the cache before the run; `name`: of the branch."""
        super().__init__(graph, layer.name(name))
        self.layer, self.past = layer, past

    def split_qkv(self) -> list[ir.Value]:
        """Queries, keys and values [batch, new, heads * head_size]."""
        query, key, value = self.layer.node.inputs[:3]
        assert query is not None, "attention has queries"
        if key is not None and value is not None:
            return [query, key, value]
        heads, kv_heads = (count * self.layer.head_size for count in self.layer.heads)
        return list(self.add("Split", query, self.whole(heads, kv_heads, kv_heads), axis=-1, outputs=3).outputs)

    def rotated(self, value: ir.Value, heads: int) -> ir.Value:
        """Queries or keys, rotated by their positions if the operator rotates them."""
        if not self.layer.rotary_size:
            return value
        attributes = {"interleaved": self.layer.attributes.get("rotary_interleaved", 0), "num_heads": heads}
        if self.layer.rotary_size < self.layer.head_size:
            attributes["rotary_embedding_dim"] = self.layer.rotary_size
        tables = self.layer.node.inputs[7:9]
        return self.one("RotaryEmbedding", value, self.past, *tables, domain="com.microsoft", **attributes)


def find_layers(graph: ir.Graph) -> list[Layer]:
    """Every layer whose keys and values can be kept at 8 bits; raises `ExportError` where one does so by another operator."""
    presents = {value for value in graph.outputs if str(value.name).startswith("present.")}
    found = list[Layer]()
    for node in graph:
        if node.op_type == "GroupQueryAttention" and presents.issuperset(node.outputs[1:3]):
            found.append(layer_of(node))
            presents.difference_update(node.outputs[1:3])
    if any(output.uses() for layer in found for output in layer.node.outputs[1:3]):
        raise ExportError(f"no 8-bit cache: pictures are read in both directions; {LEAVE_OUT}")
    if presents or not found:
        what = f"{min(str(value.name) for value in presents)} is not" if presents else "nothing is"
        raise ExportError(f"no 8-bit cache: {what} kept by ONNX Runtime's GroupQueryAttention; {LEAVE_OUT}")
    return found


def width_of(value: ir.Value | None) -> int:
    """The last dimension of a value whose shape is known."""
    assert value is not None and value.shape is not None, "caches and tables of angles have shapes"
    width = value.shape[-1]
    assert isinstance(width, int), "and their last dimension is a number"
    return width
