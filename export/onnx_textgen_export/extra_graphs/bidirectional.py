"""Bidirectional attention among the tokens of a picture (Gemma 3), where attention is GroupQueryAttention.

That operator is causal. So in runs with pictures its output is left unused, and a second attention reads the keys and values that
it has put into the cache, with a mask. Runs of text alone, such as every step of an answer, cost one comparison of ids more.
A picture's tokens are ids below 0 that follow each other; they have to be in one run.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_textgen.package.manifest import GRAPH

from ..errors import ExportError
from .attention_layers import AttentionBranch, layer_of
from .node_builder import NodeBuilder

PREFIX = "bidirectional"
SINKS = 11
"""The operator's input of this kind."""


def add_bidirectional_attention(folder: Path) -> None:
    """Rewrite the package's graph; layers that attend by other operators have their masks already."""
    model = ir.load(folder / GRAPH)
    layers = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    if not layers:
        return
    masks = Masks(model.graph)
    for number, node in enumerate(layers):
        output, cached = node.outputs[0], node.inputs[3]
        assert cached is not None and cached.dtype is not None, "the cache is an input of the graph"
        causal = NodeBuilder(model.graph, f"{PREFIX}.{number}.causal")
        branches = {
            "then_branch": attention(node, masks, cached.dtype),
            "else_branch": causal.branch((causal.one("Identity", output), cached.dtype)),
        }
        choice = ir.node("If", [masks.has_picture], branches, name=f"{PREFIX}.{number}")
        chosen = choice.outputs[0]
        chosen.name, chosen.type, chosen.shape = f"{PREFIX}.{number}.output", ir.TensorType(cached.dtype), output.shape
        readers = [use for use in output.uses() if use.node.graph is model.graph]
        model.graph.insert_after(node, choice)
        for use in readers:
            use.node.replace_input_with(use.idx, chosen)
    ir.save(model, folder / GRAPH)


class Masks:
    """What the layers of a graph share: whether a run has pictures, and a mask for each window."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.inputs = graph, {value.name: value for value in graph.inputs}
        nodes = NodeBuilder(graph, f"{PREFIX}.shared")
        ids, mask = self.inputs["input_ids"], self.inputs["attention_mask"]
        self.of_picture = nodes.one("Cast", nodes.one("Less", ids, nodes.whole(0)), to=ir.DataType.INT64)
        self.has_picture = nodes.one("Cast", nodes.one("ReduceMax", self.of_picture, keepdims=0), to=ir.DataType.BOOL)
        self.total = nodes.one("Shape", mask, start=1, end=2)
        """[1]: tokens after the run."""
        self.past = nodes.one("Sub", self.total, nodes.one("Shape", ids, start=1, end=2))
        """[1]: tokens before the run."""
        graph.insert_before(graph[0], nodes.nodes)
        self.last = nodes.nodes[-1]
        self.of_window = functools.cache(self.make)

    def make(self, window: int) -> ir.Value:
        """Which tokens each new one sees: bool [batch, 1, new, total]; `window`: its length, 0 for none."""
        name = f"{PREFIX}.window_{window}"
        nodes, nothing = NodeBuilder(self.graph, name), NodeBuilder(self.graph, f"{name}.none")
        zero, one = nodes.whole(0), nodes.whole(1)
        shifted = nodes.one("Pad", self.of_picture, nodes.whole(0, 1, 0, -1))
        begins = nodes.one("Mul", self.of_picture, nodes.one("Sub", one, shifted))
        new = nodes.one("Mul", nodes.one("CumSum", begins, one), self.of_picture)  # numbers of pictures, from 1; of text 0
        all_ = nodes.one("Pad", new, nodes.one("Concat", zero, self.past, zero, zero, axis=0))
        new, all_ = nodes.one("Unsqueeze", new, nodes.whole(2)), nodes.one("Unsqueeze", all_, one)
        is_one_picture = nodes.one("And", nodes.one("Equal", new, all_), nodes.one("Greater", new, zero))
        start, step, first, end = (nodes.one("Squeeze", each, zero) for each in (zero, one, self.past, self.total))
        keys = nodes.one("Range", start, end, step)
        queries = nodes.one("Unsqueeze", nodes.one("Range", first, end, step), one)
        seen = nodes.one("Or", nodes.one("LessOrEqual", keys, queries), is_one_picture)
        if window:
            seen = nodes.one("And", seen, nodes.one("Greater", keys, nodes.one("Sub", queries, nodes.whole(window))))
        mask = nodes.one("Unsqueeze", seen, one)
        empty = nothing.one("Constant", value=ir.tensor(np.zeros((1, 1, 1, 1), bool)))
        branches = {"then_branch": nodes.branch((mask, ir.DataType.BOOL)), "else_branch": nothing.branch((empty, ir.DataType.BOOL))}
        choice = ir.node("If", [self.has_picture], branches, name=name)
        choice.outputs[0].name, choice.outputs[0].type = f"{name}.mask", ir.TensorType(ir.DataType.BOOL)
        self.graph.insert_after(self.last, choice)
        return choice.outputs[0]


def attention(node: ir.Node, masks: Masks, dtype: ir.DataType) -> ir.Graph:
    """The branch of a layer that attends by the mask to the keys and values that the operator has put into the cache."""
    if len(node.inputs) > SINKS and node.inputs[SINKS] is not None:
        raise ExportError("attention with sinks that sees pictures in both directions is not supported")
    layer = layer_of(node)
    nodes, (heads, _), size = AttentionBranch(masks.graph, layer, masks.past, PREFIX), layer.heads, layer.head_size
    query = nodes.rotated(nodes.split_qkv()[0], heads)
    query = nodes.one("Transpose", nodes.one("Reshape", query, nodes.whole(0, 0, heads, size)), perm=[0, 2, 1, 3])
    whole = [nodes.one("Slice", each, nodes.whole(0), masks.total, nodes.whole(2)) for each in node.outputs[1:3]]
    options = {name: layer.attributes[name] for name in ("scale", "softcap") if layer.attributes.get(name)}
    mask = masks.of_window(max(layer.attributes.get("local_window_size", 0), 0))
    found = nodes.one("Attention", query, *whole, mask, **options)
    flat = nodes.one("Reshape", nodes.one("Transpose", found, perm=[0, 2, 1, 3]), nodes.whole(0, 0, heads * size))
    return nodes.branch((flat, dtype))
