"""Matrices that few bits store without loss, because their numbers are already multiples of one scale per block.

Weights from a quantised file or checkpoint are such matrices, and those of BitNet (see `ternary`). They keep their numbers
wherever they take no more bits than were asked for, because a second rounding would lose what the first one kept.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_textgen.package.manifest import Target
from onnx_textgen.recipes.sources import Bytes
from onnx_textgen.recipes.steps import kept, steps_of

from ...sources.stored_form import StoredForm
from ...threads import for_each
from ..experts import StackTensor
from ..graph.products import find_products, find_tables, part_of
from ..graph.provenance import Columns, parameters_of, pieces_of
from .integer_grid import TOLERANCE, find_grid, find_offset_grid
from .layouts import Arrays, Packed, Scales, Zeros
from .options import SMALLEST_TABLE, Bits, Quantization
from .quantizers import Codes, Floats, inverses, nearest, quantize_matrix, round_symmetric, round_ternary
from .ternary import BLOCK_SIZE, is_ternary

KEY = "onnx_textgen.lossless"
ORDER = "onnx_textgen.input_order"
ROWS = "onnx_textgen.stored_rows"
Array = npt.NDArray[Any]
Order = npt.NDArray[np.int64]
GGUF_BLOCK_SIZE = 32
GRID_BLOCK_SIZES: Mapping[Bits, tuple[int, ...]] = {4: (128, 64, 32, 16), 8: (128, 64, 32)}
FIRST = 8
"""Outputs that are checked first, before all are."""
BYTES_AT_A_TIME = 1 << 18
"""Bytes of a file that a thread unpacks in a step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A way to store a matrix, without loss for some."""

    name: str
    bits: Bits
    block_size: int
    find: Callable[[Floats], Codes]
    """The codes of blocks [block size, blocks]."""
    zeros: Zeros = "none"
    scales: Scales = "half"
    """Ternary matrices have one scale per row; float32 scales are for matrices whose scales are no float16 numbers."""
    code_bits: int | None = None
    """Bits that the codes have, where they are fewer; None: `bits`."""
    is_costly: bool = False
    """Rounding to `bits` takes fewer bytes or operators: only a source that is kept as stored gets this form."""

    @property
    def middle(self) -> int:
        """The middle of the codes, which is stored as that of `bits`: products multiply rounded inputs with numbers around zero."""
        return 1 << ((self.code_bits or self.bits) - 1)

    def bytes_of(self, count: int) -> int:
        """Bytes of `count` weights with their scales and zero points."""
        scale = {"rows": 0, "half": 2, "full": 4}[self.scales]
        per_block = scale + {"whole": self.bits / 8, "offsets": scale}.get(self.zeros, 0)
        return int(count * self.bits // 8 + count // self.block_size * per_block)

    def fitted(self, matrix: Array, *, inputs_first: bool) -> Form | None:
        """The form, with scales as they must be, if it gives back every number of a matrix [out, in], or [in, out]; else None."""
        if self.scales == "rows":
            return self if is_ternary(matrix, inputs_first=inputs_first) else None
        outputs = matrix.T if inputs_first else matrix
        if outputs.shape[1] % self.block_size or self.scales_for(outputs[:FIRST]) is None:
            return None
        scales = self.scales_for(outputs)
        return None if scales is None else dataclasses.replace(self, scales=scales)

    def scales_for(self, outputs: Array) -> Scales | None:
        """How the scales of blocks that represent `outputs` [out, in] are stored; None if none represent them."""
        found_scales: list[Scales | None] = []

        def compare(chosen: slice, found: Codes) -> None:
            found_scales.append(scales_of(found, outputs[chosen], self.bits))

        quantize_matrix(outputs, self.find, self.block_size, compare, inputs_first=False)
        return None if None in found_scales else "full" if "full" in found_scales else "half"


def scales_of(found: Codes, wanted: Array, bits: Bits) -> Scales | None:
    """How the scales of codes have to be stored; None if the codes do not stand for the numbers `wanted` [out, in]."""
    values = found.values(bits, wanted.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        stored = [found.scales] if found.offsets is None else [found.scales, found.offsets]
        is_half = all(np.array_equal(each.astype(np.float16), each) for each in stored)
        is_close = bool((np.abs(values - wanted) <= TOLERANCE * largest(wanted, found)).all())
    is_same = bool(np.array_equal(values, wanted)) if is_half else is_close  # float32 scales: products were rounded
    return None if not is_same else "half" if is_half else "full"


def largest(wanted: Array, found: Codes) -> Array:
    """The magnitudes by which a difference counts: of the numbers themselves, or of the sums that they come from."""
    if found.offsets is None:
        return np.abs(wanted)
    rows: Array = np.abs(wanted).max(axis=1, keepdims=True)
    return rows


def round_to_127(blocks: Floats) -> Codes:
    """Symmetric 8-bit codes around 128 whose extreme is 127 steps from zero, as llama.cpp's Q8_0 has it."""
    scales = np.abs(blocks).max(axis=0) / np.float32(127)
    return Codes(nearest(blocks, inverses(scales), 128, 8), scales, None)


def grids(bits: Bits) -> tuple[Form, ...]:
    """Forms of any integers, largest blocks first, without zero points before those with them."""
    return tuple(
        Form(
            f"int{bits} in blocks of {size}{'' if symmetric else ' with zero points'}",
            bits,
            size,
            functools.partial(find_grid, bits=bits, symmetric=symmetric),
            "none" if symmetric else "whole",
        )
        for size in GRID_BLOCK_SIZES[bits]
        for symmetric in (True, False)
    )


def with_offsets(bits: Bits, block_size: int, code_bits: int | None = None) -> Form:
    """A form whose blocks have an offset each; `code_bits`: the bits that its codes have, where those are fewer than `bits`."""
    return Form(
        f"{bits} bits in blocks of {block_size} with offsets",
        bits,
        block_size,
        functools.partial(find_offset_grid, bits=code_bits or bits),
        "offsets",
        code_bits=code_bits,
        is_costly=code_bits is not None,
    )


TERNARY = Form("ternary", 2, BLOCK_SIZE, round_ternary, scales="rows")
FORMS = (
    TERNARY,
    Form("Q4_0", 4, GGUF_BLOCK_SIZE, functools.partial(round_symmetric, bits=4)),
    *grids(4),
    with_offsets(4, GGUF_BLOCK_SIZE),
    with_offsets(4, 16, code_bits=2),
    Form("Q8_0", 8, GGUF_BLOCK_SIZE, round_to_127),
    *grids(8),
    Form("int8 in blocks of 16", 8, 16, functools.partial(find_grid, bits=8, symmetric=True), is_costly=True),
    with_offsets(8, GGUF_BLOCK_SIZE, code_bits=5),
)
"""Those with the fewest bits first; Q4_0 and Q8_0 are llama.cpp's blocks, whose scales their extremes tell.

Of its other kinds, 4 bits with offsets hold Q4_1 and Q4_K, in blocks of 16 Q2_K; int4 in blocks of 16 Q3_K; int8 in blocks of 32
Q5_0, of 16 Q6_K; 8 bits with offsets Q5_1 and Q5_K."""


FORM_OF_KIND: Mapping[str, Form] = {
    kind: dataclasses.replace(next(form for form in FORMS if form.name == name), scales="full" if kind.endswith("K") else "half")
    for kind, name in (
        ("Q4_0", "Q4_0"),
        ("Q4_1", "4 bits in blocks of 32 with offsets"),
        ("Q5_0", "int8 in blocks of 32"),
        ("Q5_1", "8 bits in blocks of 32 with offsets"),
        ("Q8_0", "Q8_0"),
        ("Q2_K", "4 bits in blocks of 16 with offsets"),
        ("Q3_K", "int4 in blocks of 16"),
        ("Q4_K", "4 bits in blocks of 32 with offsets"),
        ("Q5_K", "8 bits in blocks of 32 with offsets"),
        ("Q6_K", "int8 in blocks of 16"),
    )
}
"""The forms of matrices whose blocks are read from a GGUF file, so that nothing has to be found out."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredRows:
    """The bytes of a matrix in a GGUF file, by output."""

    kind: str
    pieces: tuple[tuple[Callable[[], Bytes], Columns | None], ...]
    """For adjacent outputs: what reads the rows of a parameter, and which of them these are; None: all."""

    def fill(self, layout: Packed, arrays: Arrays) -> None:
        """Write the blocks as a package has them."""
        first = 0
        for read, outputs in self.pieces:
            rows = read() if outputs is None else read()[outputs]
            self.put(layout, arrays, first, rows)
            first += len(rows)

    def numbers(self, most: int) -> Array:
        """The numbers of the first rows."""
        read, outputs = self.pieces[0]
        rows = read()[:most] if outputs is None else read()[outputs[:most]]
        return steps_of(self.kind)["float32"](rows, self.kind)

    def put(self, layout: Packed, arrays: Arrays, first: int, rows: Bytes) -> None:
        """Write the blocks of some rows, of which the first is that of the output `first`."""
        together = max(BYTES_AT_A_TIME // rows.shape[1], 1)

        def work(start: int) -> None:
            some = rows[start : start + together]
            layout.put_stored(arrays, slice(first + start, first + start + len(some)), kept(some, self.kind))

        for_each(range(0, len(rows), together), work)


def mark_lossless(graph: ir.Graph, stored: Mapping[str, StoredForm]) -> None:
    """Mark which matrices of products and tables a form stores without loss; reads those whose form the source does not tell.

    stored: how the source holds parameters.
    """
    weights = [(product.weight, product.inputs_first) for product in find_products(graph).values()]
    weights += [(node.inputs[0], False) for node in find_tables(graph, SMALLEST_TABLE) if node.inputs[0] is not None]
    for weight, inputs_first in weights:
        tensor = weight.const_value
        if tensor is not None and KEY not in tensor.meta:
            tensor.meta[ORDER], rows = common_order(tensor, stored), rows_in_file(tensor, stored, inputs_first=inputs_first)
            form = None if rows is None else FORM_OF_KIND[rows.kind]
            if rows is not None and form is not None and is_narrower(find_form(rows.numbers(FIRST), inputs_first=False), form):
                rows = form = None  # such as a ternary model, whose file has 8 bits
            tensor.meta[ROWS] = rows
            tensor.meta[KEY] = form or find_form(in_order(tensor, inputs_first=inputs_first), inputs_first=inputs_first)


def is_narrower(found: Form | None, form: Form) -> bool:
    """Return whether a form was found that has fewer bits than another."""
    return found is not None and found.bits < form.bits


def rows_in_file(tensor: ir.TensorProtocol, stored: Mapping[str, StoredForm], *, inputs_first: bool) -> StoredRows | None:
    """The bytes of a matrix in a GGUF file; None if its outputs are not rows of parameters of one kind."""
    pieces, parameters = pieces_of(tensor), parameters_of(tensor)
    if not parameters or any(each.transposed != inputs_first for each in parameters):
        return None
    forms = [stored[each.name] for each in pieces if each.name in stored]
    kinds, reading = {form.name for form in forms}, [form.rows for form in forms if form.rows is not None]
    if not pieces or len(kinds) != 1 or len(reading) < len(pieces):
        return None
    return StoredRows(kinds.pop(), tuple(zip(reading, (each.outputs for each in pieces), strict=True)))


def stored_rows(tensor: ir.TensorProtocol) -> StoredRows | None:
    """The bytes from which a matrix is written; None: it is written from its numbers."""
    found: StoredRows | None = tensor.meta.get(ROWS)
    return found


def common_order(tensor: ir.TensorProtocol, stored: Mapping[str, StoredForm]) -> Order | None:
    """The order of inputs that all parameters of a matrix have in their source; None if they have none, or different ones."""
    forms = [stored.get(each.name) for each in parameters_of(tensor)]
    orders = [form.order for form in forms if form is not None and form.order is not None]
    is_common = len(orders) == len(forms) > 0 and all(np.array_equal(orders[0], other) for other in orders)
    return orders[0] if is_common else None


def order_of(tensor: ir.TensorProtocol) -> Order | None:
    """The order of inputs in which a matrix has its form; None: their own."""
    found: Order | None = tensor.meta.get(ORDER)
    return found


def in_order(tensor: ir.TensorProtocol, *, inputs_first: bool) -> Array:
    """A matrix with its inputs in the order of its form."""
    matrix, order = tensor.numpy(), order_of(tensor)
    return matrix if order is None else matrix[order] if inputs_first else matrix[:, order]


def find_form(matrix: Array, *, inputs_first: bool) -> Form | None:
    """The form of the fewest bits that stores a matrix without loss."""
    found = (form.fitted(matrix, inputs_first=inputs_first) for form in FORMS)
    return next((form for form in found if form is not None), None)


def keeps_numbers(target: Target, options: Quantization) -> bool:
    """Return whether matrices may have these forms: no GPU kernel takes 2 bits, and `standard` has no float16 scales."""
    return target == "ort" and options.activations is None


def lossless_form(tensor: ir.TensorProtocol, bits: Bits, options: Quantization, *, is_table: bool) -> Form | None:
    """The form of at most `bits` bits that `mark_lossless` found for a matrix, if it may have it."""
    form: Form | None = tensor.meta.get(KEY)
    return form if form is not None and may_keep(form, bits, options, is_table=is_table) else None


def may_keep(form: Form, bits: Bits, options: Quantization, *, is_table: bool) -> bool:
    """Return whether a form replaces rounding to `bits` bits; rows of a table never have 2."""
    if form.bits > bits or (is_table and form.bits == 2):
        return False
    return options.keeps_stored or not (form.is_costly or (form.zeros == "offsets" and form.bits < bits))


def rounded_parameters(graph: ir.Graph, options: Quantization) -> list[str]:
    """The parameters whose matrices no form holds in the bits that are asked for, so that `quantize` will round them."""
    products = find_products(graph)
    logits = next(value for value in graph.outputs if value.name == "logits")
    parts = {node: part_of(product, products, logits) for node, product in products.items()}
    wanted = [(products[node].weight.const_value, options.bits_of(part), False) for node, part in parts.items() if part != "router"]
    heads = {id(products[node].weight) for node, part in parts.items() if part == "head"}
    for node in find_tables(graph, SMALLEST_TABLE):
        table = node.inputs[0]
        if table is not None:
            wanted.append((table.const_value, options.bits_of("head") if id(table) in heads else options.bits, True))
    lost = [tensor for tensor, bits, is_table in wanted if tensor and not lossless_form(tensor, bits, options, is_table=is_table)]
    for node in graph:
        if node.op_type == "MoE":
            stacks = [value.const_value for value in (node.inputs[2], node.inputs[4]) if value is not None]
            lost += [each.stack.source if isinstance(each, StackTensor) and each.stack else each for each in stacks if each]
    return list(dict.fromkeys(each.name for tensor in lost for each in parameters_of(tensor)))
