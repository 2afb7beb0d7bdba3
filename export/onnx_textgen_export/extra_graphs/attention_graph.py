"""The graph that shows attention: a package's own graph with the attention weights of every layer as further outputs.

Both attention operators can return their weights after softmax. That takes time, and memory that grows with the square of the
text's length, so the package's own graph does not ask for them: a second graph of some ten kilobytes, over the same weights, does.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx
from onnx import helper

from onnx_textgen.inference.attention_maps import ATTENTIONS
from onnx_textgen.package.manifest import ATTENTION_GRAPH, GRAPH

from ..errors import ExportError

AFTER_SOFTMAX = {"GroupQueryAttention": ("qk_output", 2), "Attention": ("qk_matmul_output_mode", 3)}
"""The attribute by which an operator gives its weights after softmax as its fourth output."""


def write_attention_graph(folder: Path, heads: int) -> None:
    """Write the graph beside the package's own; raises `ExportError` where a layer's attention is no single operator."""
    model = onnx.load(folder / GRAPH, load_external_data=False)
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    new = next(value for value in graph.input if value.name == "input_ids").type.tensor_type.shape.dim[1]
    for present in list(graph.output):
        layer = re.fullmatch(r"present\.([0-9]+)\.key", present.name)
        if layer is None:
            continue
        node = producers[present.name]
        if node.op_type not in AFTER_SOFTMAX or len(node.output) != 3:
            raise ExportError(
                f"no attention maps: layer {layer[1]} attends by more than one operator ({node.op_type} makes its keys); "
                "leave out --attention-maps"
            )
        name, value = AFTER_SOFTMAX[node.op_type]
        node.attribute.append(helper.make_attribute(name, value))
        node.output.append(f"{ATTENTIONS}{layer[1]}")
        shape = ["batch", heads, new.dim_param or new.dim_value, "total_length"]
        graph.output.append(helper.make_tensor_value_info(node.output[3], present.type.tensor_type.elem_type, shape))
    onnx.save(model, folder / ATTENTION_GRAPH)
