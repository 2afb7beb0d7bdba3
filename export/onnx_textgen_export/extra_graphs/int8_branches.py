"""The two forms of a layer's attention over a cache of 8 bits, one for a single new token and one for more, and what they share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.backends.cache_codes import LARGEST_CODE

from ..passes.graph.linear import add_constant
from .int8_layers import Layer
from .int8_scales import Floats

ROTATION = {"do_rotary", "rotary_interleaved"}
"""Attributes that let the operator rotate by position; where new keys are rounded, that happens before the operator."""
PREFIX = "int8_cache"


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """Values that all layers read."""

    past: ir.Value
    """[1]: tokens in the cache before the run."""
    total: ir.Value
    """[1]: tokens in the cache after it."""
    is_prefill: ir.Value
    """Whether a run has more than one new token."""
    start: ir.Value
    end: ir.Value
    axis: ir.Value
    low: ir.Value
    """The smallest code, as float32."""
    high: ir.Value


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a layer's keys or values, as constants of the graph."""

    cached: ir.Value
    """[1, kv_heads, 1, head_size]"""
    new: ir.Value
    """[1, 1, kv_heads * head_size]: the same, in the layout of a projection's output."""
    inverse: ir.Value
    """1 / new."""


def add_shared(graph: ir.Graph) -> Shared:
    """Put what all layers read in front of the graph."""

    def constant(name: str, data: Any) -> ir.Value:  # noqa: ANN401 - what NumPy makes an array of
        return add_constant(graph, f"{PREFIX}.{name}", ir.tensor(np.asarray(data)))

    inputs = {value.name: value for value in graph.inputs}
    new = ir.node("Shape", [inputs["input_ids"]], {"start": 1, "end": 2})
    total = ir.node("Shape", [inputs["attention_mask"]], {"start": 1, "end": 2})
    past = ir.node("Sub", [total.outputs[0], new.outputs[0]])
    count = ir.node("Squeeze", new.outputs)
    is_prefill = ir.node("Greater", [count.outputs[0], constant("one", 1)])
    nodes = {"new": new, "total": total, "past": past, "count": count, "is_prefill": is_prefill}
    for name, node in nodes.items():
        node.name = node.outputs[0].name = f"{PREFIX}.{name}"
    graph.insert_before(graph[0], list(nodes.values()))
    return Shared(
        past=past.outputs[0],
        total=total.outputs[0],
        is_prefill=is_prefill.outputs[0],
        start=constant("start", [0]),
        end=constant("end", [np.iinfo(np.int64).max]),
        axis=constant("axis", [2]),
        low=constant("low", np.float32(-LARGEST_CODE - 1)),
        high=constant("high", np.float32(LARGEST_CODE)),
    )


def add_scales(graph: ir.Graph, layer: Layer, kind: str, scales: Floats) -> Scales:
    """Add the scales [1, kv_heads, 1, head_size] of a layer's keys or values (`kind`) to the graph."""
    flat = scales.reshape(1, 1, -1)

    def constant(what: str, array: npt.NDArray[np.floating[Any]]) -> ir.Value:
        return add_constant(graph, layer.name(f"{kind}_{what}"), ir.tensor(array))

    return Scales(constant("scale", scales), constant("scale_of_new", flat), constant("inverse_of_new", 1 / flat))


class BranchBuilder:
    """One branch of a layer's attention, while its nodes are added."""

    def __init__(self, layer: Layer, shared: Shared, key: Scales, value: Scales, *, prefix: str) -> None:
        self.layer, self.shared, self.key, self.value, self.prefix = layer, shared, key, value, prefix
        self.nodes = list[ir.Node]()

    def add(
        self,
        op_type: str,
        inputs: list[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        outputs: int = 1,
        domain: str = "",
    ) -> list[ir.Value]:
        """Add a node; returns its outputs."""
        name = self.layer.name(f"{self.prefix}.{len(self.nodes)}")
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs, domain=domain, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}.{index}"
        self.nodes.append(node)
        return list(node.outputs)

    def one(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:  # noqa: ANN401 - ONNX's
        """Add a node of one output, and return it."""
        return self.add(op_type, list(inputs), attributes, domain=domain)[0]

    def graph(self, outputs: list[ir.Value]) -> ir.Graph:
        """The branch that gives the layer's output, keys and values."""
        for value, dtype in zip(outputs, (ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.INT8), strict=True):
            value.type = ir.TensorType(dtype)
        return ir.Graph([], outputs, nodes=self.nodes, name=self.layer.name(self.prefix))

    def decode_branch(self) -> ir.Graph:
        """A single token: the operator reads the codes and adds the token's, in place."""
        quantized = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        given = list(self.layer.node.inputs)
        inputs = [*given, *[None] * (12 - len(given)), self.key.cached, self.value.cached]
        return self.graph(
            self.add("GroupQueryAttention", inputs, {**self.layer.attributes, **quantized}, outputs=3, domain="com.microsoft")
        )

    def prefill_branch(self) -> ir.Graph:
        """More tokens: attention in float32 over the cached numbers, with the new tokens rounded as the cache will hold them."""
        node, (heads, kv_heads) = self.layer.node, self.layer.heads
        query, key, value = self.split_qkv()
        if self.layer.rotary_size:
            query, key = self.rotated(query, heads), self.rotated(key, kv_heads)
        key, key_codes = self.rounded(key, self.key)
        value, value_codes = self.rounded(value, self.value)
        pasts = [self.dequantized(past, scales) for past, scales in zip(self.layer.pasts, (self.key, self.value), strict=True)]
        others = [None if index in (7, 8) else given for index, given in enumerate(node.inputs)][5:]
        inputs = [query, key, value, *(numbers for numbers, _ in pasts), *others]
        while inputs[-1] is None:
            inputs.pop()
        attributes = {name: given for name, given in self.layer.attributes.items() if name not in ROTATION}
        output, *_ = self.add("GroupQueryAttention", inputs, attributes, outputs=3, domain="com.microsoft")
        stored = zip(self.layer.pasts, pasts, (key_codes, value_codes), strict=True)
        return self.graph([output, *(self.appended(past, codes, new) for past, (_, codes), new in stored)])

    def split_qkv(self) -> list[ir.Value]:
        """Queries, keys and values [batch, new, heads * head_size]."""
        query, key, value = self.layer.node.inputs[:3]
        assert query is not None, "attention has queries"
        if key is not None and value is not None:
            return [query, key, value]
        heads, kv_heads = (count * self.layer.head_size for count in self.layer.heads)
        sizes = self.one("Constant", value_ints=[heads, kv_heads, kv_heads])
        return self.add("Split", [query, sizes], {"axis": -1}, outputs=3)

    def rotated(self, value: ir.Value, heads: int) -> ir.Value:
        """Queries or keys, rotated by their positions."""
        attributes = {"interleaved": self.layer.attributes.get("rotary_interleaved", 0), "num_heads": heads}
        if self.layer.rotary_size < self.layer.head_size:
            attributes["rotary_embedding_dim"] = self.layer.rotary_size
        tables = self.layer.node.inputs[7:9]
        return self.one("RotaryEmbedding", value, self.shared.past, *tables, domain="com.microsoft", **attributes)

    def rounded(self, value: ir.Value, scales: Scales) -> tuple[ir.Value, ir.Value]:
        """New keys or values as the cache will give them back, and their codes [batch, kv_heads, new, head_size]."""
        steps = self.one("Round", self.one("Mul", value, scales.inverse))  # as the operator's kernel does it, to the last bit
        steps = self.one("Clip", steps, self.shared.low, self.shared.high)
        shape = self.one("Constant", value_ints=[0, 0, self.layer.heads[1], self.layer.head_size])
        split = self.one("Reshape", self.one("Cast", steps, to=ir.DataType.INT8), shape)
        return self.one("Mul", steps, scales.new), self.one("Transpose", split, perm=[0, 2, 1, 3])

    def dequantized(self, past: ir.Value, scales: Scales) -> tuple[ir.Value, ir.Value]:
        """Keys or values of the cached tokens, as numbers and as codes."""
        codes = self.one("Slice", past, self.shared.start, self.shared.past, self.shared.axis)
        return self.one("Mul", self.one("Cast", codes, to=ir.DataType.FLOAT), scales.cached), codes

    def appended(self, past: ir.Value, cached: ir.Value, new: ir.Value) -> ir.Value:
        """The whole buffer after the run."""
        rest = self.one("Slice", past, self.shared.total, self.shared.end, self.shared.axis)
        return self.one("Concat", cached, new, rest, axis=2)
