"""The graphs by which transformers.js opens an encoder-decoder: its encoder, and its decoder "merged".

transformers.js hands what its encoder returns, `last_hidden_state`, to the decoder as `encoder_hidden_states` in every run, and
looks at nothing of it but the number of texts. Here that tensor holds the keys and values of the cross-attention of all layers, one
after the other along the heads: so they are computed once for a source, and the decoder needs no second branch that computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_textgen.backends.signature import ENCODER_STATES, LAST_HIDDEN_STATE, comes_from_encoder
from onnx_textgen.package.manifest import ENCODER_GRAPH, GRAPH, SHARED_FOLDER

from ..passes.graph.linear import add_constant
from ..passes.order import Settings
from ..sources.source import Source
from ..tokenization.text_assets import TextAssets
from .shared_graph import for_others, precision_suffix


def opens_as_seq2seq(source: Source, assets: TextAssets) -> bool:
    """Return whether transformers.js can run an encoder-decoder: keys and values of one size, no other state, an end token."""
    if source.encoder is None or not assets.eos_ids:
        return False
    grows = all(tensor.shape[2] == "length" for tensor in source.cache)
    return grows and len({tensor.shape for tensor in source.encoder.cross}) == 1


def write_seq2seq_graphs(folder: Path, settings: Settings) -> None:
    """Write both graphs next to the weights, under the names that transformers.js looks for."""
    for name, own, change in (("encoder_model", ENCODER_GRAPH, join_cross), ("decoder_model_merged", GRAPH, divide_cross)):
        model = ir.load(folder / own)
        change(model.graph)
        for_others(model.graph, folder)
        ir.save(model, folder / SHARED_FOLDER / f"{name}{precision_suffix(settings)}.onnx")


def join_cross(encoder: ir.Graph) -> None:
    """Let the encoder return the keys and values of the cross-attention alone, as one tensor [batch, all heads, source, size]."""
    cross = [value for value in encoder.outputs if value.name != LAST_HIDDEN_STATE]
    (states,) = (value for value in encoder.outputs if value.name == LAST_HIDDEN_STATE)
    states.name = f"{LAST_HIDDEN_STATE}.own"
    joined = ir.node("Concat", cross, {"axis": 1})
    encoder.append(joined)
    (made,) = joined.outputs
    made.name, made.type, made.shape = LAST_HIDDEN_STATE, cross[0].type, joined_shape(cross)
    encoder.outputs[:] = [made]


def divide_cross(decoder: ir.Graph) -> None:
    """Let the decoder take that tensor, and see every token of its text."""
    cross = [value for value in decoder.inputs if comes_from_encoder(str(value.name))]
    joined = ir.Value(name=ENCODER_STATES, type=cross[0].type, shape=joined_shape(cross))
    sizes = add_constant(decoder, "cross.sizes", ir.tensor(np.full(len(cross), heads_of(cross[0]), np.int64)))
    divided = ir.node("Split", [joined, sizes], {"axis": 1}, num_outputs=len(cross))
    decoder.insert_before(decoder[0], divided)
    for value, part in zip(cross, divided.outputs, strict=True):
        value.replace_all_uses_with(part)
        decoder.inputs.remove(value)
    decoder.inputs.append(joined)
    see_every_token(decoder)


def see_every_token(decoder: ir.Graph) -> None:
    """Make the mask of the text in the graph, all ones: transformers.js gives none, and pads no text."""
    by_name = {str(value.name): value for value in decoder.inputs}
    if (mask := by_name.get("attention_mask")) is None:
        return
    past = next(value for name, value in by_name.items() if name.startswith("past_"))
    rows, new, held = (
        ir.node("Shape", [value], {"start": axis, "end": axis + 1})
        for value, axis in ((by_name["input_ids"], 0), (by_name["input_ids"], 1), (past, 2))
    )
    length = ir.node("Add", [new.outputs[0], held.outputs[0]])
    shape = ir.node("Concat", [rows.outputs[0], length.outputs[0]], {"axis": 0})
    ones = ir.node("ConstantOfShape", [shape.outputs[0]], {"value": ir.tensor(np.array([1], np.int64))})
    decoder.insert_before(decoder[0], [rows, new, held, length, shape, ones])
    mask.replace_all_uses_with(ones.outputs[0])
    decoder.inputs.remove(mask)


def heads_of(value: ir.Value) -> int:
    """The heads of a key or value [batch, heads, source, size]."""
    assert value.shape is not None, "inputs and outputs have shapes"
    heads = value.shape[1]
    assert isinstance(heads, int), "the tracer knows them"
    return heads


def joined_shape(cross: Sequence[ir.Value]) -> ir.Shape:
    """The shape of all keys and values one after the other."""
    assert cross[0].shape is not None, "inputs and outputs have shapes"
    batch, _, tokens, size = cross[0].shape
    return ir.Shape([batch, heads_of(cross[0]) * len(cross), tokens, size])
