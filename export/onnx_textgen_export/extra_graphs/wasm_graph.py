"""The graph for WebAssembly: quantised weights are unpacked to float32 once, when it is opened.

ONNX Runtime has no fast kernel for MatMulNBits in WebAssembly: it unpacks every matrix for every token. Here DequantizeLinear reads
the same bytes, and FusedMatMul reads its output without a Transpose. A runtime computes such constants when it opens the graph, if
the session option `session.disable_quant_qdq` is 1; without it, the numbers are the same and the speed is that of MatMulNBits.

Other products (2 bits, zero points that are padded or no whole numbers) stay, without the rounding of activations that
WebAssembly does not do.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_textgen.package.manifest import SHARED_FOLDER, WASM_GRAPH

from ..passes.graph.accuracy import multiply_in_float32
from ..passes.graph.linear import add_constant

MOST_UNPACKED_BYTES = 1_500_000_000
"""WebAssembly addresses 4 GiB, and ONNX Runtime holds the unpacked weights twice while it opens a graph."""
CODES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}
"""By bits; others stay."""


def write_wasm_graph(folder: Path, shared_graph: str) -> None:
    """Write the graph next to the shared one, in float32, if it has weights to unpack and a browser has room for them."""
    model = ir.load(folder / shared_graph)
    products = [node for node in model.graph if node.op_type == "MatMulNBits" and can_be_unpacked(node)]
    unpacked = sum(4 * math.prod(codes_shape(node)) for node in products)
    if not products or unpacked > MOST_UNPACKED_BYTES:
        return
    matrices: dict[ir.Value, ir.Value] = {}
    multiply_in_float32(model.graph)
    for node in products:
        replace_product(model.graph, node, matrices, folder / SHARED_FOLDER)
    ir.save(model, folder / WASM_GRAPH)


def codes_shape(node: ir.Node) -> tuple[int, int]:
    """Outputs and inputs of a matrix in memory: the last block of inputs is padded to a whole one."""
    inputs, block = node.attributes["K"].as_int(), node.attributes["block_size"].as_int()
    return node.attributes["N"].as_int(), -(-inputs // block) * block


def can_be_unpacked(node: ir.Node) -> bool:
    """Return whether DequantizeLinear can read a matrix from the same bytes."""
    bits, blocks = node.attributes["bits"].as_int(), codes_shape(node)[1] // node.attributes["block_size"].as_int()
    zeros = node.inputs[3] if len(node.inputs) > 3 else None
    has_whole_zeros = zeros is None or (zeros.dtype == ir.DataType.UINT8 and (bits == 8 or blocks % 2 == 0))
    return bits in CODES and has_whole_zeros and len(node.inputs) <= 4


def replace_product(graph: ir.Graph, node: ir.Node, matrices: dict[ir.Value, ir.Value], folder: Path) -> None:
    """Multiply with the unpacked matrix; `matrices`: those of earlier products, by their codes."""
    codes = node.inputs[1]
    assert codes is not None, "the operator has them"
    if codes not in matrices:
        matrices[codes] = unpacked(graph, node, codes, folder)
    product = ir.node("FusedMatMul", [node.inputs[0], matrices[codes]], {"transB": 1}, domain="com.microsoft", name=node.name)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [product], node.outputs, product.outputs)


def unpacked(graph: ir.Graph, node: ir.Node, codes: ir.Value, folder: Path) -> ir.Value:
    """The matrix [outputs, inputs] in float32, before `node`."""
    bits, block = node.attributes["bits"].as_int(), node.attributes["block_size"].as_int()
    outputs, inputs = codes_shape(node)
    blocks, dtype, name = (outputs, inputs // block), CODES[bits], str(codes.name)
    sizes = add_constant(graph, f"{name}.scales_shape", ir.tensor(np.array(blocks)))
    nodes = [ir.node("Reshape", [node.inputs[2], sizes])]
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        zeros = same_bytes(graph, node.inputs[3], dtype, blocks, folder)
    elif bits == 4:
        zeros = middles(graph, blocks)
    else:
        nodes.append(ir.node("ConstantOfShape", [sizes], {"value": ir.tensor(np.array([1 << (bits - 1)], np.uint8))}))
        zeros = nodes[-1].outputs[0]
    given = [same_bytes(graph, codes, dtype, (outputs, inputs), folder), nodes[0].outputs[0], zeros]
    nodes.append(ir.node("DequantizeLinear", given, {"axis": 1, "block_size": block}))
    if (wanted := node.attributes["K"].as_int()) < inputs:
        bounds = [
            add_constant(graph, f"{name}.{kind}", ir.tensor(np.array([at])))
            for kind, at in (("from", 0), ("to", wanted), ("axis", 1))
        ]
        nodes.append(ir.node("Slice", [nodes[-1].outputs[0], *bounds]))
    graph.insert_before(node, nodes)
    return nodes[-1].outputs[0]


def middles(graph: ir.Graph, blocks: tuple[int, int]) -> ir.Value:
    """Zero points for codes of 4 bits without any: the middle code, stored once for all matrices of as many blocks.

    8 bits have a ConstantOfShape instead; the library of transformers.js can make no tensor of 4 bits.
    """
    name = f"middles.{blocks[0]}x{blocks[1]}"
    if name not in graph.initializers:
        packed = np.full(-(-math.prod(blocks) // 2), 0x88, np.uint8)
        add_constant(graph, name, ir.PackedTensor(packed, CODES[4], shape=ir.Shape(blocks)))
    return graph.initializers[name]


def same_bytes(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, shape: tuple[int, int], folder: Path) -> ir.Value:
    """A stored tensor as another type and shape over the same bytes; small ones are stored in the graph."""
    tensor = value.const_value
    assert tensor is not None, "codes and zero points are stored"
    name, sizes = f"{value.name}.unpacked", ir.Shape(shape)
    if isinstance(tensor, ir.ExternalTensor):
        again: ir.TensorProtocol = ir.ExternalTensor(
            tensor.location, tensor.offset, tensor.length, dtype, shape=sizes, name=name, base_dir=folder
        )
    elif dtype.bitwidth == 4:
        again = ir.PackedTensor(tensor.numpy().reshape(-1), dtype, shape=sizes, name=name)
    else:
        again = ir.tensor(tensor.numpy().reshape(shape), dtype=dtype, name=name)
    return add_constant(graph, name, again)
