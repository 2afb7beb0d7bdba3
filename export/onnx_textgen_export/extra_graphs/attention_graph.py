"""The graph that shows attention: a package's own graph with the attention weights of every layer as further outputs.

Both attention operators can return their weights after softmax. That takes time, and memory that grows with the square of the
text's length, so the package's own graph does not ask for them: a second graph of some ten kilobytes, over the same weights, does.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx_ir as ir

from onnx_textgen.package.manifest import ATTENTION_GRAPH, GRAPH
from onnx_textgen.tasks.attention_maps import ATTENTIONS

from ..errors import ExportError

AFTER_SOFTMAX = {"GroupQueryAttention": ("qk_output", 2), "Attention": ("qk_matmul_output_mode", 3)}
"""The attribute by which an operator gives its weights after softmax as its fourth output."""


def write_attention_graph(folder: Path, heads: int) -> None:
    """Write the graph next to the package's own; raises `ExportError` where a layer's attention is no single operator."""
    model = ir.load(folder / GRAPH)
    graph = model.graph
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    assert ids.shape is not None, "inputs have shapes"
    for present in list(graph.outputs):
        layer = re.fullmatch(r"present\.([0-9]+)\.key", str(present.name))
        if layer is None:
            continue
        node = present.producer()
        op_type = node.op_type if node is not None else "no operator"
        if node is None or op_type not in AFTER_SOFTMAX or len(node.outputs) != 3:
            raise ExportError(
                f"no attention maps: layer {layer[1]} attends by more than one operator ({op_type} makes its keys); "
                "leave out --attention-maps"
            )
        name, value = AFTER_SOFTMAX[op_type]
        node.attributes[name] = ir.AttrInt64(name, value)
        node.resize_outputs(4)
        weights = node.outputs[3]
        weights.name, weights.type = f"{ATTENTIONS}{layer[1]}", present.type
        weights.shape = ir.Shape(["batch", heads, ids.shape[1], "total_length"])
        graph.outputs.append(weights)
    ir.save(model, folder / ATTENTION_GRAPH)
