"""What OpenVINO's reader of ONNX lacks for our graphs: attention whose cache lies in blocks, and embeddings in 4 or 8 bits.

`GroupQueryAttention` becomes OpenVINO's PagedAttention, the operator that its own pipelines and servers run. It updates the cache
in place, and takes rows of unequal length in one run. The frontend's own translation of GroupQueryAttention copies the whole cache
at every token. Everything here is given to OpenVINO as conversion extensions; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

DOMAIN = "com.microsoft"
BLOCK_INDICES, BLOCK_BEGINS = "block_indices", "block_indices_begins"
"""Inputs that the attention needs beside the graph's: the numbers of all rows' blocks, and where each row's begin."""
UNKNOWN_ATTRIBUTES = ("softcap", "rotary_interleaved", "smooth_softmax", "k_quant_type", "v_quant_type")
"""Of GroupQueryAttention, what PagedAttention has nothing for."""


class Operators:
    """Conversions for one graph; a value that all layers need is made once."""

    def __init__(self, ops: Any, paged_attention: Any) -> None:  # noqa: ANN401 - OpenVINO's opset and operator
        self.ops, self.paged_attention = ops, paged_attention
        self.made: dict[str, tuple[Any, ...]] = {}
        self.refused: list[str] = []
        """Why a graph cannot be converted."""

    def ints(self, *values: int) -> Any:  # noqa: ANN401 - a node
        """A constant list of numbers."""
        return self.ops.constant(np.array(values, dtype=np.int64))

    def number(self, value: int) -> Any:  # noqa: ANN401 - a node
        """A constant number."""
        return self.ops.constant(np.int64(value))

    def refuse(self, why: str) -> None:
        """Give up on the graph."""
        self.refused.append(why)
        raise ValueError(why)

    def attention(self, node: Any) -> list[Any]:  # noqa: ANN401 - what OpenVINO calls it with
        """`GroupQueryAttention` as PagedAttention; the presents are stubs, as the cache is updated in place."""
        ops, given = self.ops, self.inputs_of(node)
        query, key, value, key_cache, value_cache, last, total, cos, sin, *_, sinks = given
        heads, kv_heads = node.get_attribute("num_heads"), node.get_attribute("kv_num_heads")
        size, value_size = (cache.get_partial_shape()[3].get_length() for cache in (key_cache, value_cache))
        widths = heads * size, kv_heads * size, kv_heads * value_size
        shape = ops.shape_of(query)
        past, begins, positions, longest = self.made_once("tokens", last, lambda: self.tokens(shape, last, total))
        if key is None:
            query, key, value = ops.variadic_split(query, self.number(-1), self.ints(*widths)).outputs()
        if node.get_attribute("do_rotary", 0):
            tables = self.made_once("angles", cos, lambda: tuple(self.angles(table, positions) for table in (cos, sin)))
            query, key = self.turned(query, heads, size, *tables), self.turned(key, kv_heads, size, *tables)
        scale = node.get_attribute("scale", 0.0) or size**-0.5
        inputs = (
            *(ops.reshape(one, self.ints(-1, width), False) for one, width in zip((query, key, value), widths, strict=True)),
            *(key_cache, value_cache, past, begins),
            *self.made_once("blocks", None, self.blocks),
            ops.constant(np.float32(scale)),
            ops.constant(np.int32(max(node.get_attribute("local_window_size", -1), 0))),
            *self.unused("f1"),  # ALiBi
            longest,
            *self.unused("i1 i1 i1 f1 f1 i0 i0"),  # scores, turned blocks, sparse attention
            *(self.unused("f4") if sinks is None else [ops.reshape(sinks, self.ints(1, heads, 1, 1), False)]),
            *self.unused("i0 i1 i1 i1 i1 u1 i1"),  # eviction, kinds of tokens, bias
        )
        paged = self.paged_attention([one.output(0) if hasattr(one, "output") else one for one in inputs])
        sizes = {"num_k_heads": kv_heads, "k_head_size": size, "num_v_heads": kv_heads, "v_head_size": value_size}
        for name, number in sizes.items():
            paged.get_rt_info()[name] = number  # the shape of the cache's blocks follows from them
        batch_and_new = ops.gather(shape, self.ints(0, 1), self.number(0))
        output = ops.reshape(paged.output(0), ops.concat([batch_and_new, self.ints(heads * value_size)], 0), False)
        return [output.output(0), *(stub.output(0) for stub in self.unused("f0 f0"))]

    def inputs_of(self, node: Any) -> list[Any]:  # noqa: ANN401 - a node
        """The twelve inputs of a `GroupQueryAttention`, None for those left out; refuses what PagedAttention cannot do."""
        inputs = [node.get_input(index) for index in range(node.get_input_size())]
        given = [one if one.get_node().get_type_name() != "NullNode" else None for one in inputs]
        given += [None] * (12 - len(given))
        for attribute in UNKNOWN_ATTRIBUTES:
            if node.get_attribute(attribute, 0) not in (0, "NONE"):
                self.refuse(f"OpenVINO's attention has no {attribute}")
        if given[9] is not None or given[10] is not None or len(given) > 12:
            self.refuse("OpenVINO's attention takes no positions, bias or norms of its own")
        return given

    def made_once(self, what: str, source: Any, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:  # noqa: ANN401 - an output
        """What `make` gives, the same for every layer that has the same source."""
        name = what if source is None else f"{what} of {source.get_node().get_friendly_name()}"
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def unused(self, kinds: str) -> list[Any]:
        """Constants for inputs that switch something off, each by its type and rank: empty lists, and zeros."""
        types = {"i": np.int32, "f": np.float32, "u": np.uint8}
        return [self.ops.constant(np.zeros((0,) * int(kind[1]), dtype=types[kind[0]])) for kind in kinds.split()]

    def blocks(self) -> tuple[Any, ...]:
        """Stand-ins for the inputs of the blocks; an extension may not add inputs, so they are put in their place afterwards."""
        stand_ins = tuple(self.ops.constant(np.zeros(1, dtype=np.int32)) for _ in range(2))
        for stand_in, name in zip(stand_ins, (BLOCK_INDICES, BLOCK_BEGINS), strict=True):
            stand_in.set_friendly_name(name)
        return stand_ins

    def tokens(self, shape: Any, last: Any, total: Any) -> tuple[Any, ...]:  # noqa: ANN401 - nodes
        """Tokens of the past per row, where each row's new tokens begin, the position of every token, the longest row's length."""
        ops = self.ops
        batch, new = (ops.gather(shape, self.number(axis), self.number(0)) for axis in (0, 1))
        past = ops.subtract(ops.add(ops.reshape(ops.convert(last, "i64"), self.ints(-1), False), self.number(1)), new)
        rows = ops.range(self.number(0), ops.add(batch, self.number(1)), self.number(1), "i64")
        columns = ops.range(self.number(0), new, self.number(1), "i64")
        positions = ops.add(ops.unsqueeze(past, self.number(1)), columns)
        longest = ops.reshape(ops.convert(total, "i32"), self.ints(), False)
        begins = ops.convert(ops.multiply(rows, new), "i32")
        return ops.convert(past, "i32"), begins, ops.reshape(positions, self.ints(-1), False), longest

    def angles(self, table: Any, positions: Any) -> Any:  # noqa: ANN401 - nodes
        """The rows of a table of cosines or sines, twice side by side: [tokens, 1, 1, rotated]."""
        rows = self.ops.gather(table, positions, self.number(0))
        return self.ops.unsqueeze(self.ops.concat([rows, rows], -1), self.ints(1, 2))

    def turned(self, x: Any, heads: int, size: int, cos: Any, sin: Any) -> Any:  # noqa: ANN401 - nodes
        """Queries or keys with rotary positions, in the form that OpenVINO makes one operator of."""
        ops, rotated = self.ops, cos.get_output_partial_shape(0)[3].get_length()
        x = ops.reshape(x, self.ints(-1, heads, 1, size), False)
        rest = []
        if rotated < size:
            x, *rest = ops.variadic_split(x, self.number(3), self.ints(rotated, size - rotated)).outputs()
        first, second = ops.variadic_split(x, self.number(3), self.ints(rotated // 2, rotated // 2)).outputs()
        half_turned = ops.concat([ops.multiply(second, ops.constant(np.float32(-1))), first], -1)
        x = ops.add(ops.multiply(x, cos), ops.multiply(half_turned, sin))
        return ops.concat([x, *rest], -1) if rest else x

    def embedding(self, node: Any) -> list[Any]:  # noqa: ANN401 - what OpenVINO calls it with
        """`GatherBlockQuantized`: rows of a table in 4 or 8 bits, unpacked after they were taken; the table stays as it is."""
        ops, bits, block = self.ops, node.get_attribute("bits", 4), node.get_attribute("block_size", 128)
        table, ids, scales = (node.get_input(index) for index in range(3))
        if bits not in (4, 8) or node.get_attribute("gather_axis", 0) != 0 or len(table.get_partial_shape()) != 2:
            self.refuse(f"OpenVINO gets no embeddings of {bits} bits in this layout")
        count = scales.get_partial_shape()[1].get_length()
        codes = ops.reshape(self.unpacked(ops.gather(table, ids, self.number(0)), bits), self.ints(0, 0, count, block), True)
        zeros = ops.constant(np.float32(1 << (bits - 1)))
        if node.get_input_size() > 3:
            packed = self.unpacked(ops.gather(node.get_input(3), ids, self.number(0)), bits)
            zeros = ops.reshape(packed, self.ints(0, 0, -1, 1), True)
            zeros = ops.slice(zeros, self.ints(0), self.ints(count), self.ints(1), self.ints(2))  # an odd number is padded
        scale = ops.unsqueeze(ops.gather(scales, ids, self.number(0)), self.number(-1))
        rows = ops.multiply(ops.subtract(codes, zeros), scale)
        return [ops.reshape(rows, self.ints(0, 0, count * block), True).output(0)]

    def unpacked(self, packed: Any, bits: int) -> Any:  # noqa: ANN401 - nodes
        """Bytes as numbers, or the two halves of each, the lower one first; in floats, for which OpenVINO has fast kernels."""
        ops, whole = self.ops, self.ops.convert(packed, "f32")
        if bits == 8:
            return whole
        high = ops.floor(ops.multiply(whole, ops.constant(np.float32(1 / 16))))
        low = ops.subtract(whole, ops.multiply(high, ops.constant(np.float32(16))))
        return ops.concat([ops.unsqueeze(half, self.number(-1)) for half in (low, high)], -1)
