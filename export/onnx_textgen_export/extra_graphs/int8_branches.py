"""The two forms of a layer's attention over a cache of 8 bits, one for a single new token and one for more, and what they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.backends.cache_codes import LARGEST_CODE

from ..passes.graph.linear import add_constant
from .attention_layers import AttentionBranch, Layer
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


class Int8Branch(AttentionBranch):
    """One branch of a layer's attention over a cache of 8 bits."""

    def __init__(self, graph: ir.Graph, layer: Layer, shared: Shared, scales: tuple[Scales, Scales], name: str) -> None:
        """`scales`: of keys, and of values."""
        super().__init__(graph, layer, shared.past, name)
        self.shared, (self.key, self.value) = shared, scales

    def with_codes(self, outputs: Sequence[ir.Value]) -> ir.Graph:
        """The branch that gives the layer's output, keys and values."""
        types = (ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.INT8)
        return self.branch(*zip(outputs, types, strict=True))

    def decode_branch(self) -> ir.Graph:
        """A single token: the operator reads the codes and adds the token's, in place."""
        quantized = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        given = list(self.layer.node.inputs)
        inputs = [*given, *[None] * (12 - len(given)), self.key.cached, self.value.cached]
        attributes = {**self.layer.attributes, **quantized}
        node = self.add("GroupQueryAttention", *inputs, outputs=3, domain="com.microsoft", **attributes)
        return self.with_codes(node.outputs)

    def prefill_branch(self) -> ir.Graph:
        """More tokens: attention in float32 over the cached numbers, with the new tokens rounded as the cache will hold them."""
        node, (heads, kv_heads) = self.layer.node, self.layer.heads
        query, key, value = self.split_qkv()
        query, key = self.rotated(query, heads), self.rotated(key, kv_heads)
        key, key_codes = self.rounded(key, self.key)
        value, value_codes = self.rounded(value, self.value)
        pasts = [self.dequantized(past, scales) for past, scales in zip(self.layer.pasts, (self.key, self.value), strict=True)]
        others = [None if index in (7, 8) else given for index, given in enumerate(node.inputs)][5:]
        inputs = [query, key, value, *(numbers for numbers, _ in pasts), *others]
        while inputs[-1] is None:
            inputs.pop()
        attributes = {name: given for name, given in self.layer.attributes.items() if name not in ROTATION}
        output = self.add("GroupQueryAttention", *inputs, outputs=3, domain="com.microsoft", **attributes).outputs[0]
        stored = zip(self.layer.pasts, pasts, (key_codes, value_codes), strict=True)
        return self.with_codes([output, *(self.appended(past, codes, new) for past, (_, codes), new in stored)])

    def rounded(self, value: ir.Value, scales: Scales) -> tuple[ir.Value, ir.Value]:
        """New keys or values as the cache will give them back, and their codes [batch, kv_heads, new, head_size]."""
        steps = self.one("Round", self.one("Mul", value, scales.inverse))  # as the operator's kernel does it, to the last bit
        steps = self.one("Clip", steps, self.shared.low, self.shared.high)
        split = self.one(
            "Reshape", self.one("Cast", steps, to=ir.DataType.INT8), self.whole(0, 0, self.layer.heads[1], self.layer.head_size)
        )
        return self.one("Mul", steps, scales.new), self.one("Transpose", split, perm=[0, 2, 1, 3])

    def dequantized(self, past: ir.Value, scales: Scales) -> tuple[ir.Value, ir.Value]:
        """Keys or values of the cached tokens, as numbers and as codes."""
        codes = self.one("Slice", past, self.shared.start, self.shared.past, self.shared.axis)
        return self.one("Mul", self.one("Cast", codes, to=ir.DataType.FLOAT), scales.cached), codes

    def appended(self, past: ir.Value, cached: ir.Value, new: ir.Value) -> ir.Value:
        """The whole buffer after the run."""
        rest = self.one("Slice", past, self.shared.total, self.shared.end, self.shared.axis)
        return self.one("Concat", cached, new, rest, axis=2)
