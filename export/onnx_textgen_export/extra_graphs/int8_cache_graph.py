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
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH

from ..errors import as_export_error
from ..sources.source import Source
from .int8_layers import Layer, find_layers
from .int8_scales import LARGEST_CODE, calibration_texts, channel_scales, key_scales, keys_and_values

PAST, TOTAL, START, END, AXIS, LOW, HIGH = (
    f"int8_cache.{name}" for name in ("past", "total", "start", "end", "axis", "low", "high")
)
"""Names of what all layers share: tokens held before the run and after it, and constants."""
TURNING = {"do_rotary", "rotary_interleaved"}
"""What tells the operator to turn by position, which is done before it where new keys are rounded."""
MANY = "int8_cache.many"
"""Name of what says whether a run has more than one new token."""


def int8_cache_bytes(source: Source, graph: Path) -> int:
    """No less than what the graph takes: each layer's own nodes once more, as prompts have a branch, and the scales."""
    channels = sum(math.prod(size for size in tensor.shape if isinstance(size, int)) for tensor in source.cache)
    return 2 * graph.stat().st_size + 3 * channels * np.dtype(np.float32).itemsize


def write_int8_cache_graph(source: Source, folder: Path, tokenizer: Tokenizer | None) -> None:
    """Write the graph beside the package's own; raises `ExportError` where attention is not by GroupQueryAttention in float32."""
    model = onnx.load(folder / GRAPH, load_external_data=False)
    layers = find_layers(model.graph)
    with as_export_error():
        seen = keys_and_values(source, folder / GRAPH, calibration_texts(source, tokenizer))
    for value in (*model.graph.input, *model.graph.output):
        if value.name in {name for layer in layers for name in (*layer.node.input[3:5], *layer.node.output[1:3])}:
            value.type.tensor_type.elem_type = TensorProto.INT8
    for layer in layers:
        key, value = (seen[name] for name in layer.node.input[3:5])
        for kind, scales in (("key", key_scales(key, layer)), ("value", channel_scales(value))):
            flat = scales.reshape(1, 1, -1)
            for what, data in (("scale", scales), ("scale_of_new", flat), ("inverse_of_new", 1 / flat)):
                model.graph.initializer.append(numpy_helper.from_array(data, layer.name(f"{kind}_{what}")))
    nodes = [branches(node, layers) for node in model.graph.node]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend([*shared_nodes(model.graph), *(each for node in nodes for each in node)])
    onnx.save(model, folder / INT8_CACHE_GRAPH)


def shared_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """What all layers ask for; its constants are added to the graph."""
    constants = {
        START: np.array([0]),
        END: np.array([np.iinfo(np.int64).max]),
        AXIS: np.array([2]),
        LOW: np.float32(-LARGEST_CODE - 1),
        HIGH: np.float32(LARGEST_CODE),
        f"{MANY}.least": np.array(1),
    }
    graph.initializer.extend(numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items())
    new, count = f"{MANY}.new", f"{MANY}.count"
    return [
        helper.make_node("Shape", ["input_ids"], [new], start=1, end=2),
        helper.make_node("Shape", ["attention_mask"], [TOTAL], start=1, end=2),
        helper.make_node("Sub", [TOTAL, new], [PAST]),
        helper.make_node("Squeeze", [new], [count]),
        helper.make_node("Greater", [count, f"{MANY}.least"], [MANY]),
    ]


def branches(node: onnx.NodeProto, layers: list[Layer]) -> list[onnx.NodeProto]:
    """What stands in the place of a node: the two ways of a layer's attention, or the node itself."""
    layer = next((each for each in layers if each.node.name == node.name), None)
    if layer is None:
        return [node]
    ways = {"then_branch": Way(layer, "many").of_many(), "else_branch": Way(layer, "one").of_one()}
    return [helper.make_node("If", [MANY], list(node.output), name=node.name, **ways)]


class Way:
    """One branch of a layer's attention, while its nodes are added."""

    def __init__(self, layer: Layer, prefix: str) -> None:
        self.layer, self.prefix = layer, prefix
        self.nodes = list[onnx.NodeProto]()

    def add(self, op_type: str, inputs: list[str], outputs: int = 1, domain: str = "", **attributes: Any) -> list[str]:  # noqa: ANN401 - ONNX's
        """Add a node; the names of its outputs."""
        names = [self.layer.name(f"{self.prefix}.{len(self.nodes)}.{index}") for index in range(outputs)]
        name = self.layer.name(f"{self.prefix}.{len(self.nodes)}")
        self.nodes.append(helper.make_node(op_type, inputs, names, name=name, domain=domain, **attributes))
        return names

    def graph(self, outputs: list[str]) -> onnx.GraphProto:
        """The branch that gives the layer's output, keys and values."""
        types = (TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT8)
        values = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, types, strict=True)]
        return helper.make_graph(self.nodes, self.layer.name(self.prefix), [], values)

    def of_one(self) -> onnx.GraphProto:
        """A single token: the operator reads the codes and adds the token's own, in place."""
        node, attributes = self.layer.node, dict(self.layer.attributes)
        attributes |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        inputs = [*node.input, *[""] * (12 - len(node.input)), self.layer.name("key_scale"), self.layer.name("value_scale")]
        return self.graph(self.add("GroupQueryAttention", inputs, 3, "com.microsoft", **attributes))

    def of_many(self) -> onnx.GraphProto:
        """Several: attention in float32 over what the cache holds, with the new tokens rounded as they will be there."""
        node, (heads, kv_heads) = self.layer.node, self.layer.heads
        query, key, value = self.apart()
        if self.layer.rotary_size:
            query, key = self.turned(query, heads), self.turned(key, kv_heads)
        key, key_codes = self.rounded(key, "key")
        value, value_codes = self.rounded(value, "value")
        pasts = [self.past(node.input[3], "key"), self.past(node.input[4], "value")]
        others = ["" if index in (7, 8) else name for index, name in enumerate(node.input)][5:]
        attributes = {name: given for name, given in self.layer.attributes.items() if name not in TURNING}
        inputs = [query, key, value, *(plain for plain, _ in pasts), *others]
        while not inputs[-1]:
            inputs.pop()
        output, _, _ = self.add("GroupQueryAttention", inputs, 3, "com.microsoft", **attributes)
        stored = zip(node.input[3:5], pasts, (key_codes, value_codes), strict=True)
        return self.graph([output, *(self.joined(name, codes, new) for name, (_, codes), new in stored)])

    def apart(self) -> list[str]:
        """Queries, keys and values [batch, new, heads * head_size]."""
        if self.layer.node.input[1]:
            return list(self.layer.node.input[:3])
        heads, kv_heads = (count * self.layer.head_size for count in self.layer.heads)
        sizes = self.add("Constant", [], value_ints=[heads, kv_heads, kv_heads])
        return self.add("Split", [self.layer.node.input[0], *sizes], 3, axis=-1)

    def turned(self, value: str, heads: int) -> str:
        """Queries or keys, turned by their positions."""
        part = {"rotary_embedding_dim": self.layer.rotary_size} if self.layer.rotary_size < self.layer.head_size else {}
        interleaved = self.layer.attributes.get("rotary_interleaved", 0)
        inputs = [value, PAST, *self.layer.node.input[7:9]]
        return self.add("RotaryEmbedding", inputs, domain="com.microsoft", interleaved=interleaved, num_heads=heads, **part)[0]

    def rounded(self, value: str, kind: str) -> tuple[str, str]:
        """New keys or values as the cache will give them back, and their codes [batch, kv_heads, new, head_size]."""
        scale, inverse = (self.layer.name(f"{kind}_{what}_of_new") for what in ("scale", "inverse"))
        steps = self.add("Round", self.add("Mul", [value, inverse]))  # as the operator's kernel does it, to the last bit
        steps = self.add("Clip", [*steps, LOW, HIGH])
        shape = self.add("Constant", [], value_ints=[0, 0, self.layer.heads[1], self.layer.head_size])
        split = self.add("Reshape", [*self.add("Cast", steps, to=TensorProto.INT8), *shape])
        return self.add("Mul", [*steps, scale])[0], self.add("Transpose", split, perm=[0, 2, 1, 3])[0]

    def past(self, name: str, kind: str) -> tuple[str, str]:
        """Keys or values of the tokens that are held, as numbers and as codes."""
        codes = self.add("Slice", [name, START, PAST, AXIS])
        numbers = self.add("Cast", codes, to=TensorProto.FLOAT)
        return self.add("Mul", [*numbers, self.layer.name(f"{kind}_scale")])[0], codes[0]

    def joined(self, name: str, held: str, new: str) -> str:
        """The whole buffer after the run."""
        rest = self.add("Slice", [name, TOTAL, END, AXIS])
        return self.add("Concat", [held, new, *rest], axis=2)[0]
