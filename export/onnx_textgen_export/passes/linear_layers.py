"""Records in the graph's metadata which parameters each product computes, so that LoRA adapters can be added to a package."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_textgen.backends.variants.linear_layers import KEY, Floats, LinearLayer, LinearLayers, unclear_parameters

from .graph.products import Product, find_products, find_tables
from .graph.provenance import pieces_of
from .quantization.plan import Plan
from .quantization.smoothing import Rows, find_maker

SMALLEST_TABLE = 1
"""Rows of a table that make its matrix one of embeddings."""


def record_linear_layers(model: ir.Model, plan: Plan | None) -> None:
    """Record the products of a graph that is not quantised yet; `plan`: how it will be smoothed."""
    model.metadata_props[KEY] = linear_layers_of(model.graph, plan).to_json()


def settle_linear_layers(model: ir.Model) -> None:
    """Leave in the record what the finished graph has, with the type of its activations."""
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    recorded = LinearLayers.from_metadata(model.metadata_props).layers
    kept = [each for each in recorded if each.input in values and each.output in values]
    types = [{values[each.input].dtype, values[each.output].dtype} for each in kept]
    is_half = any(ir.DataType.FLOAT16 in each for each in types)
    kind = ir.DataType.FLOAT16 if is_half else ir.DataType.FLOAT
    same = [each for each, found in zip(kept, types, strict=True) if found <= {kind, None}]
    model.metadata_props[KEY] = LinearLayers(clear_layers(same), "float16" if is_half else "float32").to_json()


def clear_layers(layers: list[LinearLayer]) -> tuple[LinearLayer, ...]:
    """The layers whose parameters are computed exactly once: without those that run twice, or are only partly known."""
    while unclear := unclear_parameters(layers):
        layers = [each for each in layers if not any(name in unclear for name, _ in each.parameters)]
    return tuple(layers)


def linear_layers_of(graph: ir.Graph, plan: Plan | None = None) -> LinearLayers:
    """The products whose outputs are known to be those of parameters.

    An output layer that shares its matrix with the embeddings is left out: an adapter of it would change both in PyTorch.
    """
    products = find_products(graph)
    tables = {id(node.inputs[0]) for node in find_tables(graph, SMALLEST_TABLE)}
    known = [each for each in products.values() if takes_rows(each) and id(each.weight) not in tables]
    divisors, output_divisors = divisors_of(products, plan)
    return LinearLayers(clear_layers([layer_of(each, divisors, output_divisors) for each in known]), "float32")


def takes_rows(product: Product) -> bool:
    """Return whether a product takes tokens row by row, not those of all rows joined, and its outputs are known."""
    given = product.node.inputs[0]
    shape = [] if given is None or given.shape is None else list(given.shape)
    by_rows = len(shape) in (0, 3) or (len(shape) == 4 and shape[1] == 1)
    return by_rows and product.node.op_type != "Gemm" and bool(pieces_of(product.weight.const_value))


def layer_of(product: Product, divisors: dict[str, Floats], output_divisors: dict[str, Floats]) -> LinearLayer:
    """The record of one product."""
    inputs, outputs = product.sizes
    given, weight = product.node.inputs[0], str(product.weight.name)
    assert given is not None, "a product has inputs"
    parameters = tuple(
        (each.name, np.arange(outputs) if each.outputs is None else each.outputs) for each in pieces_of(product.weight.const_value)
    )
    return LinearLayer(
        str(given.name),
        str(product.node.outputs[0].name),
        inputs,
        parameters,
        divisors.get(weight),
        output_divisors.get(weight),
        3 if given.shape is None else len(given.shape),
    )


def divisors_of(products: dict[ir.Node, Product], plan: Plan | None) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """By weight: what a plan divides the inputs of its product by, and its outputs."""
    inputs, outputs = dict[str, Floats](), dict[str, Floats]()
    sizes = {str(each.weight.name): each.sizes[1] for each in products.values()}
    for product in products.values():
        found = plan.found.get(str(product.weight.name)) if plan is not None else None
        if found is None or found.smoothing is None:
            continue
        inputs[str(product.weight.name)] = found.smoothing
        if isinstance(maker := find_maker(product, products), Rows):
            each = outputs.setdefault(maker.weight, np.ones(sizes[maker.weight], np.float32))
            each[maker.start : maker.start + len(found.smoothing)] *= found.smoothing
    return inputs, outputs
