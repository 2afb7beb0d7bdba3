"""Store matrices in 8 or 4 bits: MatMul becomes MatMulNBits, the embedding's Gather becomes GatherBlockQuantized.

Weight-only, symmetric, one float32 scale per block of 32 along the input dimension; products are accumulated in int8 by ONNX
Runtime (accuracy level 4). A tied output layer shares the embedding's bytes. Norms, biases and position tables stay as they are.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

BLOCK = 32
SMALLEST_TABLE = 1024
"""Embedding rows below which a table (of positions, say) is not worth its loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, columns] in blocks along its columns."""

    packed: npt.NDArray[np.uint8]
    """[rows, columns / 32, 32 * bits / 8]; zero is stored as 2 ** (bits - 1), the lower half-byte first."""
    scales: npt.NDArray[np.float32]
    """[rows, columns / 32]."""


def quantize_blocks(matrix: npt.NDArray[np.float32], bits: int) -> Blocks:
    """Round each block of 32 to whole multiples of its largest magnitude over 2 ** (bits - 1), that magnitude kept exactly.

    >>> blocks = quantize_blocks(np.array([[-1.0] + [0.5] * 31], dtype=np.float32), 8)
    >>> blocks.packed[0, 0, :2].tolist(), float(blocks.scales[0, 0])
    ([0, 192], 0.0078125)
    """
    rows, columns = matrix.shape
    padded = np.pad(matrix, ((0, 0), (0, -columns % BLOCK)))
    groups = padded.reshape(rows, -1, BLOCK)
    half = 1 << (bits - 1)
    extremes = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    scales = (extremes / -half).astype(np.float32)  # the extreme lands on -half, the one code without a mirror image
    steps = groups / np.where(scales == 0, 1, scales)[:, :, None]
    codes: npt.NDArray[np.uint8] = (np.clip(np.rint(steps), -half, half - 1) + half).astype(np.uint8)
    packed = codes if bits == 8 else np.bitwise_or(codes[:, :, 0::2], codes[:, :, 1::2] << np.uint8(4))
    return Blocks(packed, scales)


def quantize(model: ir.Model, bits: int) -> None:
    """Quantise `model` in place."""
    graph = model.graph
    weights = {id(value): value for value in graph.initializers.values() if value not in set(graph.inputs)}
    stored: dict[tuple[int, bool], tuple[ir.Value, ir.Value]] = {}

    def store(value: ir.Value, *, transposed: bool) -> tuple[ir.Value, ir.Value]:
        """Blocks and scales of a weight as graph values; `transposed` reads [in, out] as [out, in]."""
        key = (id(value), transposed)
        if key not in stored:
            assert value.const_value is not None, "weights_of yields weights with data"
            matrix = value.const_value.numpy()
            blocks = quantize_blocks(np.ascontiguousarray(matrix.T if transposed else matrix).astype(np.float32), bits)
            made = []
            for suffix, array in (("blocks", blocks.packed), ("scales", blocks.scales)):
                new = ir.Value(name=f"{value.name}.{suffix}", const_value=ir.tensor(array, name=f"{value.name}.{suffix}"))
                new.shape, new.type = ir.Shape(array.shape), ir.TensorType(new.const_value.dtype)  # type: ignore[union-attr]
                graph.register_initializer(new)
                made.append(new)
            stored[key] = (made[0], made[1])
        return stored[key]

    for node in list(graph):
        if node.op_type == "MatMul" and (found := matrix_of(node.inputs[1], weights)) is not None:
            value, transposed = found
            replace_matmul(graph, node, store(value, transposed=transposed), matrix_shape(value, transposed), bits)
        elif node.op_type == "Gemm" and (found := gemm_matrix(node, weights)) is not None:
            value, transposed = found
            replace_gemm(graph, node, store(value, transposed=transposed), matrix_shape(value, transposed), bits)
        elif node.op_type == "Gather" and is_table(node.inputs[0], weights):
            assert node.inputs[0] is not None, "is_table looked at it"
            replace_gather(graph, node, store(node.inputs[0], transposed=False), bits)
    model.opset_imports["com.microsoft"] = 1


def matrix_of(value: ir.Value | None, weights: dict[int, ir.Value]) -> tuple[ir.Value, bool] | None:
    """The weight behind a MatMul's second input, and whether its rows are inputs ([in, out]); through a Transpose too."""
    if value is None:
        return None
    if id(value) in weights and len(value.shape or ()) == 2:
        return value, True
    producer = value.producer()
    if producer is not None and producer.op_type == "Transpose" and id(producer.inputs[0]) in weights:
        source = producer.inputs[0]
        if source is not None and len(source.shape or ()) == 2:
            return source, False
    return None


def gemm_matrix(node: ir.Node, weights: dict[int, ir.Value]) -> tuple[ir.Value, bool] | None:
    """The weight of a Gemm that is a plain linear layer, and whether its rows are inputs."""
    value = node.inputs[1]
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")) and not node.attributes.get_int(
        "transA", 0
    )
    if not plain or value is None or id(value) not in weights:
        return None
    return value, not node.attributes.get_int("transB", 0)


def matrix_shape(value: ir.Value, transposed: bool) -> tuple[int, int]:
    """(in, out) of a weight."""
    assert value.shape is not None, "matrix_of looked at it"
    first, second = (int(size) for size in value.shape.numpy())
    return (first, second) if transposed else (second, first)


def is_table(value: ir.Value | None, weights: dict[int, ir.Value]) -> bool:
    """Whether a Gather's first input is an embedding worth quantising."""
    if value is None or id(value) not in weights or value.shape is None or len(value.shape) != 2:
        return False
    rows, columns = (int(size) for size in value.shape.numpy())
    return rows >= SMALLEST_TABLE and columns % BLOCK == 0


def make_product(node: ir.Node, stored: tuple[ir.Value, ir.Value], shape: tuple[int, int], bits: int) -> ir.Node:
    """A MatMulNBits of a node's first input with a stored weight."""
    attributes = {"K": shape[0], "N": shape[1], "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
    return ir.node("MatMulNBits", [node.inputs[0], *stored], attributes, domain="com.microsoft", name=node.name)


def replace_matmul(graph: ir.Graph, node: ir.Node, stored: tuple[ir.Value, ir.Value], shape: tuple[int, int], bits: int) -> None:
    """Put MatMulNBits in the place of a MatMul."""
    swap(graph, node, make_product(node, stored, shape, bits))


def replace_gemm(graph: ir.Graph, node: ir.Node, stored: tuple[ir.Value, ir.Value], shape: tuple[int, int], bits: int) -> None:
    """Put MatMulNBits, and an Add where there is a bias, in the place of a Gemm."""
    product = make_product(node, stored, shape, bits)
    if len(node.inputs) < 3 or node.inputs[2] is None:
        swap(graph, node, product)
        return
    graph.insert_before(node, product)
    swap(graph, node, ir.node("Add", [product.outputs[0], node.inputs[2]]))


def replace_gather(graph: ir.Graph, node: ir.Node, stored: tuple[ir.Value, ir.Value], bits: int) -> None:
    """Put GatherBlockQuantized in the place of a Gather; it reads the blocks as one row per token."""
    blocks, scales = stored
    assert blocks.shape is not None, "store gave it one"
    rows = int(blocks.shape[0])  # type: ignore[arg-type]
    shape_name = f"{blocks.name}.row_shape"
    flat_shape = ir.Value(name=shape_name, const_value=ir.tensor(np.array([rows, -1], np.int64), name=shape_name))
    graph.register_initializer(flat_shape)
    flat = ir.node("Reshape", [blocks, flat_shape])
    graph.insert_before(node, flat)
    attributes = {"bits": bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
    inputs = [flat.outputs[0], node.inputs[1], scales]
    swap(graph, node, ir.node("GatherBlockQuantized", inputs, attributes, domain="com.microsoft"))


def swap(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Replace one node of one output by another."""
    new.outputs[0].name, new.outputs[0].shape, new.outputs[0].type = old.outputs[0].name, old.outputs[0].shape, old.outputs[0].type
    ir.convenience.replace_nodes_and_values(graph, old, [old], [new], old.outputs, new.outputs)
