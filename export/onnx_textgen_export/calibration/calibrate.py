"""Finds codes for every matrix of a decoder from what the matrix is given on real text, and how much an error there would cost.

For int4 each matrix is rounded to 4 bits in blocks of 32 and of 16, compensated (`compensate`) by input moments in which a token
counts as much as the predictions hang on it (`observe`); the loss in those moments is the estimate by which `mix` chooses. What
is stored in 8 bits has its inputs smoothed besides (`passes/smoothing`), so that rounding them loses less; int8 alone needs no way
back, and takes tokens as they come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from torch import Tensor, nn

from ..forecast import matrix_bytes
from ..passes.linear import sizes_of
from ..passes.products import Part, find_products, find_tables, part_of
from ..passes.provenance import Piece, parameters_of, pieces_of
from ..passes.quantization import SMALLEST_TABLE, Bits, Quantization
from ..passes.quantizers import Floats
from ..passes.smoothing import Norm, Rows, find_maker
from ..sources import Source
from ..weights import Weights
from .codes import FoundCodes, restored
from .compensate import Moments, round_compensated
from .mix import Choice, Mix
from .observe import look, observe

EIGHT_BIT_BLOCK = 64
"""Block size of what has 8 bits in a mix."""
SMALLER_BLOCKS = (32,)
"""What int8 may go over to: with smaller blocks, inputs are rounded more finely too."""
SMOOTHING = 0.5
"""Power of an input's root mean square by which it is divided (SmoothQuant's alpha)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that the graph multiplies with, of which calibration knows the parameters."""

    name: str
    """Of the graph's initializer."""
    tensor: ir.TensorProtocol
    inputs_first: bool
    """It is [in, out]."""
    part: Part
    pieces: tuple[Piece, ...]
    turned: dict[str, bool]
    """Which of its parameters are [in, out]."""
    maker: Norm | Rows | None
    """What takes the smoothing of its inputs."""
    shared: bool
    """It is a table of embeddings too."""

    @property
    def sizes(self) -> tuple[int, int]:
        """(out, in)."""
        first, second = (int(size) for size in self.tensor.shape.numpy())
        return (second, first) if self.inputs_first else (first, second)

    def read(self) -> Floats:
        """[out, in]."""
        array = self.tensor.numpy()
        return np.ascontiguousarray(array.T if self.inputs_first else array, np.float32)


def find_matrices(graph: ir.Graph, options: Quantization) -> list[Matrix]:
    """The matrices of products that are to be rounded and whose outputs are known to be outputs of parameters."""
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
        if shared and sizes_of(weight)[1] % options.block_size:
            continue  # the table stays as it is, and so apart
        assert weight.const_value is not None, "weights have data"
        turned = {each.name: product.inputs_first != each.turned for each in parameters_of(weight.const_value)}
        several = sum(other.weight is weight for other in products.values()) > 1
        maker = None if several else find_maker(product, products)
        found[name] = Matrix(name, weight.const_value, product.inputs_first, part, pieces, turned, maker, shared)
    return list(found.values())


@dataclasses.dataclass(slots=True)
class Seen:
    """What was seen of one matrix."""

    waiting: set[str]
    """Parameters whose gradients are still to come."""
    importance: Tensor | float = 0.0
    """Of each token."""
    moments: Tensor | float = 0.0
    """[in, in], each token by its importance."""
    squares: Tensor | float = 0.0
    """[in]."""
    tokens: int = 0

    def add(self, inputs: Tensor, importance: Tensor | None = None) -> None:
        """Take in some tokens' inputs [tokens, in]."""
        weighted = inputs if importance is None else inputs * importance[:, None]
        self.moments = self.moments + weighted.T @ inputs
        self.squares = self.squares + inputs.square().sum(0)
        self.tokens += len(inputs)


@dataclasses.dataclass(frozen=True, slots=True)
class Calibrated:
    """The codes found for a decoder's matrices, and what each choice is thought to cost."""

    matrices: dict[str, Matrix]
    choices: dict[str, list[Choice]]
    codes: dict[tuple[str, int, int], FoundCodes]
    """By matrix, bits and block size."""
    folder: Path
    options: Quantization

    def plan(self, mix: Mix) -> Plan:
        """What `quantize` needs to store the matrices so."""
        found = {name: self.codes[name, choice.bits, choice.block_size] for name, choice in mix.items()}
        gains: dict[str, Floats] = {}
        for name, codes in found.items():
            maker = self.matrices[name].maker
            if codes.smoothing is not None and isinstance(maker, Rows):
                each = gains.setdefault(maker.weight, np.ones(self.matrices[maker.weight].sizes[0], np.float32))
                each[maker.start : maker.start + len(codes.smoothing)] /= codes.smoothing
        return Plan(found, gains, {name: self.matrices[name] for name in found})

    def settle(self, matrix: Matrix, seen: Seen) -> None:
        """Find a matrix's codes, of which all has been seen, in every form that it may be stored in."""
        assert isinstance(seen.moments, Tensor), "something was seen"
        assert isinstance(seen.squares, Tensor), "something was seen"
        values, moments = matrix.read(), Moments(seen.moments.numpy())
        scale = 1 / (2 * len(values) * seen.tokens)
        scales = smoothing_of(np.sqrt(seen.squares.numpy() / seen.tokens)) if matrix.maker is not None else None
        smooth = moments if scales is None else moments.smoothed(scales)
        index = list(self.matrices).index(matrix.name)
        for bits, block_size in forms(matrix, self.options):
            symmetric = self.options.symmetric or bits != self.options.bits
            smoothing = scales if bits == 8 else None
            found = round_compensated(
                values if smoothing is None else values * smoothing,
                smooth if bits == 8 else moments,
                bits,
                block_size,
                symmetric=symmetric,
            )
            where, inputs = self.folder / f"{index}-{bits}-{block_size}", values.shape[1]
            stored = FoundCodes.save(where, found, bits=bits, block_size=block_size, inputs=inputs, smoothing=smoothing)
            loss = moments.loss(stored.values() - values) * scale
            form = dataclasses.replace(self.options, block_size=block_size, symmetric=symmetric)
            size = matrix_bytes(*matrix.sizes, bits, form)
            self.codes[matrix.name, bits, block_size] = stored
            self.choices.setdefault(matrix.name, []).append(Choice(bits, block_size, size, loss))


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Codes for a graph's matrices by the names of their initializers."""

    found: dict[str, FoundCodes]
    gains: dict[str, Floats]
    """[out]: what a matrix's outputs are multiplied with, since what reads them has smoothed inputs."""
    matrices: dict[str, Matrix]

    def changes(self, name: str) -> Mapping[str, Callable[[Tensor], None]]:
        """What gives the parameters of a matrix the values of its codes."""
        matrix = self.matrices[name]
        return restored(self.found[name], matrix.pieces, matrix.turned)


def forms(matrix: Matrix, options: Quantization) -> list[tuple[Bits, int]]:
    """Bits and block sizes that a matrix may be stored in, by what the options ask of all."""
    if options.bits == 8:
        return [(8, size) for size in dict.fromkeys((options.block_size, *SMALLER_BLOCKS)) if size <= options.block_size]
    wide = EIGHT_BIT_BLOCK if not matrix.shared or matrix.sizes[1] % EIGHT_BIT_BLOCK == 0 else options.block_size
    return [*((4, size) for size in dict.fromkeys((options.block_size, 16))), (8, wide)]


def smoothing_of(sizes: Floats) -> Floats:
    """What to divide inputs by, of which these are the root mean squares; around 1."""
    usual = float(np.exp(np.log(np.maximum(sizes, 1e-12)).mean()))
    scales: Floats = np.clip((sizes / usual) ** SMOOTHING, 1e-2, 1e2).astype(np.float32)
    return scales


def layers_of(source: Source, matrices: Sequence[Matrix]) -> dict[str, tuple[Matrix, nn.Module]]:
    """The module that multiplies with each parameter of the matrices."""
    found: dict[str, tuple[Matrix, nn.Module]] = {}
    for matrix in matrices:
        for name in dict.fromkeys(piece.name for piece in matrix.pieces):
            owner, _, kind = name.rpartition(".")
            module = source.head if matrix.part == "head" else source.module.get_submodule(owner)
            if module is not None and kind == "weight" and not isinstance(module, nn.Embedding):
                found[name] = (matrix, module)
    return found


def calibrate(source: Source, weights: Weights, graph: ir.Graph, ids: Tensor, *, options: Quantization, folder: Path) -> Calibrated:
    """See the texts `ids` [texts, tokens] and find codes, which are kept in `folder`.

    Raises what the module's own code raises where it cannot be differentiated, which 8 bits do not need.
    """
    matrices = find_matrices(graph, options)
    made = Calibrated({each.name: each for each in matrices}, {}, {}, folder, options)
    layers = layers_of(source, matrices)
    modules = {name: module for name, (_, module) in layers.items()}
    seen = {each.name: Seen({name for name, (owner, _) in layers.items() if owner is each}) for each in matrices}

    def see(name: str, inputs: Tensor, gradients: Tensor) -> None:
        matrix = layers[name][0]
        known = seen[matrix.name]
        known.importance = known.importance + gradients.square().sum(-1)
        known.waiting.discard(name)
        if known.waiting and matrix.part != "head":
            return
        assert isinstance(known.importance, Tensor), "just added to"
        known.add(inputs, known.importance)
        known.importance = 0.0
        if matrix.part != "head":
            made.settle(matrix, seen.pop(matrix.name))

    def glance(name: str, inputs: Tensor) -> None:
        matrix = layers[name][0]
        if matrix.name in seen:  # the parameters of a matrix have the same inputs
            seen[matrix.name].add(inputs)
            made.settle(matrix, seen.pop(matrix.name))

    if options.bits == 8:
        look(source, weights, ids, modules, glance)
    else:
        observe(source, weights, ids, modules, see)
    for name in [name for name, known in seen.items() if known.tokens]:
        made.settle(made.matrices[name], seen.pop(name))
    forget_unseen(made)
    return made


def forget_unseen(made: Calibrated) -> None:
    """Leave out matrices whose inputs are smoothed by the rows of one that was not seen, and so is not rounded with them."""
    for name in list(made.choices):
        maker = made.matrices[name].maker
        if isinstance(maker, Rows) and maker.weight not in made.choices:
            del made.choices[name]
