"""Conversions that OpenVINO's ONNX frontend lacks for this project's graphs: paged attention, and embeddings in 4 or 8 bits.

`GroupQueryAttention` becomes OpenVINO's PagedAttention, the operator of its GenAI pipelines and servers. It updates the cache in
place, and takes rows of different lengths in one run. The frontend's own conversion of GroupQueryAttention copies the whole cache
for every token. `session` registers these methods as conversion extensions; this module does not import OpenVINO.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cache_codes import LARGEST_CODE, CacheScales

DOMAIN = "com.microsoft"
BLOCK_INDICES, BLOCK_BEGINS = "block_indices", "block_indices_begins"
"""Additional inputs of PagedAttention: the concatenated block numbers of all rows, and the start of each row in that list."""
UNSUPPORTED_ATTRIBUTES = ("softcap", "rotary_interleaved", "smooth_softmax", "k_quant_type", "v_quant_type")
"""Attributes of GroupQueryAttention that PagedAttention does not have."""


class Operators:
    """Conversions for one graph; nodes that all layers share are made once."""

    def __init__(self, ops: Any, paged_attention: Any, scales: CacheScales) -> None:  # noqa: ANN401 - OpenVINO's opset, operator
        """`scales`: new keys and values are rounded to what a cache of 8 bits with these scales will hold; empty: not rounded."""
        self.ops, self.paged_attention, self.scales = ops, paged_attention, scales
        self.shared: dict[str, tuple[Any, ...]] = {}
        """Nodes that all layers share, by name."""
        self.refused: list[str] = []
        """Why the graph cannot be converted."""

    def ints(self, *values: int) -> Any:  # noqa: ANN401 - a node
        """Make a constant vector of integers."""
        return self.ops.constant(np.array(values, dtype=np.int64))

    def number(self, value: int) -> Any:  # noqa: ANN401 - a node
        """Make a constant integer."""
        return self.ops.constant(np.int64(value))

    def refuse(self, why: str) -> None:
        """Record why the graph cannot be converted and raise, since OpenVINO's own error hides the reason."""
        self.refused.append(why)
        raise ValueError(why)

    def attention(self, node: Any) -> list[Any]:  # noqa: ANN401 - a node of OpenVINO's frontend
        """Convert `GroupQueryAttention` to PagedAttention; the presents are placeholders, as the cache is updated in place."""
        ops, inputs = self.ops, self.inputs_of(node)
        query, key, value, key_cache, value_cache, last, total, cos, sin, *_, sinks = inputs
        heads, kv_heads = node.get_attribute("num_heads"), node.get_attribute("kv_num_heads")
        size, value_size = (cache.get_partial_shape()[3].get_length() for cache in (key_cache, value_cache))
        widths = heads * size, kv_heads * size, kv_heads * value_size
        shape = ops.shape_of(query)
        past, begins, positions, longest = self.make_once("tokens", last, lambda: self.tokens(shape, last, total))
        if key is None:
            query, key, value = ops.variadic_split(query, self.number(-1), self.ints(*widths)).outputs()
        if node.get_attribute("do_rotary", 0):
            tables = self.make_once("angles", cos, lambda: tuple(self.angles(table, positions) for table in (cos, sin)))
            query, key = self.rotate(query, heads, size, *tables), self.rotate(key, kv_heads, size, *tables)
        scale = node.get_attribute("scale", 0.0) or size**-0.5
        query, key, value = (
            ops.reshape(one, self.ints(-1, width), False) for one, width in zip((query, key, value), widths, strict=True)
        )
        arguments = (
            *(query, self.rounded(key, key_cache), self.rounded(value, value_cache)),
            *(key_cache, value_cache, past, begins),
            *self.make_once("blocks", None, self.block_placeholders),
            ops.constant(np.float32(scale)),
            ops.constant(np.int32(max(node.get_attribute("local_window_size", -1), 0))),
            *self.empty_inputs("f1"),  # ALiBi
            longest,
            *self.empty_inputs("i1 i1 i1 f1 f1 i0 i0"),  # scores, rotated blocks, sparse attention
            *(self.empty_inputs("f4") if sinks is None else [ops.reshape(sinks, self.ints(1, heads, 1, 1), False)]),
            *self.empty_inputs("i0 i1 i1 i1 i1 u1 i1"),  # eviction, token types, bias
        )
        paged = self.paged_attention([one.output(0) if hasattr(one, "output") else one for one in arguments])
        sizes = {"num_k_heads": kv_heads, "k_head_size": size, "num_v_heads": kv_heads, "v_head_size": value_size}
        for name, number in sizes.items():
            paged.get_rt_info()[name] = number  # OpenVINO derives the shape of the cache's blocks from them
        batch_and_new = ops.gather(shape, self.ints(0, 1), self.number(0))
        output = ops.reshape(paged.output(0), ops.concat([batch_and_new, self.ints(heads * value_size)], 0), False)
        return [output.output(0), *(present.output(0) for present in self.empty_inputs("f0 f0"))]

    def rounded(self, numbers: Any, cache: Any) -> Any:  # noqa: ANN401 - nodes
        """New keys or values [tokens, kv_heads * size] as a cache of 8 bits will give them back, if it is one.

        The graph with such a cache rounds in the same way, so that a prompt attends to the same numbers however it is split.
        """
        if not self.scales:
            return numbers
        ops, scales = self.ops, self.scales[cache.get_any_name()].reshape(1, -1)
        steps = ops.round(ops.multiply(numbers, ops.constant(1 / scales)), "half_to_even")
        return ops.multiply(ops.clamp(steps, -LARGEST_CODE - 1.0, float(LARGEST_CODE)), ops.constant(scales))

    def inputs_of(self, node: Any) -> list[Any]:  # noqa: ANN401 - a node
        """The twelve inputs of a `GroupQueryAttention`, None for omitted ones; refuses what PagedAttention does not support."""
        inputs = [node.get_input(index) for index in range(node.get_input_size())]
        inputs = [one if one.get_node().get_type_name() != "NullNode" else None for one in inputs]
        inputs += [None] * (12 - len(inputs))
        for attribute in UNSUPPORTED_ATTRIBUTES:
            if node.get_attribute(attribute, 0) not in (0, "NONE"):
                self.refuse(f"OpenVINO's attention has no {attribute}")
        if inputs[9] is not None or inputs[10] is not None or len(inputs) > 12:
            self.refuse("OpenVINO's attention has no inputs for positions, bias or norms")
        return inputs

    def make_once(self, what: str, source: Any, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:  # noqa: ANN401 - an output
        """Call `make` for the first layer, and return the same nodes for every other layer with the same source."""
        name = what if source is None else f"{what} of {source.get_node().get_friendly_name()}"
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]

    def empty_inputs(self, kinds: str) -> list[Any]:
        """Make constants that switch optional inputs off, each given by type and rank: 0 for a scalar, else an empty array."""
        types = {"i": np.int32, "f": np.float32, "u": np.uint8}
        return [self.ops.constant(np.zeros((0,) * int(kind[1]), dtype=types[kind[0]])) for kind in kinds.split()]

    def block_placeholders(self) -> tuple[Any, ...]:
        """Make placeholders for the inputs of the blocks: an extension cannot add inputs, so `prepare` replaces these later."""
        placeholders = tuple(self.ops.constant(np.zeros(1, dtype=np.int32)) for _ in range(2))
        for placeholder, name in zip(placeholders, (BLOCK_INDICES, BLOCK_BEGINS), strict=True):
            placeholder.set_friendly_name(name)
        return placeholders

    def tokens(self, shape: Any, last: Any, total: Any) -> tuple[Any, ...]:  # noqa: ANN401 - nodes
        """Past tokens of each row, start of each row's new tokens, position of every new token, length of the longest row.

        A row whose mask is shorter than the new tokens is empty, and padded at its end: no earlier token attends to the padding.
        """
        ops = self.ops
        batch, new = (ops.gather(shape, self.number(axis), self.number(0)) for axis in (0, 1))
        length = ops.add(ops.reshape(ops.convert(last, "i64"), self.ints(-1), False), self.number(1))
        past = ops.maximum(ops.subtract(length, new), self.number(0))
        rows = ops.range(self.number(0), ops.add(batch, self.number(1)), self.number(1), "i64")
        columns = ops.range(self.number(0), new, self.number(1), "i64")
        positions = ops.add(ops.unsqueeze(past, self.number(1)), columns)
        longest = ops.reshape(ops.convert(total, "i32"), self.ints(), False)
        begins = ops.convert(ops.multiply(rows, new), "i32")
        return ops.convert(past, "i32"), begins, ops.reshape(positions, self.ints(-1), False), longest

    def angles(self, table: Any, positions: Any) -> Any:  # noqa: ANN401 - nodes
        """Look up the tokens' cosines or sines, and concatenate them with themselves: [tokens, 1, 1, rotated]."""
        rows = self.ops.gather(table, positions, self.number(0))
        return self.ops.unsqueeze(self.ops.concat([rows, rows], -1), self.ints(1, 2))

    def rotate(self, x: Any, heads: int, size: int, cos: Any, sin: Any) -> Any:  # noqa: ANN401 - nodes
        """Apply rotary positions to queries or keys, in the form that OpenVINO fuses to one operator."""
        ops, rotated = self.ops, cos.get_output_partial_shape(0)[3].get_length()
        x = ops.reshape(x, self.ints(-1, heads, 1, size), False)
        rest = []
        if rotated < size:
            x, *rest = ops.variadic_split(x, self.number(3), self.ints(rotated, size - rotated)).outputs()
        first, second = ops.variadic_split(x, self.number(3), self.ints(rotated // 2, rotated // 2)).outputs()
        rotated_half = ops.concat([ops.multiply(second, ops.constant(np.float32(-1))), first], -1)
        x = ops.add(ops.multiply(x, cos), ops.multiply(rotated_half, sin))
        return ops.concat([x, *rest], -1) if rest else x

    def embedding(self, node: Any) -> list[Any]:  # noqa: ANN401 - a node of OpenVINO's frontend
        """Convert `GatherBlockQuantized`: gathers rows of a table in 4 or 8 bits, then unpacks them; the table stays packed."""
        ops, bits, block = self.ops, node.get_attribute("bits", 4), node.get_attribute("block_size", 128)
        table, ids, scales = (node.get_input(index) for index in range(3))
        if bits not in (4, 8) or node.get_attribute("gather_axis", 0) != 0 or len(table.get_partial_shape()) != 2:
            self.refuse(f"embeddings of {bits} bits in this layout cannot be converted")
        count = scales.get_partial_shape()[1].get_length()
        codes = ops.reshape(self.unpack(ops.gather(table, ids, self.number(0)), bits), self.ints(0, 0, count, block), True)
        zeros = ops.constant(np.float32(1 << (bits - 1)))
        if node.get_input_size() > 3:
            unpacked = self.unpack(ops.gather(node.get_input(3), ids, self.number(0)), bits)
            zeros = ops.reshape(unpacked, self.ints(0, 0, -1, 1), True)
            zeros = ops.slice(zeros, self.ints(0), self.ints(count), self.ints(1), self.ints(2))  # without the padding
        scale = ops.unsqueeze(ops.gather(scales, ids, self.number(0)), self.number(-1))
        rows = ops.multiply(ops.subtract(codes, zeros), scale)
        return [ops.reshape(rows, self.ints(0, 0, count * block), True).output(0)]

    def unpack(self, packed: Any, bits: int) -> Any:  # noqa: ANN401 - nodes
        """Convert bytes to numbers, at 4 bits two for each byte, low half first; to floats, for which OpenVINO has fast kernels."""
        ops, whole = self.ops, self.ops.convert(packed, "f32")
        if bits == 8:
            return whole
        high = ops.floor(ops.multiply(whole, ops.constant(np.float32(1 / 16))))
        low = ops.subtract(whole, ops.multiply(high, ops.constant(np.float32(16))))
        return ops.concat([ops.unsqueeze(half, self.number(-1)) for half in (low, high)], -1)
