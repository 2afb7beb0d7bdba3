"""The graph that other runtimes open: onnxruntime-genai, transformers.js, and ONNX Runtime in a browser.

It computes what the package's own graph computes, over the same weights, in the form that they expect. Its place and name are
those that transformers.js looks for, and so are those of the weights. It returns the logits of the last position only, because the
others do not know the input `logits_positions`. It gathers rows of quantised embeddings by standard operators, because the
onnxruntime-web of transformers.js has GatherBlockQuantized for WebGPU only, and not for WebAssembly.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.backends.signature import IMAGE_EMBEDS, POSITION_OFFSETS
from onnx_textgen.package.manifest import GRAPH, MERGED_DECODER, SHARED_FOLDER, SHARED_NAMES

from ..passes.graph.linear import add_constant, sizes_of
from ..passes.order import Settings, is_float16
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from .value_types import forget_types

SYMBOLS = {"new": "sequence_length", "total_length": "total_sequence_length"}
"""Names for lengths of inputs, as transformers.js and onnxruntime-genai use them."""


def opens_elsewhere(source: Source, assets: TextAssets) -> bool:
    """Return whether other runtimes can run the decoder: equal keys and values in all layers, no other state, an end token."""
    sizes = {tensor.shape for tensor in source.cache}
    names = {tensor.name for tensor in source.cache}
    layers = len(names) // 2
    wanted = {f"past_key_values.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")}
    return bool(assets.eos_ids) and names == wanted and len(sizes) == 1 and not source.one_token and source.rotary_switch is None


def precision_suffix(settings: Settings) -> str:
    """How the name of a graph ends, by which transformers.js knows its precision."""
    return "_q4f16" if settings.precision == "int4" and is_float16(settings) else SHARED_NAMES[settings.precision]


def graph_name(settings: Settings, name: str = "model") -> str:
    """The name of the graph, or of another one over the same weights."""
    return f"{SHARED_FOLDER}/{name}{precision_suffix(settings)}.onnx"


def weights_name(settings: Settings, source: Source | None = None) -> str:
    """The name of the weights: transformers.js looks for them next to the graph that it opens, under the name of that graph."""
    return f"{graph_name(settings, MERGED_DECODER if source is not None and reads_pictures_elsewhere(source) else 'model')}_data"


def reads_pictures_elsewhere(source: Source) -> bool:
    """Return whether transformers.js can read pictures for the decoder: all become as many rows, and positions are places."""
    return source.images is not None and source.images.tokens > 0 and source.images.decoder is None


def write_shared_graph(folder: Path, settings: Settings) -> str:
    """Write the graph next to the weights; returns its name."""
    model = ir.load(folder / GRAPH)
    for_others(model.graph, folder)
    ir.save(model, folder / graph_name(settings))
    return graph_name(settings)


def for_others(graph: ir.Graph, folder: Path) -> None:
    """Change a graph of the package in `folder` to the form that others expect, in place."""
    for value in list(graph.inputs):
        if value.name in ("logits_positions", IMAGE_EMBEDS, POSITION_OFFSETS):
            graph.inputs.remove(value)  # its default becomes a constant; so others read text alone
    for node in list(graph):
        if node.op_type == "GatherBlockQuantized":
            gather_by_standard_operators(graph, node)
    forget_types(graph)
    name_sizes(graph)
    refer_from(graph, folder / SHARED_FOLDER)


def gather_by_standard_operators(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a GatherBlockQuantized of codes [rows, bytes]: gather codes, scales and zero points, unpack, and multiply."""
    codes, ids, scales, zeros = [*node.inputs, None][:4]
    assert codes is not None and scales is not None, "the operator has them"
    prefix, bits, block = node.outputs[0].name, node.attributes["bits"].as_int(), node.attributes["block_size"].as_int()
    blocks = sizes_of(codes)[1] * 8 // bits // block
    nodes = list[ir.Node]()

    def made(op_type: str, inputs: list[ir.Value | None], **attributes: int) -> ir.Value:
        nodes.append(ir.node(op_type, inputs, attributes))
        return nodes[-1].outputs[0]

    def constant(name: str, values: npt.ArrayLike, dtype: type[np.generic]) -> ir.Value:
        full_name = f"{prefix}.{name}"
        return graph.initializers.get(full_name) or add_constant(graph, full_name, ir.tensor(np.array(values, dtype)))

    def shaped(value: ir.Value, name: str, *last_axes: int) -> ir.Value:
        return made("Reshape", [value, constant(name, [0, 0, *last_axes], np.int64)])

    def gathered(table: ir.Value) -> ir.Value:
        return made("Cast", [made("Gather", [table, ids])], to=ir.DataType.FLOAT.value)

    def unpacked(table: ir.Value) -> ir.Value:
        """The gathered bytes as numbers; of 4 bits a byte has two, the first in its lower half."""
        found = gathered(table)
        if bits == 8:
            return found
        pairs = shaped(found, "pairs", -1, 1)
        high = made("Floor", [made("Mul", [pairs, constant("sixteenth", 1 / 16, np.float32)])])
        low = made("Sub", [pairs, made("Mul", [high, constant("sixteen", 16, np.float32)])])
        return made("Concat", [low, high], axis=-1)

    if zeros is None:
        middle = constant("middle", 1 << (bits - 1), np.float32)
    else:
        middle = shaped(unpacked(zeros), "by_block", -1, 1)
        if bits == 4 and blocks % 2:  # the last byte is padded
            bounds = [constant(name, [value], np.int64) for name, value in (("first", 0), ("last", blocks), ("axis", 2))]
            middle = made("Slice", [middle, *bounds])
    moved = made("Sub", [shaped(unpacked(codes), "blocks", blocks, block), middle])
    rows = shaped(made("Mul", [moved, shaped(gathered(scales), "by_block", -1, 1)]), "whole", -1)
    if scales.dtype == ir.DataType.FLOAT16:
        rows = made("Cast", [rows], to=ir.DataType.FLOAT16.value)
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, [rows])


def name_sizes(graph: ir.Graph) -> None:
    """Name the symbolic sizes of inputs and outputs.

    transformers.js takes every batch that is not called `batch_size` for 0. Past and present lengths have different names, because
    ONNX Runtime on WebGPU may put tensors of equal shape in one buffer (microsoft/onnxruntime#32716).
    """
    for value in (*graph.inputs, *graph.outputs):
        assert value.shape is not None, "inputs and outputs have shapes"
        name = str(value.name)
        sizes: list[int | str] = [size if isinstance(size, int) else str(size.value) for size in value.shape]
        is_past, is_present = name.startswith("past"), name.startswith("present")
        length = "past_sequence_length" if is_past else "total_sequence_length" if is_present else None
        for axis, size in enumerate(sizes):
            if isinstance(size, str):
                sizes[axis] = "batch_size" if axis == 0 else length or SYMBOLS.get(size, size)
        if name == "logits":
            sizes[1] = 1
        value.shape = ir.Shape(sizes)


def refer_from(graph: ir.Graph, folder: Path) -> None:
    """Rewrite external-data paths relative to `folder`."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            name = PurePosixPath(str(tensor.location)).name
            value.const_value = ir.ExternalTensor(
                name, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=value.name or "", base_dir=folder
            )
