"""The three graphs by which transformers.js reads pictures, over the package's own weights.

It embeds ids by one graph, writes what a second makes of pictures in the place of their tokens, and gives the result to a third. To
have no table of embeddings twice, the first graph only writes an id in front of zeros, [batch, new, 1 + row width]; a row of a
picture has -1 there. The decoder makes of it what the package's own graph takes. The second graph takes the pixels of a
file: the image processor is part of it, so that the numbers are those of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_textgen.backends.signature import IMAGE_EMBEDS
from onnx_textgen.package.manifest import (
    EMBED_GRAPH,
    GRAPH,
    MERGED_DECODER,
    SHARED_FOLDER,
    VISION_ENCODER_GRAPH,
    VISION_GRAPH,
)

from ..passes.graph.linear import shared_constant
from .node_builder import NodeBuilder
from .shared_graph import for_others, refer_from

PIXELS, FEATURES, EMBEDS = "pixel_values", "image_features", "inputs_embeds"
FLOAT, WHOLE = ir.DataType.FLOAT, ir.DataType.INT64
NO_ID = -1
"""In front of a row of a picture."""


def write_picture_graphs(folder: Path, processor: ir.Model) -> str:
    """Write the graphs of a package whose pictures are read as a whole here; returns the name of the decoder's.

    `processor`: the graph by which all become as many rows; it is taken apart.
    """
    decoder = ir.load(folder / GRAPH)
    width = rows_of(decoder.graph)
    take_embeddings(decoder.graph, width)
    for_others(decoder.graph, folder)
    (weights,) = (folder / SHARED_FOLDER).glob(f"{MERGED_DECODER}*.onnx_data")
    name = f"{SHARED_FOLDER}/{weights.name.removesuffix('_data')}"
    ir.save(decoder, folder / name)
    ir.save(embedding_graph(width), folder / EMBED_GRAPH)
    vision = vision_encoder(processor, ir.load(folder / VISION_GRAPH))
    refer_from(vision.graph, folder / SHARED_FOLDER)
    ir.save(vision, folder / VISION_ENCODER_GRAPH)
    return name


def rows_of(graph: ir.Graph) -> int:
    """The width of a picture's row."""
    taken = next(value for value in graph.inputs if value.name == IMAGE_EMBEDS)
    assert taken.shape is not None, "inputs have shapes"
    return int(taken.shape[-1])  # type: ignore[arg-type]


def value_of(name: str, shape: list[int | str], dtype: ir.DataType = FLOAT) -> ir.Value:
    """An input of a graph."""
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def take_embeddings(graph: ir.Graph, width: int) -> None:
    """Let a decoder take ids and rows of pictures in one tensor, in place."""
    ids, rows = (next(value for value in graph.inputs if value.name == name) for name in ("input_ids", IMAGE_EMBEDS))
    given = value_of(EMBEDS, [*(ids.shape or [])[:2], 1 + width])
    nodes = NodeBuilder(graph, EMBEDS)
    first, others = nodes.add("Split", given, nodes.whole(1, width), axis=2, outputs=2).outputs
    first = nodes.one("Cast", nodes.one("Squeeze", first, nodes.whole(2)), to=WHOLE)
    sizes = nodes.one("Shape", first)
    start, step = (shared_constant(graph, f"{EMBEDS}.{number}", np.array(number, np.int64)) for number in (-1, -1))
    count = nodes.one("ReduceProd", sizes, keepdims=0)
    end = nodes.one("Sub", start, count)
    numbered = nodes.one("Reshape", nodes.one("Range", start, end, step), sizes)  # -1 is the first row, -2 the second
    is_row = nodes.one("Less", first, nodes.whole(0))
    named = nodes.one("Where", is_row, numbered, first)
    flat = nodes.one("Cast", nodes.one("Reshape", others, nodes.whole(-1, width)), to=rows.dtype or FLOAT)
    graph.insert_before(graph[0], nodes.nodes)
    for old, new in ((ids, named), (rows, flat)):
        ir.convenience.replace_all_uses_with(old, new)
        graph.inputs.remove(old)
        graph.initializers.pop(str(old.name), None)
    graph.inputs.insert(0, given)


def embedding_graph(width: int) -> ir.Model:
    """From ids [batch, new] to an id in front of zeros."""
    ids = value_of("input_ids", ["batch_size", "sequence_length"], WHOLE)
    graph = ir.Graph([ids], [], nodes=[], name="embed_tokens", opset_imports={"": 23})
    nodes = NodeBuilder(graph, "embed")
    first = nodes.one("Cast", nodes.one("Unsqueeze", ids, nodes.whole(2)), to=FLOAT)
    found = nodes.one("Pad", first, nodes.whole(0, 0, 0, 0, 0, width))
    return finished(graph, nodes, found, EMBEDS, ["batch_size", "sequence_length", 1 + width])


def finished(graph: ir.Graph, nodes: NodeBuilder, found: ir.Value, name: str, shape: list[int | str]) -> ir.Model:
    """The model of a graph that gets its nodes and its output."""
    graph.extend(nodes.nodes)
    found.name, found.type, found.shape = name, ir.TensorType(FLOAT), ir.Shape(shape)
    graph.outputs.append(found)
    return ir.Model(graph, ir_version=10, producer_name="onnx-textgen")


def vision_encoder(processor: ir.Model, vision: ir.Model) -> ir.Model:
    """From pixels [pictures, 3, height, width], numbers from 0 to 255, to rows [pictures, tokens, 1 + width] after a -1."""
    pixels = value_of(PIXELS, ["num_images", 3, "height", "width"])
    graph = ir.Graph([pixels], [], nodes=[], name="vision_encoder", opset_imports=dict(vision.graph.opset_imports))
    one = value_of("picture", ["height", "width", 3], ir.DataType.UINT8)
    body = NodeBuilder(graph, "picture")
    nodes = NodeBuilder(graph, "pictures")
    numbers = inlined(processor.graph, "processor", one, nodes, body)
    rows = inlined(vision.graph, "vision", numbers, nodes, body)
    tokens, width = (int(size) for size in rows.shape or [])  # type: ignore[arg-type]
    mark = shared_constant(graph, "mark", np.array(NO_ID, np.float32))
    marked = body.one("Pad", rows, body.whole(0, 1, 0, 0), mark)
    marked.type, marked.shape = ir.TensorType(FLOAT), ir.Shape([tokens, 1 + width])
    each = ir.Graph([one], [marked], nodes=body.nodes, name="picture")
    bytes_ = nodes.one("Cast", nodes.one("Transpose", pixels, perm=[0, 2, 3, 1]), to=ir.DataType.UINT8)
    options: dict[str, Any] = {"body": each, "num_scan_inputs": 1}
    found = nodes.one("Scan", bytes_, **options)
    return finished(graph, nodes, found, FEATURES, ["num_images", tokens, 1 + width])


def inlined(graph: ir.Graph, prefix: str, given: ir.Value, outer: NodeBuilder, body: NodeBuilder) -> ir.Value:
    """Move the nodes of a graph of one input and one output to a body, and what is constant around it; returns the output."""
    (taken,), (output,) = list(graph.inputs), list(graph.outputs)
    ir.convenience.replace_all_uses_with(taken, given)
    graph.outputs.clear()
    constant = set(graph.initializers.values())
    for name, value in list(graph.initializers.items()):
        del graph.initializers[name]
        value.name = f"{prefix}.{name}"
        outer.main.register_initializer(value)
    for number, node in enumerate(list(graph)):
        graph.remove(node)
        node.name = f"{prefix}.{number}"
        for index, value in enumerate(node.outputs):
            value.name = f"{prefix}.{number}.{index}"
        if node.inputs and constant.issuperset(node.inputs):  # ONNX Runtime's fusions in a body do not find weights around it
            constant.update(node.outputs)
            outer.nodes.append(node)
        else:
            body.nodes.append(node)
    return output
