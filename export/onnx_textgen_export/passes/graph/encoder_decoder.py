"""Divides the graph of an encoder-decoder, in which both halves have gone through the passes together."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from onnx_textgen.backends.signature import LAST_HIDDEN_STATE
from onnx_textgen.package.manifest import ATTENTION_GRAPH, ENCODER_GRAPH, GRAPH
from onnx_textgen.tasks.attention_maps import ATTENTIONS, CROSS_ATTENTIONS

SOURCE = "source."
"""How the names of the encoder's inputs begin in the whole graph."""


def split_encoder_decoder(model: ir.Model) -> dict[str, ir.Model]:
    """The graphs of a model by the names of their files; that of a decoder or a text encoder is not divided.

    The graphs share the tensors of their weights. A decoder with attention weights as outputs becomes two: the package's own,
    without them, and the graph that shows attention.
    """
    names = [str(value.name) for value in model.graph.outputs]
    if LAST_HIDDEN_STATE not in names[1:]:
        return {GRAPH: model}
    first = names.index(LAST_HIDDEN_STATE)
    own = [name for name in names[:first] if not name.startswith((ATTENTIONS, CROSS_ATTENTIONS))]
    decoder, encoder = half(model, own), half(model, names[first:])
    for value in encoder.graph.inputs:
        value.name = str(value.name).removeprefix(SOURCE)
    encoder.graph.name = "encoder"
    graphs = {GRAPH: decoder, ENCODER_GRAPH: encoder}
    return graphs if len(own) == first else {**graphs, ATTENTION_GRAPH: half(model, names[:first])}


def half(model: ir.Model, outputs: list[str]) -> ir.Model:
    """A copy of the model with these outputs alone, and without what they do not need."""
    made = model.clone()
    for value in list(made.graph.outputs):
        if value.name not in outputs:
            made.graph.outputs.remove(value)
    common_passes.RemoveUnusedNodesPass()(made)
    for value in list(made.graph.inputs):
        if not value.uses() and value not in made.graph.outputs:
            made.graph.inputs.remove(value)
            made.graph.initializers.pop(str(value.name), None)  # the default of an optional input
    return made
