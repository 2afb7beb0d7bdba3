"""The names and shapes of a traced graph's inputs and outputs; `tracer` lists the names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.backends.signature import ENCODER_MASK, HIDDEN_STATES, IMAGE_EMBEDS, LAST_HIDDEN_STATE, POSITION_OFFSETS
from onnx_textgen.images.positions import AXES
from onnx_textgen.package.manifest import Target
from onnx_textgen.speech.features import INPUT_FEATURES
from onnx_textgen.tasks.attention_maps import ATTENTIONS, CROSS_ATTENTIONS

from ..sources.source import Source

SOURCE_IDS, SOURCE_MASK, SOURCE_FEATURES = "source.input_ids", "source.attention_mask", f"source.{INPUT_FEATURES}"
"""The encoder's inputs while it is part of the decoder's graph."""


def input_names(source: Source) -> list[str]:
    """Names of the graph's inputs, in their order."""
    names = ["input_ids", "attention_mask", "logits_positions", *(tensor.name for tensor in source.cache)]
    if source.encoder is None:
        return names + names_of_images(source)
    read = [SOURCE_IDS, SOURCE_MASK] if source.encoder.features is None else [SOURCE_FEATURES]
    return [*names, ENCODER_MASK, *(tensor.name for tensor in source.encoder.cross), *read]


def names_of_images(source: Source) -> list[str]:
    """Names of what a decoder takes of images; none for text alone."""
    if source.images is None:
        return []
    return [IMAGE_EMBEDS] if source.images.decoder is None else [IMAGE_EMBEDS, POSITION_OFFSETS]


def output_names(source: Source, *, hidden_states: bool, attention_maps: bool) -> list[str]:
    """Names of the graph's outputs, in their order."""
    maps = attention_names(source) if attention_maps else []
    names = ["logits", *(tensor.present for tensor in source.cache), *maps, *([HIDDEN_STATES] if hidden_states else [])]
    return names if source.encoder is None else [*names, LAST_HIDDEN_STATE, *(tensor.present for tensor in source.encoder.cross)]


def attention_names(source: Source) -> list[str]:
    """The outputs with the attention weights of an encoder-decoder, of all its layers; none for a decoder."""
    layers = 0 if source.encoder is None else len(source.encoder.cross) // 2
    return [f"{kind}{layer}" for kind in (ATTENTIONS, CROSS_ATTENTIONS) for layer in range(layers)]


def finish_interface(model: ir.Model, source: Source, target: Target, outputs: Sequence[str]) -> None:
    """Name the dimensions, make `logits_positions` and what images bring optional, and drop inputs that the graph does not read."""
    graph, geometry = model.graph, source.geometry
    shared = target == "ort" and any(node.op_type == "GroupQueryAttention" for node in graph)
    past, present = ("cache_length", "cache_length") if shared else ("past_length", "total_length")
    shapes: dict[str, list[int | str]] = {
        "input_ids": ["batch", 1 if source.one_token else "new"],
        "attention_mask": ["batch", "total_length"],
        "logits_positions": ["positions"],
        "logits": ["batch", "positions", geometry.vocab_size],
    }
    for tensor in source.cache:
        shapes[tensor.name] = [past if size == "length" else size for size in tensor.shape]
        shapes[tensor.present] = [present if size == "length" else size for size in tensor.shape]
    if source.encoder is not None:
        shapes |= {name: ["batch", "source_length"] for name in (ENCODER_MASK, SOURCE_IDS, SOURCE_MASK)}
        shapes[SOURCE_FEATURES] = ["batch", *(source.encoder.features or ())]
        shapes |= {name: list(tensor.shape) for tensor in source.encoder.cross for name in (tensor.name, tensor.present)}
    if source.images is not None:
        shapes[IMAGE_EMBEDS] = ["image_rows", source.images.row_width]
        shapes[POSITION_OFFSETS] = [AXES, *shapes["input_ids"]]
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name  # a tensor that is returned twice has a copy with another name
        if name.startswith((ATTENTIONS, CROSS_ATTENTIONS)):
            heads = value.shape[1] if value.shape is not None else None
            columns = "total_length" if name.startswith(ATTENTIONS) else "source_length"
            shapes[name] = ["batch", heads if isinstance(heads, int) else geometry.heads, shapes["input_ids"][1], columns]
        if name in (HIDDEN_STATES, LAST_HIDDEN_STATE):
            width = value.shape[-1] if value.shape is not None else None
            shapes[name] = [
                "batch",
                "positions" if name == HIDDEN_STATES else "source_length",
                width if isinstance(width, int) else "width",
            ]
    for value in (*graph.inputs, *graph.outputs):
        value.shape = ir.Shape(shapes[str(value.name)])
    for value in list(graph.inputs):
        if value.name in ("attention_mask", SOURCE_MASK) and not value.uses():
            graph.inputs.remove(value)
        if value.name == POSITION_OFFSETS:
            measure_ids(graph, value)
        if (default := default_of(str(value.name), source)) is not None:
            value.const_value = ir.tensor(default, name=value.name)
            graph.register_initializer(value)
    if source.rotary_switch is not None:
        model.metadata_props["rotary_switch"] = str(source.rotary_switch)
    model.graph.name = "decoder"
    forget_origin(model)


def default_of(name: str, source: Source) -> npt.NDArray[np.generic] | None:
    """What an optional input is, if it is not given."""
    if name == "logits_positions":
        return np.array([-1], dtype=np.int64)
    if name == IMAGE_EMBEDS and source.images is not None:
        return np.zeros((0, source.images.row_width), dtype=np.float32)
    return np.zeros((AXES, 1, 1), dtype=np.int64) if name == POSITION_OFFSETS else None


def measure_ids(graph: ir.Graph, offsets: ir.Value) -> None:
    """Take the sizes of the batch from `input_ids` where they are those of the offsets, which may have none: they are optional."""
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    for node, _ in offsets.uses():
        axis = node.attributes.get_int("start", 0)
        if node.op_type == "Shape" and axis > 0:
            made = ir.node("Shape", [ids], {"start": axis - 1, "end": axis})
            ir.convenience.replace_nodes_and_values(graph, node, [node], [made], node.outputs, made.outputs)


def forget_origin(model: ir.Model) -> None:
    """Drop what the tracer notes about this machine, and its own name."""
    graph = model.graph
    model.producer_name = "onnx-textgen"
    graph.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of this machine
        node.doc_string = None
    for value in graph.initializers.values():
        value.metadata_props.clear()
