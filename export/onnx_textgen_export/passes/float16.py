"""Convert a graph to float16: weights, activations, cache and logits. Meant for CUDA, where it halves memory and its traffic.

float32 is kept where 11 bits are too few: angles of positions (5,000 times a frequency has no float16), norms that are spelt out
(squares overflow, small epsilons vanish), exponentials, recurrences that are a Scan, and numbers counted as integers. Norms
and attention as single operators compute in float32 internally. Weights are converted when they are written.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..errors import ExportError
from .graph.linear import add_constant, is_constant

LARGEST = 65_504.0
"""Largest float16; larger magnitudes (the -3.4e38 of a mask) are clipped to it."""
ANGLES = frozenset({"Sin", "Cos"})
"""Everything that leads to these stays in float32."""
PRECISE = ANGLES | {
    *("Pow", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "Sqrt", "Reciprocal"),
    *("Exp", "Log", "Softplus", "Range", "CumSum", "Scan"),
}
"""Computed in float32 whatever their inputs."""
FOLLOWING = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Neg", "Max", "Min", "Clip", "Where", "Floor", "Ceil", "Abs"),
        *("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Concat", "Slice", "Gather", "Identity", "Split", "Tile"),
    }
)
"""Computed in float32 if no input is float16."""
CHUNK = 1 << 20
FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def to_float16(model: ir.Model) -> None:
    """Convert `model` to float16 in place; raises `ExportError` for a graph with branches."""
    graph = model.graph
    for node in graph:
        branches = (attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values())
        if any(branches) and node.op_type != "Scan":
            raise ExportError(f"fp16 of a graph with a branch ({node.op_type}) is not available yet; take fp32, int8 or int4")
    spread_types(graph)
    precise = precise_nodes(graph)
    change = Change(graph, frozenset(precise))
    change.place_casts()
    change.halve_constants()
    for node in graph:
        if node not in precise and not change.is_cast(node):
            retype(node)
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype == FLOAT:
            set_type(value, HALF)
            if value.const_value is not None:  # the default of an optional input
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)


def is_float(value: ir.Value | None) -> bool:
    """Return whether a value is float32."""
    return value is not None and value.dtype == FLOAT


def set_type(value: ir.Value, dtype: ir.DataType) -> None:
    """Set a value's type; `value.dtype = ...` would change a type object that other values may share."""
    value.type = ir.TensorType(dtype)


def spread_types(graph: ir.Graph) -> None:
    """Infer float32 for values that passes left without a type: from float32 inputs of their operators, or from a constant."""
    version = graph.opset_imports.get("", 1)
    for node in graph:
        for place, value in enumerate(node.outputs):
            if value.dtype is None and (makes_float(node) or gives_float(node, place, version)):
                set_type(value, FLOAT)


def makes_float(node: ir.Node) -> bool:
    """Return whether a node makes float32 of a shape; without a value it makes zeros of that type."""
    value = node.attributes.get_tensor("value")
    return node.op_type == "ConstantOfShape" and (value is None or value.dtype == FLOAT)


def gives_float(node: ir.Node, place: int, version: int) -> bool:
    """Return whether an output is float32 because an input is, by the operator's schema; assumed of contrib operators."""
    floats = [index for index, value in enumerate(node.inputs) if is_float(value)]
    if not floats or node.domain:
        return bool(floats)
    schema = onnx.defs.get_schema(node.op_type, version)
    kinds = {schema.inputs[min(index, len(schema.inputs) - 1)].type_str for index in floats}
    return schema.outputs[min(place, len(schema.outputs) - 1)].type_str in kinds


def precise_nodes(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that stay in float32."""
    found = {node for node in graph if node.op_type in PRECISE and not node.domain and touches_float(node)}
    waiting = [node for node in found if node.op_type in ANGLES]
    waiting += (scales := [node for node in graph if makes_scales(node)])  # of rows: too small for float16
    found.update(scales)
    while waiting:
        for value in waiting.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in found and touches_float(producer):
                found.add(producer)
                waiting.append(producer)
    for node in graph:  # in order, so that a node is visited after its inputs
        if counts_as_integer(node) or (node.op_type in FOLLOWING and not node.domain and follows(node, found)):
            found.add(node)
    return found


def makes_scales(node: ir.Node) -> bool:
    """Return whether a node multiplies the codes of scales by the scales of rows (see `layouts.multiplied`)."""
    cast = node.inputs[0].producer() if node.op_type == "Mul" and node.inputs[0] is not None else None
    codes = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    return codes is not None and is_constant(codes) and codes.dtype in (ir.DataType.INT8, ir.DataType.UINT8)


def touches_float(node: ir.Node) -> bool:
    """Return whether a node has a float32 input or output."""
    return any(is_float(value) for value in (*node.inputs, *node.outputs))


def counts_as_integer(node: ir.Node) -> bool:
    """Return whether a node casts integers to float32: positions and lengths, which float16 represents only up to 2,048."""
    source = node.inputs[0] if node.op_type == "Cast" and node.inputs else None
    return source is not None and is_float(node.outputs[0]) and source.dtype in (ir.DataType.INT64, ir.DataType.INT32)


def follows(node: ir.Node, precise: set[ir.Node]) -> bool:
    """Return whether every float32 input is a constant or from a node that stays in float32, and at least one is such a node's."""
    sources = [value for value in node.inputs if value is not None and is_float(value) and not is_constant(value)]
    return bool(sources) and all(value.producer() in precise for value in sources)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """The conversion of one graph."""

    graph: ir.Graph
    precise: frozenset[ir.Node]
    casts: dict[tuple[int, ir.DataType], ir.Node] = dataclasses.field(default_factory=dict)
    """By the id of the value and the type it is cast to."""

    def is_cast(self, node: ir.Node) -> bool:
        """Return whether a node is one of the casts made here."""
        return node in self.casts.values()

    def place_casts(self) -> None:
        """Cast wherever a value passes between float16 and float32 nodes."""
        for node in list(self.graph.all_nodes()):
            is_precise = node in self.precise or node.graph is not self.graph
            for index, value in enumerate(node.inputs):
                if value is None or not is_float(value) or is_constant(value) or value.graph is not self.graph:
                    continue
                comes_precise = value.producer() in self.precise
                if comes_precise != is_precise:
                    node.replace_input_with(index, self.cast(value, HALF if comes_precise else FLOAT))
        for index, value in enumerate(self.graph.outputs):
            if value.producer() in self.precise and is_float(value):
                name, cast = value.name, self.cast(value, HALF)
                value.name, cast.name, cast.shape = f"{name}.float32", name, value.shape
                self.graph.outputs[index] = cast

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another type, by a cast that all its readers share."""
        key = (id(value), dtype)
        if key not in self.casts:
            node = ir.node("Cast", [value], {"to": int(dtype)})
            set_type(node.outputs[0], dtype)
            node.outputs[0].shape = value.shape
            producer = value.producer()
            if producer is None:
                self.graph.insert_before(self.graph[0], node)
            else:
                self.graph.insert_after(producer, node)
            self.casts[key] = node
        return self.casts[key].outputs[0]

    def halve_constants(self) -> None:
        """Convert the float32 constants of float16 nodes; one that float32 nodes read too is kept in both types."""
        for value in list(self.graph.initializers.values()):
            if not is_constant(value) or not is_float(value) or value.const_value is None:
                continue
            uses = [use for use in value.uses() if use.node not in self.precise and use.node.graph is self.graph]
            if not uses:
                continue
            half = halved(value.const_value)
            if len(uses) == len(value.uses()):
                half.name = value.name
                value.const_value = half
                set_type(value, HALF)
                continue
            added = add_constant(self.graph, f"{value.name}.half", half)
            for use in uses:
                use.node.replace_input_with(use.idx, added)


def halved(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """A tensor in float16, converted in parts when it is written."""

    def convert() -> ir.TensorProtocol:
        source = tensor.numpy()
        flat, out = source.reshape(-1), np.empty(source.size, np.float16)
        for start in range(0, source.size, CHUNK):
            piece = slice(start, start + CHUNK)
            out[piece] = np.clip(flat[piece].astype(np.float32), -LARGEST, LARGEST)
        return ir.Tensor(out.reshape(source.shape))

    return ir.LazyTensor(convert, dtype=HALF, shape=ir.Shape(tensor.shape.numpy()))


def retype(node: ir.Node) -> None:
    """Change a node from float32 to float16: the type it casts to, the constant it makes, its outputs."""
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) == int(FLOAT):
        node.attributes["to"] = ir.AttrInt64("to", int(HALF))
    if node.op_type in ("Constant", "ConstantOfShape") and is_float(node.outputs[0]):
        data = constant_of(node)
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.clip(data, -LARGEST, LARGEST).astype(np.float16)))
    for value in node.outputs:
        if value.dtype == FLOAT:
            set_type(value, HALF)


def constant_of(node: ir.Node) -> npt.NDArray[np.float32]:
    """Return the array of a Constant, or the repeated value of a ConstantOfShape."""
    for attribute in node.attributes.values():
        value = attribute.value
        return np.asarray(value.numpy() if isinstance(value, ir.TensorProtocol) else value, np.float32)
    return np.zeros(1, np.float32)
