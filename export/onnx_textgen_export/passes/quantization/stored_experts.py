"""Store the experts of ONNX Runtime's MoE in 8 or 4 bits: QMoE.

The layout is that of MatMulNBits with one more dimension in front: codes [experts, out, bytes], scales and zero points
[experts, out, blocks]. Sizes that are no multiple of the block are padded with zeros, which do not change the result: a gate of
zero gives zero. Weights are read when the file is written, and quantised expert by expert.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..experts import StackTensor
from ..graph.linear import add_constant, replace, shared_constant, sizes_of
from .layouts import Arrays, LastResult, Packed, Shapes, as_tensor
from .options import Bits, Quantization
from .quantizers import Codes, make_quantizer, quantize_matrix


def quantize_experts(graph: ir.Graph, options: Quantization, last: LastResult) -> None:
    """Replace every MoE by a QMoE in place; k-quant is used instead of HQQ, whose fractional zero points it does not support."""
    for node in [node for node in graph if node.op_type == "MoE" and node.domain == "com.microsoft"]:
        replace_layer(graph, node, options, last)


@dataclasses.dataclass(frozen=True, slots=True)
class PackedExperts:
    """The layout of a stack of matrices, padded to whole blocks."""

    experts: int
    one: Packed
    options: Quantization

    @classmethod
    def of(cls, value: ir.Value, rows: int, bits: Bits, options: Quantization) -> PackedExperts:
        """The layout of weights [experts, out, in], with outputs padded to `rows`."""
        count, _, inputs = sizes_of(value)
        block = options.block_size
        zeros: Any = "none" if options.symmetric else "whole"
        one = Packed(rows, inputs + -inputs % block, bits, block, zeros, flat=True, scales="full")
        return cls(count, one, options)

    def shapes(self) -> Shapes:
        """Type and shape of each tensor, by kind."""
        return {kind: (dtype, (self.experts, *shape)) for kind, (dtype, shape) in self.one.shapes().items()}

    def compute(self, tensor: ir.TensorProtocol) -> Arrays:
        """Quantise every expert."""
        stack = tensor.stack if isinstance(tensor, StackTensor) else None
        source = stack.source.numpy() if stack is not None else tensor.numpy()
        out: Arrays = {kind: np.empty(shape, dtype.numpy()) for kind, (dtype, shape) in self.shapes().items()}
        find = make_quantizer(self.options, self.one.bits, gathered=True)
        for expert in range(self.experts):
            matrix = stack.arrange(source[expert]) if stack is not None else source[expert]
            arrays = {kind: array[expert] for kind, array in out.items()}

            def store(chosen: slice, found: Codes, arrays: Arrays = arrays) -> None:
                self.one.put(arrays, chosen, found)

            quantize_matrix(filled(matrix, self.one), find, self.one.block_size, store, inputs_first=False)
        return out


def filled(matrix: npt.NDArray[Any], layout: Packed) -> npt.NDArray[Any]:
    """A matrix [out, in] padded with zeros to the layout's sizes."""
    rows, columns = layout.outputs - matrix.shape[0], layout.inputs - matrix.shape[1]
    return np.pad(matrix, ((0, rows), (0, columns))) if rows or columns else matrix


def store_stack(graph: ir.Graph, value: ir.Value, layout: PackedExperts, last: LastResult) -> dict[str, ir.Value]:
    """Initializers for the quantised experts, computed when they are written; by kind."""
    source, owner = value.const_value, object()
    assert source is not None, "experts have weights"

    def lazy(kind: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.LazyTensor:
        return ir.LazyTensor(
            lambda: as_tensor(last.take(owner, kind, lambda: layout.compute(source)), dtype), dtype=dtype, shape=ir.Shape(shape)
        )

    return {
        kind: add_constant(graph, f"{value.name}.{kind}", lazy(kind, dtype, shape))
        for kind, (dtype, shape) in layout.shapes().items()
    }


def filled_biases(graph: ir.Graph, value: ir.Value | None, rows: int) -> ir.Value | None:
    """Biases [experts, out] padded with zeros to `rows`."""
    if value is None or sizes_of(value)[1] == rows:
        return value
    tensor = value.const_value
    assert tensor is not None, "biases have data"
    count, before = sizes_of(value)

    def widen() -> ir.TensorProtocol:
        return ir.tensor(np.pad(tensor.numpy(), ((0, 0), (0, rows - before))))

    return add_constant(graph, f"{value.name}.filled", ir.LazyTensor(widen, dtype=tensor.dtype, shape=ir.Shape([count, rows])))


def replace_layer(graph: ir.Graph, node: ir.Node, options: Quantization, last: LastResult) -> None:
    """Replace a MoE by a QMoE, between a Pad and a Slice if the width is no multiple of the block."""
    tokens, logits, first, first_bias, final, final_bias = (*node.inputs, None, None)[:6]
    assert first is not None, "MoE has weights"
    assert final is not None, "MoE has weights"
    _, width, inner = sizes_of(final)
    rows = (2 * (inner + -inner % options.block_size), width + -width % options.block_size)
    one, two = (
        store_stack(
            graph, value, PackedExperts.of(value, each, options.bits, options), last
        )  # on the CPU, QMoE has one width for both
        for value, each in zip((first, final), rows, strict=True)
    )
    before, after, missing = list[ir.Node](), list[ir.Node](), rows[1] - width
    if missing:
        pads = shared_constant(graph, f"fill.{missing}", np.array([0, 0, 0, missing], np.int64))
        before.append(ir.node("Pad", [tokens, pads]))
        tokens = before[0].outputs[0]
    inputs = [tokens, logits, one["codes"], one["scales"], filled_biases(graph, first_bias, rows[0])]
    inputs += [two["codes"], two["scales"], filled_biases(graph, final_bias, rows[1]), None, None, None]
    inputs += [one["zeros"], two["zeros"]] if "zeros" in one else []
    mixed = ir.node("QMoE", inputs, qmoe_attributes(node, options), domain="com.microsoft")
    if missing:
        bounds = [shared_constant(graph, f"bound.{bound}", np.array([bound], np.int64)) for bound in (0, width, 1)]
        after.append(ir.node("Slice", [mixed.outputs[0], *bounds]))
    replace(graph, guard_of(node) or node, [*before, mixed, *after])


def guard_of(node: ir.Node) -> ir.Node | None:
    """The Where that protects the memory of MoE's input; QMoE needs none."""
    readers = node.outputs[0].consumers()
    return readers[0] if len(readers) == 1 and readers[0].op_type == "Where" and readers[0].inputs[2] is node.inputs[0] else None


def qmoe_attributes(node: ir.Node, options: Quantization) -> dict[str, Any]:
    """The attributes of the MoE, and those of the stored weights."""
    attributes: dict[str, Any] = dict(node.attributes)
    if options.activations == "fp16":
        attributes["weights_prepacked"] = 0  # else CUDA reads the codes in its own order, and computes nonsense
    return attributes | {
        "expert_weight_bits": options.bits,
        "block_size": options.block_size,
        "accuracy_level": options.accuracy_level,
    }
