"""Matrices that few bits store without loss, because their numbers are already multiples of one scale per block.

Weights from a quantised file are such matrices, and those of BitNet (see `ternary`). They keep their numbers wherever they take no
more bits than were asked for, because a second rounding would lose what the first one kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.package.manifest import Target

from ..graph.products import find_products, find_tables
from .options import SMALLEST_TABLE, Bits, Quantization
from .quantizers import Codes, Floats, inverses, nearest, quantize_matrix, round_symmetric, round_ternary
from .ternary import BLOCK_SIZE, is_ternary

KEY = "onnx_textgen.lossless"
Array = npt.NDArray[Any]
GGUF_BLOCK_SIZE = 32
FIRST = 8
"""Outputs that are checked first, before all are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A way to store a matrix, without loss for some."""

    name: str
    bits: Bits
    block_size: int
    find: Callable[[Floats], Codes]
    """The codes of blocks [block size, blocks]."""

    @property
    def has_half_scales(self) -> bool:
        """Whether the scales of blocks are float16 numbers; ternary matrices have one scale per row."""
        return self.bits != 2

    def bytes_of(self, count: int) -> int:
        """Bytes of `count` weights with their float16 scales."""
        return count * self.bits // 8 + 2 * count // self.block_size

    def fits(self, matrix: Array, *, inputs_first: bool) -> bool:
        """Whether this form gives back every number of a matrix [out, in], or [in, out] if `inputs_first`."""
        if not self.has_half_scales:
            return is_ternary(matrix, inputs_first=inputs_first)
        outputs = matrix.T if inputs_first else matrix
        if outputs.shape[1] % self.block_size:
            return False
        return self.gives_back(outputs[:FIRST]) and self.gives_back(outputs)

    def gives_back(self, outputs: Array) -> bool:
        """Whether blocks along the second axis, with float16 scales, represent `outputs` [out, in] exactly."""
        same = list[bool]()

        def compare(chosen: slice, found: Codes) -> None:
            is_same = bool(np.array_equal(found.values(self.bits, outputs.shape[1]), outputs[chosen]))
            with np.errstate(over="ignore"):
                same.append(is_same and bool(np.array_equal(found.scales.astype(np.float16), found.scales)))

        quantize_matrix(outputs, self.find, self.block_size, compare, inputs_first=False)
        return all(same)


def round_to_127(blocks: Floats) -> Codes:
    """Symmetric 8-bit codes around 128 whose extreme is 127 steps from zero, as llama.cpp's Q8_0 has it."""
    scales = np.abs(blocks).max(axis=0) / np.float32(127)
    return Codes(nearest(blocks, inverses(scales), 128, 8), scales, None)


TERNARY = Form("ternary", 2, BLOCK_SIZE, round_ternary)
FORMS = (
    TERNARY,
    Form("Q4_0", 4, GGUF_BLOCK_SIZE, functools.partial(round_symmetric, bits=4)),
    Form("Q8_0", 8, GGUF_BLOCK_SIZE, round_to_127),
)
"""Those with the fewest bits first; the last two by their names in llama.cpp, whose blocks they are."""


def mark_lossless(graph: ir.Graph) -> None:
    """Mark which matrices of products and tables a form stores without loss; reads each of them at least once."""
    weights = [(product.weight, product.inputs_first) for product in find_products(graph).values()]
    weights += [(node.inputs[0], False) for node in find_tables(graph, SMALLEST_TABLE) if node.inputs[0] is not None]
    for weight, inputs_first in weights:
        tensor = weight.const_value
        if tensor is not None and KEY not in tensor.meta:
            tensor.meta[KEY] = find_form(tensor.numpy(), inputs_first=inputs_first)


def find_form(matrix: Array, *, inputs_first: bool) -> Form | None:
    """The form of the fewest bits that stores a matrix without loss."""
    return next((form for form in FORMS if form.fits(matrix, inputs_first=inputs_first)), None)


def keeps_numbers(target: Target, options: Quantization) -> bool:
    """Whether matrices may have these forms: no released kernel of a GPU takes 2 bits, and `standard` has no float16 scales."""
    return target == "ort" and options.activations is None


def lossless_form(tensor: ir.TensorProtocol, bits: Bits, *, is_table: bool) -> Form | None:
    """The form of at most `bits` bits that `mark_lossless` found for a matrix; a table's rows cannot have 2 bits."""
    form: Form | None = tensor.meta.get(KEY)
    return None if form is None or form.bits > bits or (is_table and form.bits == 2) else form
