"""The attention layers whose keys and values can be kept at 8 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from ..errors import ExportError

LEAVE_OUT = "leave out --int8-cache"


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The attention of one layer."""

    node: onnx.NodeProto
    attributes: Mapping[str, Any]
    head_size: int
    rotary_size: int
    """Channels of a head that the operator turns by position, in pairs; 0 where keys come turned, or are not turned at all."""

    @property
    def heads(self) -> tuple[int, int]:
        """Of queries, and of keys and values."""
        return int(self.attributes["num_heads"]), int(self.attributes["kv_num_heads"])

    def name(self, what: str) -> str:
        """A name of the layer's own."""
        return f"{self.node.name}.{what}"


def find_layers(graph: onnx.GraphProto) -> list[Layer]:
    """Every layer that keeps keys and values; raises `ExportError` where one does so in another way than the operator knows."""
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input}
    widths = {tensor.name: tensor.dims[-1] for tensor in graph.initializer if tensor.dims}
    widths |= {value.name: dims[-1].dim_value for value in graph.value_info if (dims := value.type.tensor_type.shape.dim)}
    presents = {value.name for value in graph.output if value.name.startswith("present.")}
    found = list[Layer]()
    for node in graph.node:
        if node.op_type == "GroupQueryAttention" and presents.issuperset(node.output[1:3]):
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            turned = 2 * widths[node.input[7]] if attributes.get("do_rotary") else 0
            found.append(Layer(node, attributes, sizes[node.input[3]][3], turned))
            presents.difference_update(node.output[1:3])
    if presents or not found:
        what = f"{min(presents)} is not" if presents else "nothing is"
        raise ExportError(f"no 8-bit cache: {what} kept by ONNX Runtime's GroupQueryAttention; {LEAVE_OUT}")
    return found
