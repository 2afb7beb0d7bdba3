"""Find linear layers in a graph, and derive their weights without loading them.

A linear layer is `MatMul(x, W)` with W [in, out] or the Transpose of a W [out, in], and an `Add` of a bias where there is one.
Weights may be larger than memory: nothing here reads one until the file is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .provenance import Columns, Parameter, Piece, chosen_pieces, made_of, parameters_of, pieces_of

SMALL = 65_536
"""A pass may read constants of at most this many elements."""


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer found in a graph."""

    input: ir.Value
    weight: ir.Value
    """An initializer."""
    transposed: bool
    """The weight is [out, in]."""
    bias: ir.Value | None

    @property
    def sizes(self) -> tuple[int, int]:
        """(in, out)."""
        first, second = sizes_of(self.weight)
        return (second, first) if self.transposed else (first, second)


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is a weight or another constant, and not the default of an optional input."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def small_constant(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """The data of a constant, unless it is large."""
    if value is None or not is_constant(value) or value.const_value is None or value.const_value.size > SMALL:
        return None
    data: npt.NDArray[np.generic] = value.const_value.numpy()
    return data


def sizes_of(value: ir.Value) -> tuple[int, ...]:
    """The shape of a constant."""
    assert value.const_value is not None, "constants have data"
    return tuple(int(size) for size in value.const_value.shape.numpy())


def find_linear(value: ir.Value | None) -> Linear | None:
    """The linear layer whose output is `value`, its bias included."""
    node = value.producer() if value is not None else None
    if node is None or node.domain:
        return None
    if node.op_type == "Add":
        for product, bias in (node.inputs, reversed(node.inputs)):
            found = find_linear(product)
            if found is not None and found.bias is None and is_bias(bias, found.sizes[1]):
                return dataclasses.replace(found, bias=bias)
        return None
    if node.op_type != "MatMul" or node.inputs[0] is None or is_constant(node.inputs[0]):
        return None
    weight = node.inputs[1]
    if is_matrix(weight):
        return Linear(node.inputs[0], weight, False, None)  # type: ignore[arg-type]
    producer = weight.producer() if weight is not None else None
    if producer is not None and producer.op_type == "Transpose" and is_matrix(producer.inputs[0]):
        return Linear(node.inputs[0], producer.inputs[0], True, None)  # type: ignore[arg-type]
    return None


def is_matrix(value: ir.Value | None) -> bool:
    """Return whether a value is a constant of two dimensions."""
    return value is not None and is_constant(value) and len(sizes_of(value)) == 2


def is_bias(value: ir.Value | None, size: int) -> bool:
    """Return whether a value is a constant vector of that size."""
    return value is not None and is_constant(value) and sizes_of(value) == (size,)


def add_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer; a number is appended to a name in use."""
    free = tensor.name = free_name(graph, name)
    value = ir.Value(name=free, const_value=tensor, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def free_name(graph: ir.Graph, name: str) -> str:
    """The name, with a number appended if another value has it."""
    taken = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
    free, number = name, 1
    while free in taken:
        free, number = f"{name}.{number}", number + 1
    return free


def shared_constant(graph: ir.Graph, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
    """An initializer for a small array, made once per name; the name determines the contents."""
    return graph.initializers[name] if name in graph.initializers else add_constant(graph, name, ir.tensor(array))


def replace(graph: ir.Graph, old: ir.Node, new: list[ir.Node]) -> None:
    """Replace a node of one output by others."""
    made, before = new[-1].outputs[0], old.outputs[0]
    made.name, made.shape, made.type = before.name, before.shape, before.type
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, [before], [made])


def transposed_lazily(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """The transpose of a matrix, read when it is written."""
    rows, columns = tensor.shape.numpy()
    lazy = ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().T, dtype=tensor.dtype),
        dtype=tensor.dtype,
        shape=ir.Shape([columns, rows]),
    )
    return made_of(lazy, parameters_of(tensor), transposed=True, pieces=pieces_of(tensor))


def joined_weights(parts: Sequence[tuple[Linear, Columns]]) -> ir.LazyTensor:
    """Columns of the weights of `parts`, concatenated to [in, out] when they are written; each weight is read once.

    The numbers of an output lie together, as in most sources, so that they are copied and divided into blocks in one piece.
    """
    inputs, width = parts[0][0].sizes[0], sum(len(columns) for _, columns in parts)
    dtype = parts[0][0].weight.dtype
    assert dtype is not None, "constants have a type"
    tensors = [linear.weight.const_value for linear, _ in parts]  # now: a later pass may change the values' tensors

    def gather() -> ir.TensorProtocol:
        out = np.empty((width, inputs), dtype.numpy())
        loaded: tuple[ir.TensorProtocol, npt.NDArray[np.generic]] | None = None
        start = 0
        for (linear, columns), tensor in zip(parts, tensors, strict=True):
            assert tensor is not None, "constants have data"
            if loaded is None or loaded[0] is not tensor:
                loaded = (tensor, tensor.numpy())
            matrix = loaded[1] if linear.transposed else loaded[1].T
            out[start : start + len(columns)] = matrix[columns]
            start += len(columns)
        return ir.tensor(out.T, dtype=dtype)

    joined = ir.LazyTensor(gather, dtype=dtype, shape=ir.Shape([inputs, width]))
    return made_of(joined, parameters_of_all(parts), pieces=pieces_of_all(parts))


def parameters_of_all(parts: Sequence[tuple[Linear, Columns]]) -> list[Parameter]:
    """The parameters of the layers' weights, as [in, out]; none if those of one weight are unknown."""
    found = [
        [Parameter(each.name, each.transposed != linear.transposed) for each in parameters_of(linear.weight.const_value)]
        for linear, _ in parts
    ]
    return list(dict.fromkeys(each for one in found for each in one)) if all(found) else []


def pieces_of_all(parts: Sequence[tuple[Linear, Columns]]) -> list[Piece]:
    """The origins of the outputs of the concatenated weights; none if those of one weight are unknown."""
    known = [(pieces_of(linear.weight.const_value), columns) for linear, columns in parts]
    return [each for pieces, columns in known for each in chosen_pieces(pieces, columns)] if all(p for p, _ in known) else []


def joined_biases(parts: Sequence[tuple[Linear, Columns]]) -> ir.LazyTensor | None:
    """The biases of `joined_weights`, zero for a layer without; None if no layer has one."""
    dtype = next((linear.bias.dtype for linear, _ in parts if linear.bias is not None), None)
    if dtype is None:
        return None
    tensors = [None if linear.bias is None else linear.bias.const_value for linear, _ in parts]

    def gather() -> ir.TensorProtocol:
        pieces = []
        for (_, columns), tensor in zip(parts, tensors, strict=True):
            pieces.append(np.zeros(len(columns), dtype.numpy()) if tensor is None else tensor.numpy()[columns])
        return ir.tensor(np.concatenate(pieces), dtype=dtype)

    return ir.LazyTensor(gather, dtype=dtype, shape=ir.Shape([sum(len(columns) for _, columns in parts)]))


def insert_linear(before: ir.Node, parts: Sequence[tuple[Linear, Columns]], name: str) -> ir.Value:
    """Insert a linear layer with the columns of `parts` before a node; returns its output."""
    graph, source = before.graph, parts[0][0].input
    assert isinstance(graph, ir.Graph), "passes work on graphs"
    weight = add_constant(graph, f"{name}.weight", joined_weights(parts))
    product = ir.node("MatMul", [source, weight])
    nodes = [product]
    if (biases := joined_biases(parts)) is not None:
        nodes.append(ir.node("Add", [product.outputs[0], add_constant(graph, f"{name}.bias", biases)]))
    width = sizes_of(weight)[1]
    for node in nodes:
        node.outputs[0].type = source.type
        node.outputs[0].shape = ir.Shape([*source.shape[:-1], width]) if source.shape is not None else None
    graph.insert_before(before, nodes)
    return nodes[-1].outputs[0]
