"""Lower the operators by which a trace represents experts to existing ones.

A layer of experts, `onnx_textgen::Experts`, becomes ONNX Runtime's MoE, in whose weights rows of gate and up projection alternate.
A product, `onnx_textgen::ExpertProduct`, becomes a Split of the rows, which are sorted by expert, one MatMul per expert and a
Concat: an unselected expert multiplies no rows. Weights are rearranged when they are written, and read from the file once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .graph.linear import add_constant, replace, shared_constant, sizes_of
from .graph.provenance import made_of, parameters_of

DOMAIN = "onnx_textgen"
Array = npt.NDArray[Any]


def lower_experts(model: ir.Model) -> None:
    """Lower the experts of a model in place; weights are not read."""
    graph = model.graph
    for node in [node for node in graph if node.domain == DOMAIN]:
        if node.op_type == "Experts":
            replace_layer(graph, node)
            model.opset_imports["com.microsoft"] = 1
        elif node.op_type == "ExpertProduct":
            replace_product(graph, node)


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    """The weights (or biases) of a layer of experts, and how each expert's are rearranged for the operator."""

    source: ir.TensorProtocol
    transposed: bool
    """Stored as [in, out]."""
    halved: bool
    """The outputs are all gates followed by all up projections, and the operator wants them alternating."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(experts, outputs, inputs), or (experts, outputs) of biases."""
        sizes = tuple(int(size) for size in self.source.shape.numpy())
        return (sizes[0], sizes[2], sizes[1]) if self.transposed else sizes

    def arrange(self, expert: Array) -> Array:
        """One expert's matrix as [out, in]; a view if possible."""
        matrix = expert.T if self.transposed else expert
        if not self.halved:
            return matrix
        gates, others = np.split(matrix, 2)
        return np.stack([gates, others], axis=1).reshape(matrix.shape)

    def load(self) -> ir.TensorProtocol:
        """All experts, rearranged."""
        source = self.source.numpy()
        out = np.empty(self.shape, source.dtype)
        for place, expert in zip(out, source, strict=True):
            place[...] = self.arrange(expert)
        return ir.tensor(out)


class StackTensor(ir.LazyTensor):
    """A `Stack` as a tensor, rearranged when it is read; quantisation reads it expert by expert instead."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.load, dtype=stack.source.dtype, shape=ir.Shape(stack.shape))
        self.stack = stack


class SharedRead:
    """A tensor of which each reader takes one part: loaded for the first reader, released after the last."""

    def __init__(self, tensor: ir.TensorProtocol, readers: int) -> None:
        self.tensor, self.readers = tensor, readers
        self.array: Array | None = None
        self.left = 0

    def part(self, index: int) -> Array:
        """One part along the first dimension."""
        if self.array is None:
            self.array, self.left = self.tensor.numpy(), self.readers
        part: Array = self.array[index]
        self.left -= 1
        if self.left == 0:
            part, self.array = part.copy(), None
        return part


def replace_layer(graph: ir.Graph, node: ir.Node) -> None:
    """Replace `Experts` by MoE.

    The CPU kernel (1.31.1) may reuse the memory of its input for its output and clears it before reading the tokens. The Where
    reads the tokens after it, so that their memory is not reused.
    """
    transposed, interleaved = (bool(node.attributes.get_int(name, 0)) for name in ("transposed", "interleaved"))
    hidden, logits, first, first_bias, last, last_bias = (*node.inputs, None, None)[:6]

    def arranged(value: ir.Value | None, *, halved: bool, transposed: bool = False) -> ir.Value | None:
        if value is None or not (halved or transposed):
            return value
        assert value.const_value is not None, "experts have weights"
        return add_constant(graph, f"{value.name}.arranged", StackTensor(Stack(value.const_value, transposed, halved)))

    inputs = [
        hidden,
        logits,
        arranged(first, halved=not interleaved, transposed=transposed),
        arranged(first_bias, halved=not interleaved),
        arranged(last, halved=False, transposed=transposed),
        last_bias,
    ]
    attributes: dict[str, Any] = {"k": node.attributes.get_int("k"), "activation_type": "swiglu", "swiglu_fusion": 1}
    attributes |= {f"activation_{name}": node.attributes.get_float(name) for name in ("alpha", "beta")}
    if "limit" in node.attributes:
        attributes["swiglu_limit"] = node.attributes.get_float("limit")
    mixed = ir.node("MoE", inputs, attributes, domain="com.microsoft")
    mixed.outputs[0].shape, mixed.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
    always = shared_constant(graph, "always", np.array([True]))
    replace(graph, node, [mixed, ir.node("Where", [always, mixed.outputs[0], hidden])])


def replace_product(graph: ir.Graph, node: ir.Node) -> None:
    """Replace `ExpertProduct` by Split, one MatMul per expert, and Concat."""
    rows, sizes, weight = node.inputs
    assert rows is not None and weight is not None and weight.const_value is not None, "experts have weights"
    transposed = bool(node.attributes.get_int("transposed", 0))
    count, first, second = sizes_of(weight)
    inputs, outputs = (first, second) if transposed else (second, first)
    shared = SharedRead(weight.const_value, count)
    split = ir.node("Split", [rows, sizes], {"axis": 0}, num_outputs=count)
    nodes = [split]
    for expert, part in enumerate(split.outputs):
        tensor = expert_tensor(shared, expert, (inputs, outputs), weight.const_value.dtype, transposed=transposed)
        product = ir.node("MatMul", [part, add_constant(graph, f"{weight.name}.{expert}", tensor)])
        for value, width in ((part, inputs), (product.outputs[0], outputs)):
            value.shape, value.type = ir.Shape([None, width]), rows.type
        nodes.append(product)
    nodes.append(ir.node("Concat", [each.outputs[0] for each in nodes[1:]], {"axis": 0}))
    replace(graph, node, nodes)


def expert_tensor(
    shared: SharedRead, expert: int, sizes: tuple[int, int], dtype: ir.DataType, *, transposed: bool
) -> ir.LazyTensor:
    """One expert's matrix [in, out], read when it is written."""

    def load() -> ir.TensorProtocol:
        part = shared.part(expert)
        return ir.tensor(np.ascontiguousarray(part if transposed else part.T))

    return made_of(ir.LazyTensor(load, dtype=dtype, shape=ir.Shape(sizes)), parameters_of(shared.tensor), transposed=not transposed)
