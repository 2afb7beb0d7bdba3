"""The graph that keeps keys and values at 8 bits, a quarter of the memory.

It has the nodes of the package's own graph, over the same weights. Each channel of each layer's keys and values has a scale (see
`int8_scales`). GroupQueryAttention itself reads such a cache, and for one token at a time it does so faster than it reads float32,
because it reads fewer bytes. For more tokens at once its kernel is slower, so a prompt takes another branch: it converts the
cached codes back to float32 for one layer at a time and attends as usual. That branch rounds the new tokens first, so that a
prompt attends to the same numbers however it is split.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
from tokenizers import Tokenizer

from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH

from ..errors import as_export_error
from ..sources.source import Source
from .attention_layers import Layer, find_layers
from .int8_branches import Int8Branch, Scales, Shared, add_scales, add_shared
from .int8_scales import calibration_texts, channel_scales, key_scales, keys_and_values
from .value_types import forget_types


def int8_cache_bytes(source: Source, graph: Path) -> int:
    """Estimate of the graph's size, from above if quantised: the nodes of each layer twice, for two branches, and the scales."""
    channels = sum(math.prod(size for size in tensor.shape if isinstance(size, int)) for tensor in source.cache)
    return 2 * graph.stat().st_size + 3 * channels * np.dtype(np.float32).itemsize


def write_int8_cache_graph(source: Source, folder: Path, tokenizer: Tokenizer | None) -> None:
    """Write the graph next to the package's own; raises `ExportError` where attention is not GroupQueryAttention in float32."""
    model = ir.load(folder / GRAPH)
    layers = find_layers(model.graph)
    with as_export_error():
        seen = keys_and_values(source, folder / GRAPH, calibration_texts(source, tokenizer))
    shared = add_shared(model.graph)
    for layer in layers:
        key, value = (seen[str(past.name)] for past in layer.pasts)
        scales = {"key": key_scales(key, layer), "value": channel_scales(value)}
        key_constants, value_constants = (add_scales(model.graph, layer, kind, found) for kind, found in scales.items())
        replace_attention(model.graph, layer, shared, key_constants, value_constants)
    forget_types(model.graph)
    ir.save(model, folder / INT8_CACHE_GRAPH)


def replace_attention(graph: ir.Graph, layer: Layer, shared: Shared, key: Scales, value: Scales) -> None:
    """Replace a layer's attention by both branches, and make its cache int8."""
    node = layer.node
    branches = {
        "then_branch": Int8Branch(graph, layer, shared, (key, value), "prefill").prefill_branch(),
        "else_branch": Int8Branch(graph, layer, shared, (key, value), "decode").decode_branch(),
    }
    for cached in (*layer.pasts, *node.outputs[1:3]):
        cached.type = ir.TensorType(ir.DataType.INT8)
    choice = ir.node("If", [shared.is_prefill], branches, num_outputs=3, name=node.name)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [choice], node.outputs, choice.outputs)
