"""The matrices of a decoder's graph that calibration finds codes for, and the layers of the module that multiply with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from torch import nn

from onnx_textgen.package.manifest import Target

from ..passes.graph.linear import sizes_of
from ..passes.graph.products import Part, find_products, find_tables, part_of
from ..passes.graph.provenance import Piece, parameters_of, pieces_of
from ..passes.quantization.lossless import lossless_form
from ..passes.quantization.options import SMALLEST_TABLE, Quantization
from ..passes.quantization.quantizers import Floats
from ..passes.quantization.smoothing import Norm, Rows, find_maker
from ..passes.quantization.split_head import Split, find_split
from ..sources.source import Source


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of a product whose parameters are known."""

    name: str
    """Name of the graph's initializer."""
    tensor: ir.TensorProtocol
    inputs_first: bool
    """The matrix is [in, out]."""
    part: Part
    pieces: tuple[Piece, ...]
    transposed: dict[str, bool]
    """Which of its parameters are [in, out]."""
    maker: Norm | Rows | None
    """Node that computes its inputs and can absorb their smoothing."""
    shared: bool
    """The matrix is also a table of embeddings."""
    split: Split | None = None
    """The split whose part it is."""

    @property
    def rows(self) -> slice:
        """The outputs of its layer that belong to it."""
        return slice(None) if self.split is None else self.split.parts[self.name]

    @property
    def sizes(self) -> tuple[int, int]:
        """(out, in)."""
        first, second = (int(size) for size in self.tensor.shape.numpy())
        return (second, first) if self.inputs_first else (first, second)

    def read(self) -> Floats:
        """[out, in]."""
        array = self.tensor.numpy()
        return np.ascontiguousarray(array.T if self.inputs_first else array, np.float32)


def find_matrices(graph: ir.Graph, options: Quantization, target: Target) -> list[Matrix]:
    """The matrices to round whose outputs are known to be outputs of parameters.

    A tied table is left out at `standard`, where its Gather determines how it is stored.
    """
    products = find_products(graph)
    logits = next(value for value in graph.outputs if value.name == "logits")
    tables = {id(node.inputs[0]) for node in find_tables(graph, SMALLEST_TABLE)}
    found: dict[str, Matrix] = {}
    for product in products.values():
        weight, part = product.weight, part_of(product, products, logits)
        pieces, name = pieces_of(weight.const_value), str(weight.name)
        shared = id(weight) in tables
        if part == "router" or not pieces or name in found or (shared and product.inputs_first):
            continue
        if shared and (target == "standard" or sizes_of(weight)[1] % options.block_size):
            continue  # the table keeps its form
        assert weight.const_value is not None, "weights have data"
        if lossless_form(weight.const_value, options.bits_of(part), options, is_table=shared) is not None:
            continue  # its numbers stay unchanged
        transposed = {each.name: product.inputs_first != each.transposed for each in parameters_of(weight.const_value)}
        is_shared = sum(other.weight is weight for other in products.values()) > 1
        maker = None if is_shared else find_maker(product, products)
        matrix = Matrix(name, weight.const_value, product.inputs_first, part, pieces, transposed, maker, shared)
        in_two = part == "head" and target == "ort" and options.bits == 4 and options.head_bits is None
        split = find_split(product) if in_two else None
        found |= {name: matrix} if split is None else parts_of(matrix, split)
    return [without_kept_maker(matrix, found) for matrix in found.values()]


def without_kept_maker(matrix: Matrix, found: Mapping[str, Matrix]) -> Matrix:
    """A matrix whose inputs are not smoothed where the rows that would take their scales keep their numbers."""
    is_kept = isinstance(matrix.maker, Rows) and matrix.maker.weight not in found
    return dataclasses.replace(matrix, maker=None) if is_kept else matrix


def parts_of(matrix: Matrix, split: Split) -> dict[str, Matrix]:
    """The parts of an output layer, by name; not smoothed, because both parts would need the same smoothing."""
    tensors = {name: split.part(matrix.tensor, outputs) for name, outputs in split.parts.items()}
    return {
        name: dataclasses.replace(matrix, name=name, tensor=tensor, pieces=pieces_of(tensor), maker=None, split=split)
        for name, tensor in tensors.items()
    }


def layers_of(source: Source, matrices: Sequence[Matrix]) -> dict[str, tuple[list[Matrix], nn.Module]]:
    """The module that multiplies with each parameter of the matrices, and the matrices that have outputs of it."""
    found: dict[str, tuple[list[Matrix], nn.Module]] = {}
    for matrix in matrices:
        for name in dict.fromkeys(piece.name for piece in matrix.pieces):
            owner, _, kind = name.rpartition(".")
            module = source.head if matrix.part == "head" else source.module.get_submodule(owner)
            if module is not None and kind == "weight" and not isinstance(module, nn.Embedding):
                found.setdefault(name, ([], module))[0].append(matrix)
    return found
