"""Quantised weights as tensors of a graph: their layouts, and tensors that are computed when they are written.

ONNX Runtime's MatMulNBits and GatherBlockQuantized read `Packed`, the ONNX standard's DequantizeLinear reads `Plain`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graph.linear import add_constant
from .quantizers import Codes

Arrays = dict[str, npt.NDArray[Any]]
"""By kind: `codes`, `zeros` if there are any, and `scales`, or `scale_codes` and `row_scales`."""
Zeros = Literal["none", "whole", "fractional", "offsets"]
"""What kind of zero points codes have; offsets replace them (see `Codes.offsets`)."""
Scales = Literal["rows", "half", "full"]
"""How `Packed` stores scales."""
Shapes = dict[str, tuple[ir.DataType, tuple[int, ...]]]
"""Type and shape of each tensor, by kind."""


def pack_codes(codes: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Codes along the first axis as bytes, the first in the lowest bits."""
    if bits == 8:
        return codes.astype(np.uint8)
    pairs = pack_pairs(codes, 0)
    return pairs if bits == 4 else pack_pairs(pairs & 3 | pairs >> 2 & 12, 0)


def pack_pairs(values: npt.NDArray[Any], axis: int) -> npt.NDArray[np.uint8]:
    """Two 4-bit values to a byte along an axis, the first in the lower half; an odd count is padded with a zero."""
    whole = np.moveaxis(values.astype(np.uint8), axis, 0)
    low, high = whole[0::2], whole[1::2]
    packed = low.copy()
    packed[: len(high)] |= high << np.uint8(4)
    return np.moveaxis(packed, 0, axis)


class Layout(Protocol):
    """How the codes of a matrix are stored in tensors."""

    def shapes(self) -> Shapes:
        """Type and shape of each tensor, by kind."""
        ...

    def arrays(self) -> Arrays:
        """Empty arrays for the tensors."""
        ...

    def put(self, arrays: Arrays, chosen: slice, found: Codes) -> None:
        """Write the codes [block size, outputs, blocks] of some outputs."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """ONNX Runtime's layout: codes [out, blocks, bytes], scales [out, blocks], zeros [out, bytes] or fractional [out, blocks].

    Scales are 8 bits times a scale [out, 1] of their row (`quantizers.with_row_scales`), float16, or float32.
    """

    outputs: int
    inputs: int
    bits: int
    block_size: int
    zeros: Zeros
    flat: bool = False
    """Codes as [out, bytes]: a table that no product reads."""
    scales: Scales = "rows"
    shift: int = 0
    """Added to codes of fewer bits (see `lossless.Form.middle`)."""

    @property
    def blocks(self) -> int:
        """Number of blocks of one output."""
        return -(-self.inputs // self.block_size)

    def shapes(self) -> Shapes:
        """See `Layout.shapes`."""
        block_bytes = self.block_size * self.bits // 8
        codes = (self.outputs, self.blocks * block_bytes) if self.flat else (self.outputs, self.blocks, block_bytes)
        found: Shapes = {"codes": (ir.DataType.UINT8, codes)}
        if self.scales == "rows":
            signed = ir.DataType.INT8 if self.zeros == "none" else ir.DataType.UINT8
            found |= {"scale_codes": (signed, (self.outputs, self.blocks)), "row_scales": (ir.DataType.FLOAT, (self.outputs, 1))}
        else:
            kind, dtype = ("half_scales", ir.DataType.FLOAT16) if self.scales == "half" else ("scales", ir.DataType.FLOAT)
            found[kind] = (dtype, (self.outputs, self.blocks))
        if self.zeros == "whole":
            found["zeros"] = (ir.DataType.UINT8, (self.outputs, -(-self.blocks * self.bits // 8)))
        elif self.zeros == "fractional":
            found["zeros"] = (ir.DataType.FLOAT, (self.outputs, self.blocks))
        elif self.zeros == "offsets":
            kind, dtype = ("half_offsets", ir.DataType.FLOAT16) if self.scales == "half" else ("offsets", ir.DataType.FLOAT)
            found[kind] = (dtype, (self.outputs, self.blocks))
        return found

    def arrays(self) -> Arrays:
        """See `Layout.arrays`."""
        return {kind: np.empty(shape, dtype.numpy()) for kind, (dtype, shape) in self.shapes().items()}

    def put(self, arrays: Arrays, chosen: slice, found: Codes) -> None:
        """See `Layout.put`."""
        packed = pack_codes(found.codes + np.float32(self.shift) if self.shift else found.codes, self.bits)
        arrays["codes"][chosen] = packed.transpose(1, 2, 0).reshape(arrays["codes"][chosen].shape)
        for kind, value in scales_of(found).items():
            arrays["half_scales" if self.scales == "half" else kind][chosen] = value
        if found.offsets is not None:
            arrays["half_offsets" if self.scales == "half" else "offsets"][chosen] = found.offsets
        elif found.zeros is not None:
            whole = self.zeros == "whole"
            arrays["zeros"][chosen] = pack_pairs(found.zeros, 1) if whole and self.bits == 4 else found.zeros

    def put_stored(self, arrays: Arrays, chosen: slice, found: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write `codes`, `scales` and perhaps `offsets` of some outputs, in which only codes of several bits share a byte."""
        for kind, values in found.items():
            array = arrays[f"half_{kind}" if self.scales == "half" and kind != "codes" else kind]
            array[chosen] = values.reshape(array[chosen].shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """The standard's layout: codes [in, out], scales and zeros [blocks, out]; all transposed for a table (`rows`)."""

    outputs: int
    inputs: int
    bits: int
    block_size: int
    symmetric: bool
    rows: bool = False
    """[out, in] and [out, blocks]."""

    @property
    def dtype(self) -> ir.DataType:
        """Of the codes: signed around zero where there are no zero points."""
        if self.bits == 4:
            return ir.DataType.INT4 if self.symmetric else ir.DataType.UINT4
        return ir.DataType.INT8 if self.symmetric else ir.DataType.UINT8

    def shapes(self) -> Shapes:
        """See `Layout.shapes`."""
        blocks = -(-self.inputs // self.block_size)
        few = (self.outputs, blocks) if self.rows else (blocks, self.outputs)
        many = (self.outputs, self.inputs) if self.rows else (self.inputs, self.outputs)
        each = (self.outputs, 1) if self.rows else (1, self.outputs)
        found: Shapes = {"codes": (self.dtype, many)}
        found["scale_codes"] = (ir.DataType.INT8 if self.symmetric else ir.DataType.UINT8, few)
        found["row_scales"] = (ir.DataType.FLOAT, each)
        return found if self.symmetric else found | {"zeros": (self.dtype, few)}

    def arrays(self) -> Arrays:
        """See `Layout.arrays`; a byte per code, even if two share one in the file."""
        wide = {ir.DataType.FLOAT: np.float32, ir.DataType.INT8: np.int8}
        return {kind: np.empty(shape, wide.get(dtype, np.uint8)) for kind, (dtype, shape) in self.shapes().items()}

    def put(self, arrays: Arrays, chosen: slice, found: Codes) -> None:
        """See `Layout.put`."""
        centre = (1 << (self.bits - 1)) if self.symmetric else 0
        codes = (found.codes - np.float32(centre)).astype(np.int8 if self.symmetric else np.uint8)
        values = {"codes": codes.astype(arrays["codes"].dtype), "zeros": found.zeros} | scales_of(found)
        for kind, array in arrays.items():
            value = values[kind]
            assert value is not None, "asymmetric codes have zeros"
            ordered = value.transpose(2, 0, 1).reshape(-1, value.shape[1])[: self.inputs] if kind == "codes" else value.T
            if self.rows:
                array[chosen] = ordered.T
            else:
                array[:, chosen] = ordered


def scales_of(found: Codes) -> dict[str, npt.NDArray[Any] | None]:
    """The stored form of scales, by kind: [outputs, blocks], and [outputs, 1] for rows."""
    if found.scale_codes is None:
        return {"scales": found.scales}
    return {"scale_codes": found.scale_codes, "row_scales": found.row_scales}


def as_tensor(array: npt.NDArray[Any], dtype: ir.DataType) -> ir.TensorProtocol:
    """An array as a tensor; 4-bit codes, one per byte, are packed."""
    if dtype.bitwidth == 4:
        return ir.PackedTensor(pack_pairs(array.reshape(-1) & 15, 0), dtype, shape=array.shape)
    return ir.Tensor(array, dtype=dtype)


class LastResult:
    """The tensors of the weight that was quantised last, until each has been read.

    The writer reads the tensors of one weight one after another, so one computation serves them all, and memory is then freed.
    """

    def __init__(self) -> None:
        self.owner: object = None
        self.arrays: Arrays = {}

    def take(self, owner: object, kind: str, compute: Callable[[], Arrays]) -> npt.NDArray[Any]:
        """One of the arrays that `compute` makes; it is removed here, so the caller has the last reference."""
        if self.owner is not owner or kind not in self.arrays:
            self.arrays = {}  # freed before the next is made
            self.owner, self.arrays = owner, compute()
        return self.arrays.pop(kind)


class SameBytes(ir.LazyTensor):
    """A stored tensor in another shape, over the same bytes of the file.

    ONNX Runtime would fold a Reshape node into a copy in memory when it opens the graph.
    """

    def __init__(self, source: ir.Value, shape: tuple[int, ...]) -> None:
        assert source.dtype is not None, "constants have a type"
        super().__init__(self.reshaped, dtype=source.dtype, shape=ir.Shape(shape))
        self.source = source

    def reshaped(self) -> ir.TensorProtocol:
        """The data, if it is read before it is written."""
        assert self.source.const_value is not None, "constants have data"
        return ir.tensor(self.source.const_value.numpy().reshape(self.shape.numpy()), dtype=self.dtype)


def store_lazily(
    graph: ir.Graph, weight: ir.Value, layout: Layout, fill: Callable[[Arrays], None], last: LastResult
) -> dict[str, ir.Value]:
    """A quantised weight, computed when it is written: `codes`, `scales` and, if there are any, `zeros` or `offsets`.

    fill: fills the empty arrays of the layout.
    """
    owner = object()

    def compute() -> Arrays:
        arrays = layout.arrays()
        fill(arrays)
        return arrays

    def lazy(kind: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.LazyTensor:
        return ir.LazyTensor(lambda: as_tensor(last.take(owner, kind, compute), dtype), dtype=dtype, shape=ir.Shape(shape))

    made = {
        kind: add_constant(graph, f"{weight.name}.{kind}", lazy(kind, dtype, shape))
        for kind, (dtype, shape) in layout.shapes().items()
    }
    if "scale_codes" in made:
        made["scales"] = multiplied(graph, made.pop("scale_codes"), made.pop("row_scales"))
    elif "half_scales" in made:
        made["scales"] = widened(graph, made.pop("half_scales"))
    if "half_offsets" in made:
        made["offsets"] = widened(graph, made.pop("half_offsets"))
    return {kind: made[kind] for kind in ("codes", "scales", "zeros", "offsets") if kind in made}


def multiplied(graph: ir.Graph, scale_codes: ir.Value, row_scales: ir.Value) -> ir.Value:
    """Scales in float32; a runtime computes them once, when it opens the graph (constant folding)."""
    scales = ir.node("Mul", [widened(graph, scale_codes), row_scales])
    graph.insert_after(graph[0], scales)
    scales.outputs[0].shape, scales.outputs[0].type = scale_codes.shape, ir.TensorType(ir.DataType.FLOAT)
    return scales.outputs[0]


def widened(graph: ir.Graph, values: ir.Value) -> ir.Value:
    """Constant values in float32."""
    wide = ir.node("Cast", [values], {"to": ir.DataType.FLOAT.value})
    graph.insert_before(graph[0], wide)
    wide.outputs[0].shape, wide.outputs[0].type = values.shape, ir.TensorType(ir.DataType.FLOAT)
    return wide.outputs[0]
