"""From a text encoder to a graph."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnx_textgen.backends.signature import LAST_HIDDEN_STATE
from onnx_textgen.package.manifest import Target

from ..errors import ExportError
from ..huggingface.text_encoder import Reader, TextEncoder
from ..passes.graph.linear import add_constant
from ..passes.order import Settings, run_passes
from ..tracing.interface import forget_origin
from ..tracing.tracer import attach_weights, smallest_bound, trace_module
from ..weights.streamed import OwnWeights

ROWS, TOKENS = 2, 7
"""Of the example."""


class Flat(nn.Module):
    """The reader under the name that `attach_weights` knows."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.module = reader

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """See `Reader.forward`."""
        found: tuple[Tensor, ...] = self.module(*given)
        return found


def trace_text_encoder(encoder: TextEncoder, target: Target) -> ir.Model:
    """The encoder as a model in float32; raises `ExportError` if it cannot be traced."""
    both = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    ids = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % encoder.geometry.vocab_size
    mask = torch.ones_like(ids)
    mask[1, TOKENS // 2 :] = 0
    example = (ids, mask, torch.zeros_like(ids))[: len(encoder.inputs)]
    flat, shapes = Flat(encoder.reader), ((both,) * len(example),)
    with encoder.running(target):
        check = functools.partial(check_bounds, encoder=encoder)
        name, inputs, outputs = type(encoder.reader.model).__name__, encoder.inputs, encoder.outputs
        model = trace_module(flat, example, shapes, name=name, inputs=inputs, outputs=outputs, check=check)
    attach_weights(model, encoder.reader, OwnWeights(encoder.reader))
    run_passes("trace", model, Settings(target))
    repeat_angles(model.graph)
    name_sizes(model, encoder)
    return model


def check_bounds(exported: torch.export.ExportedProgram, encoder: TextEncoder) -> None:
    """Raise `ExportError` for a trace that is valid only for short texts or few of them."""
    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    shape = values[exported.graph_signature.user_inputs[0]].shape
    longest, name = smallest_bound(exported, [shape[1]]), type(encoder.reader.model).__name__
    if longest < encoder.geometry.context_length:
        raise ExportError(f"{name} computes differently above {longest} tokens; add --context-length {longest}")
    if not isinstance(shape[0], torch.SymInt) or not isinstance(shape[1], torch.SymInt):
        raise ExportError(f"{name} was traced for texts of one length or number only")


def repeat_angles(graph: ir.Graph) -> None:
    """Give RotaryEmbedding cosines and sines for every row: traced ones, which are the same for all texts, have a single row."""
    rotating = [node for node in graph if node.op_type == "RotaryEmbedding" and len(node.inputs) == 3]
    if not rotating:
        return
    ids, ones = graph.inputs[0], add_constant(graph, "rotary.ones", ir.tensor(np.ones(2, np.int64)))
    rows = ir.node("Shape", [ids], {"start": 0, "end": 1})
    sizes = ir.node("Concat", [rows.outputs[0], ones], {"axis": 0})
    graph.insert_before(graph[0], [rows, sizes])
    repeated: dict[ir.Value, ir.Value] = {}
    for node in rotating:
        for place, value in enumerate(node.inputs[1:], 1):
            assert value is not None, "the operator has both"
            if value not in repeated:
                made = ir.node("Expand", [value, sizes.outputs[0]])
                graph.insert_before(node, made)
                repeated[value] = made.outputs[0]
            node.replace_input_with(place, repeated[value])


def name_sizes(model: ir.Model, encoder: TextEncoder) -> None:
    """Name inputs, outputs and their dimensions as other exporters do."""
    graph = model.graph
    for value, name in zip(graph.inputs, encoder.inputs, strict=True):
        value.name, value.shape = name, ir.Shape(["batch", "sequence_length"])
    for value, name in zip(graph.outputs, encoder.outputs, strict=True):
        width = value.shape[-1] if value.shape is not None else None
        last = width if isinstance(width, int) else "width"
        value.name = name
        value.shape = ir.Shape(["batch", *(["sequence_length"] if name == LAST_HIDDEN_STATE else []), last])
    graph.name = "text_encoder"
    forget_origin(model)
