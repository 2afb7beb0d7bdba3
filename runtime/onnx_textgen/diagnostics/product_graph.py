"""Writes the smallest graph in which ONNX Runtime can be timed: products with random weights, without the onnx package."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..files.onnx_graph import FLOAT, FLOAT16, GRAPH, MODEL, NODE, UINT8, make_node, make_tensor, make_value_info
from ..files.onnx_wire import Message
from .product_forms import OPERATOR, Product

INPUT = "x"
IR_VERSION, OPSET, MICROSOFT = 10, 21, "com.microsoft"

Arrays = dict[str, npt.NDArray[np.generic]]
"""`codes` [outputs, blocks, bytes], `scales` [outputs, blocks], `zeros`: whole ones packed in bytes, or real ones; or no zeros."""


def random_weights(product: Product) -> Arrays:
    """Weights of a product, the same in each call."""
    form, random = product.form, np.random.default_rng(0)
    blocks = -(-product.inputs // form.block_size)
    real = np.float16 if form.is_float16 else np.float32
    arrays: Arrays = {
        "codes": random.integers(0, 256, (product.outputs, blocks, form.block_size * form.bits // 8), dtype=np.uint8),
        "scales": random.uniform(0.001, 0.01, (product.outputs, blocks)).astype(real),
    }
    if form.zeros == "whole":
        arrays["zeros"] = random.integers(0, 256, (product.outputs, -(-blocks * form.bits // 8)), dtype=np.uint8)
    elif form.zeros == "real":
        arrays["zeros"] = random.uniform(0, 2**form.bits, (product.outputs, blocks)).astype(real)
    return arrays


def product_model(product: Product, arrays: Arrays, *, copies: int = 1) -> bytes:
    """A model with an input `x` [tokens, inputs] and `copies` products of it, each with its own codes in memory.

    Copies let one run read as many different weights as a run of a whole model does, instead of those that a cache still holds.
    """
    form = product.form
    real = FLOAT16 if form.is_float16 else FLOAT
    sizes = {"K": product.inputs, "N": product.outputs, "bits": form.bits, "block_size": form.block_size}
    graph = Message().add(GRAPH.NAME, "products").add(GRAPH.INPUT, make_value_info(INPUT, real, ["tokens", product.inputs]))
    shared = [name for name in arrays if name != "codes"]
    for name in shared:
        graph.add(GRAPH.INITIALIZER, tensor_of(name, arrays[name], real))
    for number in range(copies):
        codes, output = f"codes.{number}", f"y.{number}"
        node = make_node(OPERATOR, [INPUT, codes, *shared], [output], **sizes, accuracy_level=form.accuracy_level)
        graph.add(GRAPH.NODE, node.add(NODE.DOMAIN, MICROSOFT))
        graph.add(GRAPH.INITIALIZER, tensor_of(codes, arrays["codes"], real))
        graph.add(GRAPH.OUTPUT, make_value_info(output, real, ["tokens", product.outputs]))
    model = Message().add(MODEL.IR_VERSION, IR_VERSION).add(MODEL.GRAPH, graph)
    for domain, version in (("", OPSET), (MICROSOFT, 1)):
        model.add(MODEL.OPSETS, Message().add(1, domain).add(2, version))
    return bytes(model)


def tensor_of(name: str, array: npt.NDArray[np.generic], real: int) -> Message:
    """A constant; `real` is the element type of what is not packed in bytes."""
    kind = UINT8 if array.dtype == np.uint8 else real
    return make_tensor(name, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(), array.shape, kind)
